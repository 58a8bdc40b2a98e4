//! Blocks of `ustate1q`: 2-bit codes of the normalised update, second moments on grids of logarithms; or
//! either of them as f32.
//!
//! The square sum of all distances from means, which the scale of the next update comes
//! from, is exact, so it may be added up chunk by chunk in any order.

use formats::UState1Q;
use formats::half_floats::{bf16_nearest, bf16_to_f32};
use formats::one_q::{ZERO_MAX, is_zero};
use formats::ustate::{
    self, CODE_BITS, CODES_BELOW_FOUR, HIGH_COUNTER, LOW_COUNTER, SQUARES_MAX, STEP_FACTOR,
    SquareSum,
};

use super::arrays::{FirstMut, SecondMut};
use super::blocks::{BlockCodec, MomentRuns, Room, Span};
use super::grid::{self, rules};
use super::random::BlockRandom;
use super::tiles::{self, Fours, TILE, WordFours, block_of, blocks_of, of_four, tile_of};
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
    fn decode<V: Vectors>(
        &self,
        Span { start, count }: Span,
        m: &mut [f32],
        v: &mut [f32],
        room: &mut Room<'_>,
    ) {
        let has_dead = self.decode_second::<V>(Span { start, count }, v, room);
        match &self.first {
            FirstMut::Plain(stored) => {
                m[..count].copy_from_slice(&stored[start..start + count]);
                if REPAIRED {
                    for (m, v) in m.iter().zip(v) {
                        let root = m * self.block_scalars.inverse_ratio_max_before;
                        // Where exact moments could have m beside it.
                        *v = if root * root > *v { root * root } else { *v };
                    }
                }
            }
            FirstMut::Codes { .. } => {
                let block = self.options.mean_block as usize;
                for from in tiles::steps(0, count, block) {
                    let place = (start, from, (from + block).min(count));
                    self.decode_block::<V>(place, has_dead, v, room.units, m);
                }
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>) {
        let MomentRuns { m, v, .. } = moments;
        self.encode_second::<V>(start, v, room);
        match &mut self.first {
            FirstMut::Plain(own) => own[start..start + m.len()].copy_from_slice(m),
            FirstMut::Codes { .. } => self.encode_first::<V>(start, m, room),
        }
    }
}

impl<const REPAIRED: bool> UState1QCodec<'_, REPAIRED> {
    fn shape(&self) -> grid::Shape {
        let UState1Q { block, mean_block, v_bits, .. } = self.options;
        grid::Shape { block: block as usize, tile: tile_of(mean_block as usize), bits: v_bits }
    }

    /// Second moments, and in units their roots; returns whether an element may be without a first moment.
    #[inline(always)]
    fn decode_second<V: Vectors>(
        &self,
        Span { start, count }: Span,
        v: &mut [f32],
        room: &mut Room<'_>,
    ) -> bool {
        let shape = self.shape();
        match &self.second {
            SecondMut::Plain(stored) => {
                v[..count].copy_from_slice(&stored[start..start + count]);
                let mut has_dead = false;
                for from in tiles::steps(0, count, shape.tile) {
                    let to = from + shape.tile;
                    let own = tiles::load::<V>(v, from, to);
                    tiles::put::<V>(of_four!(|k| V::sqrt(own[k])), room.units, from, to);
                    let own = &v[from..to.min(count)];
                    has_dead |= own.iter().any(|&v| is_zero(v, rules::<REPAIRED>()));
                }
                has_dead
            }
            SecondMut::Codes { codes, endpoints } => {
                let endpoints = &endpoints[2 * block_of(start, shape.block)..];
                let stream = &codes[start * shape.bits as usize / 8..];
                let to = (v, &mut *room.units);
                grid::decode::<V, REPAIRED>(shape, (endpoints, stream), count, to, room.tables)
            }
        }
    }

    /// One mean block, which begins at an element of the unit at `start` and ends at another.
    #[inline(always)]
    fn decode_block<V: Vectors>(
        &self,
        (start, from, to): (usize, usize, usize),
        has_dead: bool,
        v: &[f32],
        roots: &[f32],
        m: &mut [f32],
    ) {
        let FirstMut::Codes { codes, means, scales } = &self.first else { return };
        let mean = bf16_to_f32(means[block_of(start + from, self.options.mean_block as usize)]);
        let tile = tile_of(self.options.mean_block as usize);
        let zero_max = V::splat(if REPAIRED { ZERO_MAX } else { -1.0 });
        let (mut live, mut code_sum) = (0, 0);
        if has_dead {
            for at in tiles::steps(from, to, tile) {
                let own = V::four_bytes(&tiles::bytes(codes, (start + at) / 4));
                let count = (at + tile).min(to) - at;
                let v = tiles::load::<V>(v, at, at + count);
                let is_first = tiles::flags::<V>(count);
                let codes: WordFours<V> =
                    [own, V::shr::<2>(own), V::shr::<4>(own), V::shr::<6>(own)];
                for k in 0..4 {
                    // One more from bit 16 on for each that is live.
                    let counted = V::or(V::and(codes[k], V::words(3)), V::words(1 << 16));
                    let kept = V::choose_words(V::exceeds(v[k], zero_max), counted, V::words(0));
                    let sum = V::total(V::choose_words(is_first[k], kept, V::words(0)));
                    (live, code_sum) = (live + (sum >> 16), code_sum + (sum & 0xFFFF));
                }
            }
        } else {
            let bytes = &codes[(start + from) / 4..(start + to).div_ceil(4)];
            (live, code_sum) = ((to - from) as u32, sum_of_codes(bytes));
        }
        let code_mean = if live == 0 { 0.0 } else { code_sum as f32 / live as f32 };
        let block = &self.block_scalars;
        // The unit of all elements but for the root is taken into scale, mean and bound.
        let common = if REPAIRED { block.correction_before * block.rms_scale_before } else { 1.0 };
        let (scale, bound) = (common * scales[0], common * block.normalised_max_before);
        let lowest = ustate::offset(scale, code_mean, common * mean);
        let values = V::fused(V::load(&ABOVE_CODES), V::splat(scale), V::splat(lowest));
        let values = if REPAIRED { within::<V>(values, bound) } else { values };
        for at in tiles::steps(from, to, tile) {
            let own = V::four_bytes(&tiles::bytes(codes, (start + at) / 4));
            let end = at + tile;
            let roots = tiles::get::<V>(roots, at, end);
            let codes: WordFours<V> = [own, V::shr::<2>(own), V::shr::<4>(own), V::shr::<6>(own)];
            let mut moments = roots;
            for k in 0..4 {
                let q = V::look_up(values, codes[k]);
                moments[k] = V::mul(q, self.decode_unit::<V>(roots[k]));
            }
            if has_dead {
                let v = tiles::load::<V>(v, at, end);
                for k in 0..4 {
                    moments[k] = V::choose(V::exceeds(v[k], zero_max), moments[k], V::splat(0.0));
                }
            }
            tiles::store::<V>(moments, m, at, end);
        }
    }

    /// What a normalised update is multiplied by, in the published format after all of it is rounded.
    #[inline(always)]
    fn decode_unit<V: Vectors>(&self, root: V::Floats) -> V::Floats {
        if REPAIRED {
            return root;
        }
        let block = &self.block_scalars;
        let unit = V::fused(root, V::splat(block.rms_scale_before), V::splat(self.scalars.eps));
        V::mul(V::splat(block.correction_before), unit)
    }

    /// Stores second moments, and leaves in units what belongs to what they then are.
    #[inline(always)]
    fn encode_second<V: Vectors>(&mut self, start: usize, v: &[f32], room: &mut Room<'_>) {
        let shape = self.shape();
        let Scalars { rms_scale, eps, .. } = self.scalars;
        let inverse_correction = self.block_scalars.inverse_correction;
        let unit = grid::Unit { inverse_correction, rms_scale, eps };
        match &mut self.second {
            SecondMut::Plain(own) => {
                own[start..start + v.len()].copy_from_slice(v);
                for from in tiles::steps(0, v.len(), shape.tile) {
                    let to = (from + shape.tile).min(v.len());
                    let own = tiles::load::<V>(v, from, to);
                    let units = of_four!(|k| unit.of::<V, REPAIRED>(V::sqrt(own[k])));
                    tiles::put::<V>(units, room.units, from, to);
                }
            }
            SecondMut::Codes { codes, endpoints } => {
                let first = 2 * block_of(start, shape.block);
                let ends = &mut endpoints[first..first + 2 * blocks_of(v.len(), shape.block)];
                grid::endpoints::<V, REPAIRED>(shape.block, v, ends);
                let stream = &mut codes[start * shape.bits as usize / 8..];
                let draw = (self.random, start);
                grid::encode::<V, REPAIRED>(shape, (ends, stream), &unit, draw, v, room);
            }
        }
    }

    #[inline(always)]
    fn encode_first<V: Vectors>(&mut self, start: usize, m: &[f32], room: &mut Room<'_>) {
        let mut sums = Sums::<V> { pieces: [V::words(0); 2], live: 0 };
        self.encode_means::<V>(start, m, room, &mut sums);
        self.encode_codes::<V>(start, m.len(), room, &mut sums);
        let [high, low] = sums.pieces;
        let pieces = [u64::from(V::total(high)), u64::from(V::total(low))];
        let square_sum = SquareSum { pieces };
        self.spread = self.spread.plus(Spread { square_sum, live: u64::from(sums.live) });
    }

    /// Stores the means of all blocks, and leaves normalised updates.
    #[inline(always)]
    fn encode_means<V: Vectors>(
        &mut self,
        start: usize,
        m: &[f32],
        room: &mut Room<'_>,
        sums: &mut Sums<V>,
    ) {
        let FirstMut::Codes { means, .. } = &mut self.first else { return };
        let block = self.options.mean_block as usize;
        let (tile, zero) = (tile_of(block), V::splat(0.0));
        for from in tiles::steps(0, m.len(), block) {
            let to = (from + block).min(m.len());
            let mut four_sums = [0.0; TILE];
            let (mut live, mut sum) = (0, 0.0);
            for (number, at) in tiles::steps(from, to, tile).enumerate() {
                let end = (at + tile).min(to);
                let (own_m, units) =
                    (tiles::load::<V>(m, at, end), live_units::<V>(room.units, at, end));
                let mut q = own_m;
                for k in 0..4 {
                    q[k] = V::mul(own_m[k], units[k]);
                    if REPAIRED {
                        q[k] = within::<V>(q[k], self.block_scalars.normalised_max);
                    }
                    live += V::count(V::exceeds(units[k], zero));
                }
                if let Some(is_first) = tiles::first::<V>(end - at) {
                    q = of_four!(|k| V::choose(is_first[k], q[k], zero));
                }
                let own = V::add(V::add(q[0], q[1]), V::add(q[2], q[3]));
                if block == TILE {
                    sum = V::tree_sum(own);
                } else {
                    V::store(
                        V::float(V::load_words(&V::to_four_words(V::bits(own)))),
                        &mut four_sums.as_chunks_mut().0[number],
                    );
                }
                tiles::put::<V>(q, room.quotients, at, end);
            }
            if block != TILE {
                sum = tree_sum(&mut four_sums[..block / 4]);
            }
            let mean = if live == 0 { 0 } else { bf16_nearest(sum / live as f32) };
            means[block_of(start + from, block)] = mean;
            sums.live += live;
        }
    }

    /// Stores the codes of all elements.
    #[inline(always)]
    fn encode_codes<V: Vectors>(
        &mut self,
        start: usize,
        count: usize,
        room: &mut Room<'_>,
        sums: &mut Sums<V>,
    ) {
        let FirstMut::Codes { codes, means, scales } = &mut self.first else { return };
        let block = self.options.mean_block as usize;
        let (tile, zero) = (tile_of(block), V::splat(0.0));
        let inverse_quarter = V::splat(ustate::inverse(scales[1]) * 0.25);
        // Codes of second moments have drawn them.
        let has_dithers = matches!(self.second, SecondMut::Codes { .. });
        for at in tiles::steps(0, count, tile) {
            let end = (at + tile).min(count);
            let mean = V::splat(bf16_to_f32(means[block_of(start + at, block)]));
            let units = live_units::<V>(room.units, at, end);
            let q = tiles::get::<V>(room.quotients, at, end);
            let dithers = if REPAIRED && has_dithers {
                tiles::get::<V>(room.dithers, at, end)
            } else {
                self.random.dithers::<V, REPAIRED>(start + at)
            };
            let (mut distances, mut own): (Fours<V>, WordFours<V>) = (q, [V::words(0); 4]);
            for k in 0..4 {
                let is_live = V::exceeds(units[k], zero);
                distances[k] = V::choose(is_live, V::sub(q[k], mean), zero);
                let code = code::<V>(distances[k], inverse_quarter, dithers[k]);
                own[k] = V::choose_words(is_live, code, V::words(0));
            }
            sums.add(distances);
            let bytes = V::to_four_bytes(tiles::packed::<V, CODE_BITS>(own));
            tiles::store_bytes(bytes, codes, (start + at) / 4, (end - at).div_ceil(4));
        }
    }
}

