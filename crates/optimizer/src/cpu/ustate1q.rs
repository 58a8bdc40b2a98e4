//! Blocks of `ustate1q`: 2-bit codes of the normalised update, second moments on grids of logarithms; or
//! either of them as f32.
//!
//! The square sum of all distances from means, which the scale of the next update comes
//! from, is exact, so it may be added up chunk by chunk in any order.

use formats::UState1Q;
use formats::one_q::{ZERO_MAX, is_zero};
use formats::ustate::{self, CODE_BITS, STEP_FACTOR, SquareSum};

use super::arrays::{FirstMut, SecondMut};
use super::blocks::{BlockCodec, Kept, Ready, Room, Span, TileMoments};
use super::firsts::{Firsts, Sums, within};
use super::grid::{self, rules};
use super::kernel::PREFETCH_ELEMENTS;
use super::levels::Unit;
use super::random::BlockRandom;
use super::tiles::{self, Fours, Numbers, TILE, Tile, WordFours, block_of, blocks_of, of_four};
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::{Vectors, prefetch};

/// The codec of a run of blocks; `REPAIRED` says by which rules, and `USUAL` whether of [`USUAL`] sizes, whose code has them
/// as constants.
pub(crate) struct UState1QCodec<'a, const REPAIRED: bool, const USUAL: bool> {
    pub(crate) options: UState1Q,
    pub(crate) first: FirstMut<'a>,
    pub(crate) second: SecondMut<'a>,
    pub(crate) scalars: Scalars,
    pub(crate) block_scalars: BlockScalars,
    pub(crate) random: BlockRandom,
    /// What encoding adds up.
    pub(crate) spread: Spread,
}

/// The usual sizes.
const USUAL: grid::Shape = grid::Shape { block: 128, tile_block: TILE, bits: 4 };

/// Whether options are of the usual sizes.
pub(crate) fn is_usual(options: UState1Q) -> bool {
    shape(options) == USUAL
}

fn shape(UState1Q { block, mean_block, v_bits, .. }: UState1Q) -> grid::Shape {
    grid::Shape { block: block as usize, tile_block: mean_block as usize, bits: v_bits }
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

impl<const REPAIRED: bool, const USUAL: bool> BlockCodec for UState1QCodec<'_, REPAIRED, USUAL> {
    const DECAYS_LAST: bool = false;
    const BY_FOURS: bool = true;

    #[inline(always)]
    fn block(&self) -> usize {
        self.shape().block
    }

    #[inline(always)]
    fn tile_block(&self) -> usize {
        self.shape().tile_block
    }

    #[inline(always)]
    fn prepare<V: Vectors>(&self, span: Span, room: &mut Room<'_>) {
        *room.has_dead = self.prepare_second::<V>(span, room);
        self.prepare_first::<V>(span, room);
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, start: usize, tile: Tile, ready: Ready<'_>) -> [Fours<V>; 2] {
        self.prefetch(start + tile.from + PREFETCH_ELEMENTS);
        let (r, v) = self.second::<V>(start, tile, ready);
        match &self.first {
            FirstMut::Plain(stored) => self.plain_first::<V>(start, tile, stored, v),
            FirstMut::Codes { codes, .. } => {
                let codes = first_codes::<V>(codes, start + tile.from);
                [self.first::<V>(tile, codes, [r, v], ready), v]
            }
        }
    }

    /// Moments, and how far second ones reach.
    #[inline(always)]
    fn keep<V: Vectors>(&self, moments: TileMoments<V>, to: Kept<'_>) {
        to.keep_with_extent::<V>(moments.m, moments.v);
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, span: Span, room: &mut Room<'_>) {
        let block = self.tile_block();
        let (random, shape, unit) = (self.random, self.shape(), self.unit());
        let mut second = Seconds { moments: &mut self.second, random, shape, unit };
        second.store::<V, REPAIRED>(span, room);
        match &mut self.first {
            FirstMut::Plain(own) => {
                for tile in tiles::tiles(0, span.count, block) {
                    let m = tiles::get::<V>(&room.first[tile.number]);
                    tiles::overwrite::<V>(true, m, own, span.start, tile);
                }
            }
            FirstMut::Codes { codes, means, scales } => {
                let mut first = Firsts::<V, REPAIRED> {
                    codes,
                    means,
                    block,
                    start: span.start,
                    normalised_max: self.block_scalars.normalised_max,
                    inverse_quarter: ustate::inverse(scales[1]) * 0.25,
                    sums: Sums::none(),
                };
                first.store(span.count, room);
                self.spread = self.spread.plus(first.spread());
            }
        }
    }
}

