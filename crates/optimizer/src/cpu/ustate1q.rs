//! Blocks of `ustate1q`: 2-bit codes of the normalised update, second moments on grids of logarithms; or
//! either of them as f32.
//!
//! The square sum of all distances from means, which the scale of the next update comes
//! from, is exact, so it may be added up chunk by chunk in any order.

use formats::half_floats::{bf16_nearest, bf16_to_f32};
use formats::one_q::is_zero;
use formats::ustate::{self, CODE_BITS, STEP_FACTOR, SquareSum};
use formats::{UState1Q, bit_stream};

use super::arrays::{FirstMut, SecondMut};
use super::blocks::{BlockCodec, MomentRuns, Room, at_least_ratio, within};
use super::grid::{self, rules};
use super::random::BlockRandom;
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::Vectors;

/// The codec of a run of blocks; `REPAIRED` says by which rules.
pub(crate) struct UState1QCodec<'a, const REPAIRED: bool> {
    pub(crate) options: UState1Q,
    pub(crate) first: FirstMut<'a>,
    pub(crate) second: SecondMut<'a>,
    pub(crate) scalars: Scalars,
    pub(crate) block_scalars: BlockScalars,
    pub(crate) random: BlockRandom,
    /// What encoding adds up.
    pub(crate) spread: Spread,
}

/// Numbers of a [`Spread`].
pub(crate) const SPREAD_NUMBERS: usize = 3;

/// How far normalised updates lie from their means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) square_sum: SquareSum,
    /// Elements that have a first moment.
    pub(crate) live: u64,
}

impl Spread {
    pub(crate) const NONE: Spread = Spread { square_sum: SquareSum { pieces: [0; 2] }, live: 0 };

    /// Both together.
    pub(crate) fn plus(self, other: Spread) -> Spread {
        Spread { square_sum: self.square_sum.plus(other.square_sum), live: self.live + other.live }
    }

    /// The two pieces of the square sum, and the count: whole numbers, whose sums are exact.
    pub(crate) fn numbers(self) -> [f64; SPREAD_NUMBERS] {
        let [high, low] = self.square_sum.pieces;
        [high as f64, low as f64, self.live as f64]
    }

    /// What has these numbers.
    pub(crate) fn of_numbers(numbers: [f64; SPREAD_NUMBERS]) -> Spread {
        let [high, low, live] = numbers.map(|number| number as u64);
        Spread { square_sum: SquareSum { pieces: [high, low] }, live }
    }

    /// The scale of the next encode, after one with `scale`.
    pub(crate) fn next_scale(self, scale: f32) -> f32 {
        let root = self.square_sum.mean(self.live).sqrt();
        if self.live == 0 { scale } else { (STEP_FACTOR * root) as f32 }
    }
}