/// A number for each code, in the lower two bits of a place: 4 more than it.
const ABOVE_CODES: [f32; 16] =
    [4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0];

/// What a unit adds to the spread.
struct Sums<V: Vectors> {
    /// A unit has less than a thousand fours, so they fit.
    pieces: [V::Words; 2],
    live: u32,
}

impl<V: Vectors> Sums<V> {
    /// The pieces of the squares of four neighbours together, as [`SquareSum::pieces_of`] has them.
    #[inline(always)]
    fn add(&mut self, [a, b, c, d]: Fours<V>) {
        let squares = V::fused(d, d, V::fused(c, c, V::fused(b, b, V::mul(a, a))));
        let bounded = V::max(V::min(squares, V::splat(SQUARES_MAX)), V::splat(0.0));
        let (high_counter, low_counter) = (V::splat(HIGH_COUNTER), V::splat(LOW_COUNTER));
        let counted = V::add(bounded, high_counter);
        let nearest = V::sub(counted, high_counter);
        // Rounded to nearest where it should be rounded down.
        let is_above = V::exceeds(nearest, bounded);
        let below = V::sub(nearest, V::splat(1.0 / 256.0));
        let rest = V::sub(bounded, V::choose(is_above, below, nearest));
        let one = V::choose_words(is_above, V::words(1), V::words(0));
        let high = V::minus(V::minus(V::bits(counted), V::bits(high_counter)), one);
        let low = V::minus(V::bits(V::add(rest, low_counter)), V::bits(low_counter));
        self.pieces = [V::plus(self.pieces[0], high), V::plus(self.pieces[1], low)];
    }
}