/// What stores second moments of a unit.
struct Seconds<'a, 'b> {
    moments: &'a mut SecondMut<'b>,
    random: BlockRandom,
    shape: grid::Shape,
    unit: Unit,
}

impl Seconds<'_, '_> {
    /// Stores them, and leaves in their place what belongs to what they then are, and dithers.
    #[inline(always)]
    fn store<V: Vectors, const REPAIRED: bool>(&mut self, span: Span, room: &mut Room<'_>) {
        let (shape, Span { start, count }) = (self.shape, span);
        *room.has_dead = true;
        match self.moments {
            SecondMut::Plain(own) => {
                for tile in tiles::tiles(0, count, shape.tile_block) {
                    let v = tiles::get::<V>(&room.second[tile.number]);
                    tiles::overwrite::<V>(true, v, own, start, tile);
                    let units = of_four!(|k| self.unit.of::<V, REPAIRED>(V::sqrt(v[k])));
                    tiles::put::<V>(units, &mut room.second[tile.number]);
                    let dithers = self.random.dithers::<V, REPAIRED>(start + tile.from);
                    tiles::put::<V>(dithers, &mut room.dithers[tile.number]);
                }
            }
            SecondMut::Codes { codes, endpoints } => {
                let first = 2 * block_of(start, shape.block);
                let ends = &mut endpoints[first..first + 2 * blocks_of(count, shape.block)];
                grid::endpoints::<V, REPAIRED>(shape, count, room, ends);
                let stream = &mut codes[start * shape.bits as usize / 8..];
                let draw = (self.random, span);
                grid::encode::<V, REPAIRED>(shape, (ends, stream), &self.unit, draw, room);
            }
        }
    }
}

