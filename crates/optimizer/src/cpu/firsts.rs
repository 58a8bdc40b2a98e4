//! First moments of `ustate1q` as they are stored: means of normalised updates, and what is left of these in codes.

use formats::half_floats::{bf16_nearest, bf16_to_f32};
use formats::ustate::{
    CODE_BITS, CODES_BELOW_FOUR, HIGH_COUNTER, LOW_COUNTER, SQUARES_MAX, SquareSum,
};

use super::blocks::Room;
use super::tiles::{self, Fours, Numbers, TILE, Tile, WordFours, block_of, blocks_of, of_four};
use super::ustate1q::Spread;
use crate::simd::Vectors;

/// The codes and the means of a run, and what stores those of a unit.
pub(crate) struct Firsts<'a, V: Vectors, const REPAIRED: bool> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) means: &'a mut [u16],
    /// Elements of a mean.
    pub(crate) block: usize,
    /// The first element of the unit.
    pub(crate) start: usize,
    pub(crate) normalised_max: f32,
    /// A quarter of the inverse of the scale.
    pub(crate) inverse_quarter: f32,
    pub(crate) sums: Sums<V>,
}

/// What a unit adds to the spread.
pub(crate) struct Sums<V: Vectors> {
    /// A unit has less than a thousand fours, so they fit.
    pieces: [V::Words; 2],
    live: u32,
}