/// The units of a tile; zero beyond its elements.
#[inline(always)]
fn live_units<V: Vectors>(units: &[f32], at: usize, end: usize) -> Fours<V> {
    let own = tiles::get::<V>(units, at, end);
    match tiles::first::<V>(end - at) {
        None => own,
        Some(is_first) => of_four!(|k| V::choose(is_first[k], own[k], V::splat(0.0))),
    }
}

/// As [`ustate::code`], given a quarter of the inverse of the scale.
#[inline(always)]
fn code<V: Vectors>(
    distance: V::Floats,
    inverse_quarter: V::Floats,
    dither: V::Floats,
) -> V::Words {
    let middle = V::fused(dither, V::splat(0.25), V::splat(0.375));
    let quarter = V::fused(distance, inverse_quarter, middle);
    let quarter = V::min(V::max(quarter, V::splat(0.0)), V::splat(1.0));
    V::whole(V::mul(quarter, V::splat(CODES_BELOW_FOUR)))
}

/// What lies beyond a bound, moved there.
#[inline(always)]
fn within<V: Vectors>(x: V::Floats, bound: f32) -> V::Floats {
    V::max(V::min(x, V::splat(bound)), V::splat(-bound))
}

/// The sum of some codes: of pairs, of bytes, of all.
#[inline(always)]
fn sum_of_codes(bytes: &[u8]) -> u32 {
    let mut sum = 0;
    for from in tiles::steps(0, bytes.len(), 16) {
        let [low, high]: [u64; 2] = bytemuck::cast(tiles::bytes::<16>(bytes, from));
        let sums = sums_in_bytes(low) + sums_in_bytes(high);
        sum += (sums.wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32;
    }
    sum
}

#[inline(always)]
fn sums_in_bytes(word: u64) -> u64 {
    let pairs = (word & 0x3333_3333_3333_3333) + (word >> 2 & 0x3333_3333_3333_3333);
    (pairs & 0x0F0F_0F0F_0F0F_0F0F) + (pairs >> 4 & 0x0F0F_0F0F_0F0F_0F0F)
}

/// A sum by halves.
#[inline(always)]
fn tree_sum(sums: &mut [f32]) -> f32 {
    let mut half = sums.len() / 2;
    while half > 0 {
        for low in 0..half {
            sums[low] += sums[low + half];
        }
        half /= 2;
    }
    sums[0]
}