impl<const REPAIRED: bool, const USUAL: bool> UState1QCodec<'_, REPAIRED, USUAL> {
    #[inline(always)]
    fn shape(&self) -> grid::Shape {
        if USUAL { self::USUAL } else { shape(self.options) }
    }

    #[inline(always)]
    fn unit(&self) -> Unit {
        let Scalars { rms_scale, eps, .. } = self.scalars;
        Unit { inverse_correction: self.block_scalars.inverse_correction, rms_scale, eps }
    }

    /// Asks for the lines of an element's codes.
    #[inline(always)]
    fn prefetch(&self, element: usize) {
        if let FirstMut::Codes { codes, .. } = &self.first {
            prefetch(codes, element * CODE_BITS as usize / 8);
        }
        if let SecondMut::Codes { codes, .. } = &self.second {
            prefetch(codes, element * self.shape().bits as usize / 8);
        }
    }

    /// Makes ready to decode second moments; returns whether an element may be without a first moment.
    #[inline(always)]
    fn prepare_second<V: Vectors>(&self, Span { start, count }: Span, room: &mut Room<'_>) -> bool {
        match &self.second {
            SecondMut::Plain(stored) => {
                stored[start..start + count].iter().any(|&v| is_zero(v, rules::<REPAIRED>()))
            }
            SecondMut::Codes { codes, endpoints } => {
                let shape = self.shape();
                let endpoints = &endpoints[2 * block_of(start, shape.block)..];
                let stream = &codes[start * shape.bits as usize / 8..];
                let (roots, tables) = (&mut *room.dithers, &mut *room.tables);
                grid::prepare::<V, REPAIRED>(shape, (endpoints, stream), count, roots, tables)
            }
        }
    }

    /// Roots of the second moments of a tile, and these.
    #[inline(always)]
    fn second<V: Vectors>(
        &self,
        start: usize,
        tile: Tile,
        ready: Ready<'_>,
    ) -> (Fours<V>, Fours<V>) {
        match &self.second {
            SecondMut::Plain(stored) => {
                let v = V::fours(tiles::numbers(stored, start, tile, &mut None));
                (of_four!(|k| V::sqrt(v[k])), v)
            }
            SecondMut::Codes { codes, .. } => {
                let shape = self.shape();
                let stream = &codes[start * shape.bits as usize / 8..];
                let r = grid::roots_of::<V>(shape, stream, tile, ready.roots, ready.tables);
                (r, of_four!(|k| V::mul(r[k], r[k])))
            }
        }
    }

    /// Leaves what [`ustate::offset`] is for each mean block, in units of the root.
    #[inline(always)]
    fn prepare_first<V: Vectors>(&self, Span { start, count }: Span, room: &mut Room<'_>) {
        let FirstMut::Codes { codes, means, scales } = &self.first else { return };
        let (block, has_dead) = (self.tile_block(), *room.has_dead);
        let (scale, common) = (self.common() * scales[0], V::splat(self.common()));
        let mut means = &means[block_of(start, block)..];
        if USUAL && !has_dead && count == 16 * TILE {
            let bytes = codes[start / 4..].first_chunk().expect("a whole unit");
            let own = means.first_chunk().expect("a mean for each block");
            let own = V::load_words(&own.map(u32::from));
            let code_means = V::mul(V::counted(sums_of_codes::<V>(bytes)), V::splat(1.0 / 64.0));
            let mean = V::float(V::shl::<16>(own));
            let offset = V::fused(V::splat(-scale), code_means, V::mul(common, mean));
            let offset = V::sub(offset, V::splat(4.0 * scale));
            V::store(offset, &mut room.units.as_chunks_mut().0[0]);
            return;
        }
        for from in tiles::steps(0, count, 16 * block) {
            let (mut lives, mut sums, mut bits) = ([1; 16], [0; 16], [0; 16]);
            for (number, from) in
                tiles::steps(from, count.min(from + 16 * block), block).enumerate()
            {
                let to = (from + block).min(count);
                (lives[number], sums[number]) = if has_dead {
                    let (_, ready) = room.split(0, 0);
                    self.live_codes::<V>(start, (from, to), codes, ready)
                } else {
                    let bytes = &codes[(start + from) / 4..(start + to).div_ceil(4)];
                    ((to - from) as u32, sum_of_codes(bytes))
                };
            }
            let (own, rest) = means.split_at(means.len().min(16));
            means = rest;
            for (bits, &mean) in bits.iter_mut().zip(own) {
                *bits = u32::from(mean) << 16;
            }
            let lives = V::counted(V::load_words(&lives));
            let code_means = V::div(V::counted(V::load_words(&sums)), lives);
            let (zero, mean) = (V::splat(0.0), V::float(V::load_words(&bits)));
            let code_means = V::choose(V::exceeds(lives, zero), code_means, zero);
            let offset = V::fused(V::splat(-scale), code_means, V::mul(common, mean));
            let offset = V::sub(offset, V::splat(4.0 * scale));
            V::store(offset, &mut room.units.as_chunks_mut().0[block_of(from, 16 * block)]);
        }
    }

    /// The unit of all elements but for the root, which is taken into scale, mean and bound.
    #[inline(always)]
    fn common(&self) -> f32 {
        let block = &self.block_scalars;
        if REPAIRED { block.correction_before * block.rms_scale_before } else { 1.0 }
    }

    /// How many elements have a first moment, and the sum of their codes.
    #[inline(always)]
    fn live_codes<V: Vectors>(
        &self,
        start: usize,
        (from, to): (usize, usize),
        codes: &[u8],
        ready: Ready<'_>,
    ) -> (u32, u32) {
        let (mut live, mut code_sum) = (0, 0);
        for tile in tiles::tiles(from, to, self.tile_block()) {
            let (_, v) = self.second::<V>(start, tile, ready);
            let (codes, is_first) =
                (first_codes::<V>(codes, start + tile.from), tiles::flags::<V>(tile));
            for k in 0..4 {
                // One more from bit 16 on for each that is live.
                let counted = V::or(V::and(codes[k], V::words(3)), V::words(1 << 16));
                let kept = V::choose_words(is_live::<V, REPAIRED>(v[k]), counted, V::words(0));
                let sum = V::total(V::choose_words(is_first[k], kept, V::words(0)));
                (live, code_sum) = (live + (sum >> 16), code_sum + (sum & 0xFFFF));
            }
        }
        (live, code_sum)
    }

    /// The first moments of a tile, given their codes, and roots and squares of second ones.
    #[inline(always)]
    fn first<V: Vectors>(
        &self,
        tile: Tile,
        codes: WordFours<V>,
        [r, v]: [Fours<V>; 2],
        ready: Ready<'_>,
    ) -> Fours<V> {
        let FirstMut::Codes { scales, .. } = &self.first else { return r };
        let lowest = V::splat(ready.units[block_of(tile.from, self.tile_block())]);
        let scale = V::splat(self.common() * scales[0]);
        let mut values = V::fused(V::load(&ABOVE_CODES), scale, lowest);
        if REPAIRED {
            let bound = self.common() * self.block_scalars.normalised_max_before;
            values = within::<V>(values, bound);
        }
        let m: Fours<V> =
            of_four!(|k| V::mul(V::look_up(values, codes[k]), self.decode_unit::<V>(r[k])));
        if !ready.has_dead {
            return m;
        }
        let zero = V::splat(0.0);
        of_four!(|k| V::choose(is_live::<V, REPAIRED>(v[k]), m[k], zero))
    }

    /// The moments of a tile whose first ones are stored as they are.
    #[inline(always)]
    fn plain_first<V: Vectors>(
        &self,
        start: usize,
        tile: Tile,
        stored: &[f32],
        v: Fours<V>,
    ) -> [Fours<V>; 2] {
        let m = V::fours(tiles::numbers(stored, start, tile, &mut None));
        if !REPAIRED {
            return [m, v];
        }
        let inverse_ratio_max = V::splat(self.block_scalars.inverse_ratio_max_before);
        let v = of_four!(|k| {
            // Where exact moments could have m beside it.
            let root = V::mul(m[k], inverse_ratio_max);
            V::max(V::mul(root, root), v[k])
        });
        [m, v]
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
}

