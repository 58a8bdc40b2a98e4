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
use super::blocks::{BlockCodec, Kept, Ready, Room, Span, TileMoments};
use super::grid::{self, rules};
use super::kernel::PREFETCH_ELEMENTS;
use super::random::BlockRandom;
use super::tiles::{self, Fours, Numbers, TILE, Tile, WordFours, block_of, blocks_of, of_four};
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::{Vectors, prefetch};

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
    const BY_FOURS: bool = true;

    #[inline(always)]
    fn block(&self) -> usize {
        self.options.block as usize
    }

    #[inline(always)]
    fn tile_block(&self) -> usize {
        self.options.mean_block as usize
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
        self.encode_second::<V>(span, room);
        match &mut self.first {
            FirstMut::Plain(own) => {
                for tile in tiles::tiles(0, span.count, self.options.mean_block as usize) {
                    let m = tiles::get::<V>(&room.first[tile.number]);
                    tiles::overwrite::<V>(true, m, own, span.start, tile);
                }
            }
            FirstMut::Codes { .. } => self.encode_first::<V>(span, room),
        }
    }
}

impl<const REPAIRED: bool> UState1QCodec<'_, REPAIRED> {
    fn shape(&self) -> grid::Shape {
        let UState1Q { block, mean_block, v_bits, .. } = self.options;
        grid::Shape { block: block as usize, tile_block: mean_block as usize, bits: v_bits }
    }

    /// Asks for the lines of an element's codes.
    #[inline(always)]
    fn prefetch(&self, element: usize) {
        if let FirstMut::Codes { codes, .. } = &self.first {
            prefetch(codes, element * CODE_BITS as usize / 8);
        }
        if let SecondMut::Codes { codes, .. } = &self.second {
            prefetch(codes, element * self.options.v_bits as usize / 8);
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

    /// Stores second moments, and leaves in their place what belongs to what they then are.
    #[inline(always)]
    fn encode_second<V: Vectors>(&mut self, span: Span, room: &mut Room<'_>) {
        let (shape, Span { start, count }) = (self.shape(), span);
        let Scalars { rms_scale, eps, .. } = self.scalars;
        let inverse_correction = self.block_scalars.inverse_correction;
        let unit = grid::Unit { inverse_correction, rms_scale, eps };
        *room.has_dead = true;
        match &mut self.second {
            SecondMut::Plain(own) => {
                for tile in tiles::tiles(0, count, shape.tile_block) {
                    let v = tiles::get::<V>(&room.second[tile.number]);
                    tiles::overwrite::<V>(true, v, own, start, tile);
                    let units = of_four!(|k| unit.of::<V, REPAIRED>(V::sqrt(v[k])));
                    tiles::put::<V>(units, &mut room.second[tile.number]);
                }
            }
            SecondMut::Codes { codes, endpoints } => {
                let first = 2 * block_of(start, shape.block);
                let ends = &mut endpoints[first..first + 2 * blocks_of(count, shape.block)];
                grid::endpoints::<V, REPAIRED>(shape, count, room, ends);
                let stream = &mut codes[start * shape.bits as usize / 8..];
                grid::encode::<V, REPAIRED>(
                    shape,
                    (ends, stream),
                    &unit,
                    (self.random, span),
                    room,
                );
            }
        }
    }

    #[inline(always)]
    fn encode_first<V: Vectors>(&mut self, span: Span, room: &mut Room<'_>) {
        let mut sums = Sums::<V> { pieces: [V::words(0); 2], live: 0 };
        self.encode_means::<V>(span, room, &mut sums);
        self.encode_codes::<V>(span, room, &mut sums);
        let [high, low] = sums.pieces;
        let pieces = [u64::from(V::total(high)), u64::from(V::total(low))];
        let square_sum = SquareSum { pieces };
        self.spread = self.spread.plus(Spread { square_sum, live: u64::from(sums.live) });
    }

    /// Stores the means of all blocks, and leaves normalised updates.
    #[inline(always)]
    fn encode_means<V: Vectors>(
        &mut self,
        Span { start, count }: Span,
        room: &mut Room<'_>,
        sums: &mut Sums<V>,
    ) {
        let FirstMut::Codes { means, .. } = &mut self.first else { return };
        let block = self.options.mean_block as usize;
        let zero = V::splat(0.0);
        for from in tiles::steps(0, count, block) {
            let mut four_sums = [0.0; TILE];
            let (mut live, mut sum) = (0, 0.0);
            let own = tiles::tiles(from, (from + block).min(count), block);
            for (number, tile) in own.enumerate() {
                room.ahead.ask();
                let mut q = tiles::get::<V>(&room.first[tile.number]);
                let units = live_units::<V>(&room.second[tile.number], tile);
                for k in 0..4 {
                    q[k] = V::mul(q[k], units[k]);
                    if REPAIRED {
                        q[k] = within::<V>(q[k], self.block_scalars.normalised_max);
                    }
                }
                live += if *room.has_dead {
                    let [a, b, c, d] = of_four!(|k| V::count(V::exceeds(units[k], zero)));
                    a + b + c + d
                } else {
                    tile.count() as u32
                };
                if let Some(is_first) = tiles::first::<V>(tile) {
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
                tiles::put::<V>(q, &mut room.first[tile.number]);
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
        Span { start, count }: Span,
        room: &mut Room<'_>,
        sums: &mut Sums<V>,
    ) {
        let FirstMut::Codes { codes, means, scales } = &mut self.first else { return };
        let block = self.options.mean_block as usize;
        let zero = V::splat(0.0);
        let inverse_quarter = V::splat(ustate::inverse(scales[1]) * 0.25);
        // Codes of second moments have drawn them.
        let has_dithers = matches!(self.second, SecondMut::Codes { .. });
        for tile in tiles::tiles(0, count, block) {
            room.ahead.ask();
            let at = start + tile.from;
            let mean = V::splat(bf16_to_f32(means[block_of(at, block)]));
            let q = tiles::get::<V>(&room.first[tile.number]);
            let dithers = if REPAIRED && has_dithers {
                tiles::get::<V>(&room.dithers[tile.number])
            } else {
                self.random.dithers::<V, REPAIRED>(at)
            };
            let mut distances: Fours<V> = of_four!(|k| V::sub(q[k], mean));
            let mut own: WordFours<V> =
                of_four!(|k| code::<V>(distances[k], inverse_quarter, dithers[k]));
            if *room.has_dead || !tile.is_whole() {
                let units = live_units::<V>(&room.second[tile.number], tile);
                let is_live = of_four!(|k| V::exceeds(units[k], zero));
                distances = of_four!(|k| V::choose(is_live[k], distances[k], zero));
                own = of_four!(|k| V::choose_words(is_live[k], own[k], V::words(0)));
            }
            sums.add(distances);
            let bytes = V::to_four_bytes(tiles::packed::<V, CODE_BITS>(own));
            tiles::store_bytes(&bytes, codes, at / 4, tile.count().div_ceil(4));
        }
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
fn live_units<V: Vectors>(units: &Numbers, tile: Tile) -> Fours<V> {
    let own = tiles::get::<V>(units);
    match tiles::first::<V>(tile) {
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

/// The sum of some codes, each of which is its lower bit and twice the upper one.
#[inline(always)]
fn sum_of_codes(bytes: &[u8]) -> u32 {
    let mut sum = 0;
    for from in tiles::steps(0, bytes.len(), 8) {
        let codes = u64::from_le_bytes(*tiles::bytes(bytes, from, &mut None));
        sum += codes.count_ones() + (codes & 0xAAAA_AAAA_AAAA_AAAA).count_ones();
    }
    sum
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