impl<const REPAIRED: bool> BlockCodec for UState1QCodec<'_, REPAIRED> {
    const DECAYS_LAST: bool = false;

    #[inline(always)]
    fn block(&self) -> usize {
        self.options.block as usize
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, start: usize, m: &mut [f32], v: &mut [f32], room: &mut Room<'_>) {
        let roots = &mut room.units[..v.len()];
        self.decode_second::<V>(start, v, roots, room.codes);
        match &self.first {
            FirstMut::Plain(stored) => {
                m.copy_from_slice(&stored[start..start + m.len()]);
                if REPAIRED {
                    for (m, v) in m.iter().zip(v) {
                        let inverse = self.block_scalars.inverse_ratio_max_before;
                        *v = at_least_ratio(*m, *v, inverse);
                    }
                }
            }
            FirstMut::Codes { codes, means, scales } => {
                let block = self.options.mean_block as usize;
                for from in (0..m.len()).step_by(block) {
                    let to = (from + block).min(m.len());
                    let bytes = &codes[(start + from) / 4..(start + to).div_ceil(4)];
                    let mean = bf16_to_f32(means[(start + from) / block]);
                    let (v, roots) = (&v[from..to], &roots[from..to]);
                    self.decode_first(bytes, mean, scales[0], v, roots, &mut m[from..to]);
                }
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>) {
        let MomentRuns { m, v, .. } = moments;
        let [dithers, uniforms] = &mut room.uniforms;
        let (dithers, uniforms) = (&mut dithers[..m.len()], &mut uniforms[..m.len()]);
        self.random.fill::<REPAIRED>(start, dithers, uniforms);
        let (stored, units) = (&mut room.stored[..m.len()], &mut room.units[..m.len()]);
        self.encode_second::<V>(start, (v, uniforms), (stored, units), room.codes);
        match &mut self.first {
            FirstMut::Plain(own) => own[start..start + m.len()].copy_from_slice(m),
            FirstMut::Codes { .. } => self.encode_first(start, m, units, dithers),
        }
    }
}

impl<const REPAIRED: bool> UState1QCodec<'_, REPAIRED> {
    #[inline(always)]
    fn decode_second<V: Vectors>(
        &self,
        start: usize,
        v: &mut [f32],
        roots: &mut [f32],
        unpacked: &mut [u32],
    ) {
        match &self.second {
            SecondMut::Plain(stored) => {
                v.copy_from_slice(&stored[start..start + v.len()]);
                for (root, v) in roots.iter_mut().zip(v) {
                    *root = v.sqrt();
                }
            }
            SecondMut::Codes { codes, endpoints } => {
                let (block, bits) = (self.options.block as usize, self.options.v_bits);
                for from in (0..v.len()).step_by(block) {
                    let to = (from + block).min(v.len());
                    let number = (start + from) / block;
                    let ends = [endpoints[2 * number], endpoints[2 * number + 1]];
                    let unpacked = &mut unpacked[..to - from];
                    unpack(&codes[(start + from) * bits as usize / 8..], bits, unpacked);
                    let (v, roots) = (&mut v[from..to], &mut roots[from..to]);
                    grid::decode::<V, REPAIRED>((ends, bits), unpacked, v, roots);
                }
            }
        }
    }

    /// One mean block.
    #[inline(always)]
    fn decode_first(
        &self,
        bytes: &[u8],
        mean: f32,
        scale: f32,
        v: &[f32],
        roots: &[f32],
        m: &mut [f32],
    ) {
        // An array of a known size stays in registers.
        if m.len() == 64 {
            self.decode_block::<64>(bytes, mean, scale, v, roots, m);
        } else {
            self.decode_block::<256>(bytes, mean, scale, v, roots, m);
        }
    }

    /// One mean block of at most `N` elements.
    #[inline(always)]
    fn decode_block<const N: usize>(
        &self,
        bytes: &[u8],
        mean: f32,
        scale: f32,
        v: &[f32],
        roots: &[f32],
        m: &mut [f32],
    ) {
        let rules = rules::<REPAIRED>();
        let mut codes = [0; N];
        let codes = &mut codes[..m.len()];
        unpack(bytes, CODE_BITS, codes);
        let (mut live, mut code_sum) = (0, 0);
        for (&code, &v) in codes.iter().zip(v) {
            let is_live = !is_zero(v, rules);
            live += u32::from(is_live);
            code_sum += if is_live { code } else { 0 };
        }
        let code_mean = if live == 0 { 0.0 } else { code_sum as f32 / live as f32 };
        let block = &self.block_scalars;
        // The unit of all elements but for the root is taken into scale, mean and bound.
        let common = if REPAIRED { block.correction_before * block.rms_scale_before } else { 1.0 };
        let (scale, bound) = (common * scale, common * block.normalised_max_before);
        let lowest = ustate::offset(scale, code_mean, common * mean);
        for ((m, &code), (&root, &v)) in m.iter_mut().zip(&*codes).zip(roots.iter().zip(v)) {
            let q = ((code + 4) as i32 as f32).mul_add(scale, lowest);
            let product = if REPAIRED {
                within(q, bound) * root
            } else {
                let unit = root.mul_add(block.rms_scale_before, self.scalars.eps);
                q * (block.correction_before * unit)
            };
            *m = if is_zero(v, rules) { 0.0 } else { product };
        }
    }

    /// Stores second moments, and leaves what belongs to what they then are.
    #[inline(always)]
    fn encode_second<V: Vectors>(
        &mut self,
        start: usize,
        (v, uniforms): (&[f32], &[f32]),
        (stored, units): (&mut [f32], &mut [f32]),
        unpacked: &mut [u32],
    ) {
        let (block, bits) = (self.options.block as usize, self.options.v_bits);
        let (scalars, block_scalars) = (self.scalars, self.block_scalars);
        let unit_of = |root| encode_unit::<REPAIRED>(&scalars, &block_scalars, root);
        if let SecondMut::Plain(own) = &mut self.second {
            own[start..start + v.len()].copy_from_slice(v);
            for (unit, v) in units.iter_mut().zip(v) {
                *unit = unit_of(v.sqrt());
            }
            return;
        }
        let SecondMut::Codes { codes, endpoints } = &mut self.second else { return };
        let first = 2 * (start / block);
        let ends = &mut endpoints[first..first + 2 * v.len().div_ceil(block)];
        grid::endpoints::<REPAIRED>(block, v, ends);
        let (endpoints, codes) = (&*endpoints, &mut codes[start * bits as usize / 8..]);
        for from in (0..v.len()).step_by(block) {
            let to = (from + block).min(v.len());
            let number = (start + from) / block;
            let ends = [endpoints[2 * number], endpoints[2 * number + 1]];
            let unpacked = &mut unpacked[..to - from];
            let (stored, units) = (&mut stored[from..to], &mut units[from..to]);
            let inputs = (&v[from..to], &uniforms[from..to]);
            grid::encode::<V, REPAIRED>((ends, bits), &unit_of, inputs, unpacked, stored, units);
            pack(unpacked, bits, &mut codes[from * bits as usize / 8..]);
        }
    }

    #[inline(always)]
    fn encode_first(&mut self, start: usize, m: &[f32], units: &[f32], dithers: &[f32]) {
        let FirstMut::Codes { codes, means, scales } = &mut self.first else { return };
        let block = self.options.mean_block as usize;
        let scalars = MeanScalars {
            inverse_scale: ustate::inverse(scales[1]),
            normalised_max: self.block_scalars.normalised_max,
            block,
        };
        for from in (0..m.len()).step_by(block) {
            let to = (from + block).min(m.len());
            let inputs = (&m[from..to], &units[from..to], &dithers[from..to]);
            let codes = &mut codes[(start + from) / 4..];
            // Arrays of a known size stay in registers.
            let (mean, spread) = if block == 64 && to - from == 64 {
                encode_block::<REPAIRED, 64>(&scalars, inputs, codes)
            } else {
                encode_block::<REPAIRED, 256>(&scalars, inputs, codes)
            };
            means[(start + from) / block] = mean;
            self.spread = self.spread.plus(spread);
        }
    }
}