/// Whether an element with this second moment has a first one.
#[inline(always)]
fn is_live<V: Vectors, const REPAIRED: bool>(v: V::Floats) -> V::Flags {
    V::exceeds(v, V::splat(if REPAIRED { ZERO_MAX } else { -1.0 }))
}

/// The codes of a tile from an element on, in the lower two bits.
#[inline(always)]
fn first_codes<V: Vectors>(codes: &[u8], element: usize) -> WordFours<V> {
    let own = V::four_bytes(tiles::bytes(codes, element / 4, &mut None));
    [own, V::shr::<2>(own), V::shr::<4>(own), V::shr::<6>(own)]
}

/// A number for each code, in the lower two bits of a place: 4 more than it.
const ABOVE_CODES: [f32; 16] =
    [4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0];

/// The sums of codes of sixteen blocks of a tile each.
#[inline(always)]
fn sums_of_codes<V: Vectors>(bytes: &[u8; 4 * TILE]) -> V::Words {
    let words: Numbers = bytemuck::cast(*bytes);
    // A word of each block in each vector.
    let [a, b, c, d] = V::fours(&words);
    let [pairs, nibbles] = [V::words(0x3333_3333), V::words(0x0F0F_0F0F)];
    // Of two codes, up to 6; of four, up to 12; of eight, up to 24.
    let [a, b, c, d] = [V::bits(a), V::bits(b), V::bits(c), V::bits(d)];
    let low = V::plus(halves_added::<V, 2>(a, pairs), halves_added::<V, 2>(b, pairs));
    let high = V::plus(halves_added::<V, 2>(c, pairs), halves_added::<V, 2>(d, pairs));
    let sums = V::plus(halves_added::<V, 4>(low, nibbles), halves_added::<V, 4>(high, nibbles));
    // Bytes of up to 48, whose sum is the upper one of a product.
    let sums = V::shr::<24>(V::times(sums, V::words(0x0101_0101)));
    V::load_words(&V::to_four_words(sums))
}

/// Numbers of so many bits, the even and the odd ones of a word added.
#[inline(always)]
fn halves_added<V: Vectors, const BITS: u32>(x: V::Words, mask: V::Words) -> V::Words {
    V::plus(V::and(x, mask), V::and(V::shr::<BITS>(x), mask))
}

/// The sum of some codes, each of which is its lower bit and twice the upper one.
#[inline(always)]
fn sum_of_codes(bytes: &[u8]) -> u32 {
    let count = |codes: u64| codes.count_ones() + (codes & 0xAAAA_AAAA_AAAA_AAAA).count_ones();
    if let ([first, second], []) = bytes.as_chunks::<8>() {
        return count(u64::from_le_bytes(*first)) + count(u64::from_le_bytes(*second));
    }
    let mut sum = 0;
    for from in tiles::steps(0, bytes.len(), 8) {
        sum += count(u64::from_le_bytes(*tiles::bytes(bytes, from, &mut None)));
    }
    sum
}