impl<V: Vectors, const REPAIRED: bool> Firsts<'_, V, REPAIRED> {
    /// Stores means and codes of all blocks of a unit, given what belongs to second moments in their place, and dithers: means
    /// first, since each is waited for.
    #[inline(always)]
    pub(crate) fn store(&mut self, count: usize, room: &mut Room<'_>) {
        if REPAIRED && self.block == TILE {
            for from in tiles::steps(0, count, 16 * TILE) {
                self.store_sixteen_means(from, count.min(from + 16 * TILE), room);
            }
        } else {
            for from in tiles::steps(0, count, self.block) {
                self.store_mean(from, count.min(from + self.block), room);
            }
        }
        self.store_codes(count, room);
    }

    /// The means of up to sixteen blocks that are tiles.
    #[inline(always)]
    fn store_sixteen_means(&mut self, from: usize, to: usize, room: &mut Room<'_>) {
        let (mut sums, mut lives) = ([[0.0; 16]; 16], [TILE as u32; 16]);
        let (mut ahead, has_dead) = (*room.ahead, *room.has_dead);
        let (first, own) = (block_of(from, TILE), tiles::tiles(from, to, TILE));
        for (sum, tile) in sums.iter_mut().zip(own) {
            ahead.ask();
            let (q, units) = self.quotients(tile, room);
            V::store(fours_of::<V>(q), sum);
            if has_dead || !tile.is_whole() {
                lives[tile.number - first] = live_of::<V>(tile, units, has_dead);
            }
        }
        *room.ahead = ahead;
        let blocks = blocks_of(to - from, TILE);
        self.sums.live += lives[..blocks].iter().sum::<u32>();
        let lives = V::load_words(&lives);
        let is_live = V::is_below(V::words(0), lives);
        let mean = V::div(V::tree_sums(&sums), V::counted(lives));
        // To the nearest bf16, of finite numbers.
        let bits = V::bits(V::choose(is_live, mean, V::splat(0.0)));
        let odd = V::and(V::shr::<16>(bits), V::words(1));
        let rounded = V::shr::<16>(V::plus(V::plus(bits, V::words(0x7FFF)), odd));
        let units = &mut room.units.as_chunks_mut().0[block_of(from, 16 * TILE)];
        V::store(V::float(V::shl::<16>(rounded)), units);
        let means = &mut self.means[block_of(self.start + from, TILE)..][..blocks];
        for (mean, unit) in means.iter_mut().zip(units) {
            *mean = (unit.to_bits() >> 16) as u16;
        }
    }

    /// The mean of any block.
    #[inline(always)]
    fn store_mean(&mut self, from: usize, to: usize, room: &mut Room<'_>) {
        let mut sums = [0.0; TILE];
        let mut live = 0;
        for (number, tile) in tiles::tiles(from, to, self.block).enumerate() {
            room.ahead.ask();
            let (q, units) = self.quotients(tile, room);
            live += live_of::<V>(tile, units, *room.has_dead);
            let fours = V::to_four_words(V::bits(fours_of::<V>(q)));
            sums.as_chunks_mut().0[number] = fours.map(f32::from_bits);
        }
        let sum = tree_sum(&mut sums[..self.block / 4]);
        let mean = if live == 0 { 0 } else { bf16_nearest(sum / live as f32) };
        self.means[block_of(self.start + from, self.block)] = mean;
        room.units[block_of(from, self.block)] = bf16_to_f32(mean);
        self.sums.live += live;
    }

    /// Normalised updates of a tile, which are left in place of first moments, and what they came by.
    #[inline(always)]
    fn quotients(&self, tile: Tile, room: &mut Room<'_>) -> (Fours<V>, Fours<V>) {
        let units = live_units::<V>(&room.second[tile.number], tile);
        let m = tiles::get::<V>(&room.first[tile.number]);
        let mut q: Fours<V> = of_four!(|k| V::mul(m[k], units[k]));
        if REPAIRED {
            q = of_four!(|k| within::<V>(q[k], self.normalised_max));
        }
        tiles::put::<V>(q, &mut room.first[tile.number]);
        (q, units)
    }

    #[inline(always)]
    fn store_codes(&mut self, count: usize, room: &mut Room<'_>) {
        let (zero, inverse_quarter) = (V::splat(0.0), V::splat(self.inverse_quarter));
        let (mut ahead, has_dead) = (*room.ahead, *room.has_dead);
        for tile in tiles::tiles(0, count, self.block) {
            ahead.ask();
            let q = tiles::get::<V>(&room.first[tile.number]);
            let dithers = tiles::get::<V>(&room.dithers[tile.number]);
            let mean = V::splat(room.units[block_of(tile.from, self.block)]);
            let mut distances: Fours<V> = of_four!(|k| V::sub(q[k], mean));
            let mut own: WordFours<V> =
                of_four!(|k| code::<V>(distances[k], inverse_quarter, dithers[k]));
            if has_dead || !tile.is_whole() {
                let units = live_units::<V>(&room.second[tile.number], tile);
                let is_live = of_four!(|k| V::exceeds(units[k], zero));
                distances = of_four!(|k| V::choose(is_live[k], distances[k], zero));
                own = of_four!(|k| V::choose_words(is_live[k], own[k], V::words(0)));
            }
            self.sums.add(distances);
            let bytes = V::to_four_bytes(tiles::packed::<V, CODE_BITS>(own));
            let at = (self.start + tile.from) / 4;
            tiles::store_bytes(&bytes, self.codes, at, tile.count().div_ceil(4));
        }
        *room.ahead = ahead;
    }

    /// What was found.
    pub(crate) fn spread(&self) -> Spread {
        let pieces = self.sums.pieces.map(|piece| u64::from(V::total(piece)));
        Spread { square_sum: SquareSum { pieces }, live: u64::from(self.sums.live) }
    }
}

impl<V: Vectors> Sums<V> {
    /// Those of nothing.
    #[inline(always)]
    pub(crate) fn none() -> Sums<V> {
        Sums { pieces: [V::words(0); 2], live: 0 }
    }

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

/// The sum of each four of a tile.
#[inline(always)]
fn fours_of<V: Vectors>(q: Fours<V>) -> V::Floats {
    V::add(V::add(q[0], q[1]), V::add(q[2], q[3]))
}

/// How many elements of a tile have a first moment.
#[inline(always)]
fn live_of<V: Vectors>(tile: Tile, units: Fours<V>, has_dead: bool) -> u32 {
    if !has_dead {
        return tile.count() as u32;
    }
    let [a, b, c, d] = of_four!(|k| V::count(V::exceeds(units[k], V::splat(0.0))));
    a + b + c + d
}

/// As [`formats::ustate::code`], given a quarter of the inverse of the scale.
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
pub(crate) fn within<V: Vectors>(x: V::Floats, bound: f32) -> V::Floats {
    V::max(V::min(x, V::splat(bound)), V::splat(-bound))
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