/// What the mean blocks of a tensor have in common.
struct MeanScalars {
    inverse_scale: f32,
    normalised_max: f32,
    block: usize,
}

/// Stores a block's codes; its mean, and what it adds to the spread. `N` is at least a block.
#[inline(always)]
fn encode_block<const REPAIRED: bool, const N: usize>(
    scalars: &MeanScalars,
    (m, units, dithers): (&[f32], &[f32], &[f32]),
    codes: &mut [u8],
) -> (u16, Spread) {
    let (mut q, mut distances, mut unpacked) = ([0.0; N], [0.0; N], [0; N]);
    let block = if N == 64 { N } else { scalars.block };
    let mut live = 0;
    for (q, (&m, &unit)) in q.iter_mut().zip(m.iter().zip(units)) {
        let unbounded = m * unit;
        *q = if REPAIRED { within(unbounded, scalars.normalised_max) } else { unbounded };
        live += u32::from(unit != 0.0);
    }
    let sum = tree_sum(&q[..block]);
    let mean = if live == 0 { 0 } else { bf16_nearest(sum / live as f32) };
    let own_mean = bf16_to_f32(mean);
    let inputs = q.iter().zip(units).zip(dithers);
    for ((distance, code), ((&q, &unit), &dither)) in
        distances.iter_mut().zip(&mut unpacked).zip(inputs)
    {
        let is_live = unit != 0.0;
        *distance = if is_live { q - own_mean } else { 0.0 };
        let own = ustate::code(*distance, scalars.inverse_scale, dither);
        *code = if is_live { own } else { 0 };
    }
    let [high, low] = sum_of_squares(&distances[..block]);
    pack(&unpacked[..m.len()], CODE_BITS, codes);
    let square_sum = SquareSum { pieces: [u64::from(high), u64::from(low)] };
    (mean, Spread { square_sum, live: u64::from(live) })
}

/// What a first moment is multiplied by to be stored, given the root of its second moment as that is
/// stored; zero where there is to be none.
#[inline(always)]
fn encode_unit<const REPAIRED: bool>(scalars: &Scalars, block: &BlockScalars, root: f32) -> f32 {
    let unit = if REPAIRED {
        (1.0 / root) * (block.inverse_correction / scalars.rms_scale)
    } else {
        block.inverse_correction / root.mul_add(scalars.rms_scale, scalars.eps)
    };
    if is_zero(root * root, rules::<REPAIRED>()) { 0.0 } else { unit }
}

/// The pieces of the squares of a block's distances, those of four neighbours together.
#[inline(always)]
fn sum_of_squares(distances: &[f32]) -> [u32; 2] {
    let (mut high, mut low) = (0, 0);
    for &[a, b, c, d] in distances.as_chunks::<4>().0 {
        let pieces = SquareSum::pieces_of(d.mul_add(d, c.mul_add(c, b.mul_add(b, a * a))));
        high += pieces[0];
        low += pieces[1];
    }
    [high, low]
}

/// The sum of a block: four neighbours first, then by halves.
#[inline(always)]
fn tree_sum(numbers: &[f32]) -> f32 {
    let (fours, _) = numbers.as_chunks::<4>();
    match fours.len() {
        4 => fold::<4>(fours),
        8 => fold::<8>(fours),
        16 => fold::<16>(fours),
        32 => fold::<32>(fours),
        _ => fold::<64>(fours),
    }
}

#[inline(always)]
fn fold<const COUNT: usize>(fours: &[[f32; 4]]) -> f32 {
    let mut sums = [0.0; COUNT];
    for (sum, four) in sums.iter_mut().zip(fours) {
        *sum = (four[0] + four[1]) + (four[2] + four[3]);
    }
    let mut half = COUNT / 2;
    while half > 0 {
        for low in 0..half {
            sums[low] += sums[low + half];
        }
        half /= 2;
    }
    sums[0]
}

/// The codes at the start of a stream.
#[inline(always)]
fn unpack(stream: &[u8], bits: u32, codes: &mut [u32]) {
    match bits {
        2 => unpack_bytes::<4>(stream, codes),
        4 => unpack_bytes::<2>(stream, codes),
        8 => unpack_bytes::<1>(stream, codes),
        _ => {
            for (index, code) in codes.iter_mut().enumerate() {
                *code = bit_stream::get(stream, index, bits);
            }
        }
    }
}

/// Codes of which `COUNT` fill a byte.
#[inline(always)]
fn unpack_bytes<const COUNT: usize>(stream: &[u8], codes: &mut [u32]) {
    let bits = 8 / COUNT;
    let (groups, rest) = codes.as_chunks_mut::<COUNT>();
    let mask = (1u32 << bits) - 1;
    for (group, &byte) in groups.iter_mut().zip(stream) {
        for (position, code) in group.iter_mut().enumerate() {
            *code = u32::from(byte) >> (position * bits) & mask;
        }
    }
    for (position, code) in rest.iter_mut().enumerate() {
        *code = u32::from(stream[groups.len()]) >> (position * bits) & mask;
    }
}

/// Overwrites the codes at the start of a stream.
#[inline(always)]
fn pack(codes: &[u32], bits: u32, stream: &mut [u8]) {
    match bits {
        2 => pack_bytes::<4>(codes, stream),
        4 => pack_bytes::<2>(codes, stream),
        8 => pack_bytes::<1>(codes, stream),
        _ => {
            for (index, &code) in codes.iter().enumerate() {
                bit_stream::set(stream, index, bits, code);
            }
        }
    }
}

#[inline(always)]
fn pack_bytes<const COUNT: usize>(codes: &[u32], stream: &mut [u8]) {
    let bits = 8 / COUNT;
    // Runs of a known length, in which all bytes are made side by side.
    const RUN: usize = 64;
    let (runs, rest) = codes.as_chunks::<RUN>();
    let (whole, beyond) = stream.split_at_mut(runs.len() * RUN / COUNT);
    for (bytes, run) in whole.chunks_exact_mut(RUN / COUNT).zip(runs) {
        let mut pairs = [0; RUN / 2];
        for (pair, two) in pairs.iter_mut().zip(run.as_chunks::<2>().0) {
            *pair = if COUNT == 1 { two[0] } else { two[0] | two[1] << bits };
        }
        match COUNT {
            1 => bytes.iter_mut().zip(run).for_each(|(byte, &code)| *byte = code as u8),
            2 => bytes.iter_mut().zip(&pairs).for_each(|(byte, &pair)| *byte = pair as u8),
            _ => {
                for (byte, two) in bytes.iter_mut().zip(pairs.as_chunks::<2>().0) {
                    *byte = (two[0] | two[1] << (2 * bits)) as u8;
                }
            }
        }
    }
    // What lies beyond the last code stays zero, as in a fresh state.
    for (byte, group) in beyond.iter_mut().zip(rest.chunks(COUNT)) {
        let shifted = group.iter().enumerate().map(|(position, code)| code << (position * bits));
        *byte = shifted.fold(0, |byte, code| byte | code) as u8;
    }
}
