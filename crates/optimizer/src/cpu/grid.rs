//! Second moments of `ustate1q` on grids of logarithms.
//!
//! What a code stands for, and the number that turns a first moment into a normalised update, are made
//! once for every level of a block, and looked up for its elements. A code is found by comparing with levels.

use formats::exp_log;
use formats::one_q::{Extent, Grid, HALF_LOG2_E, LEVELS_MAX, LOG_MAX, ZERO_MAX, is_upper, is_zero};
use formats::{Rules, bit_stream};

use super::blocks::{Room, Span};
use super::levels::{Guesses, Levels, TABLES, Unit, fill_levels};
use super::random::{BlockRandom, of_words};
use super::tiles::{
    self, Fours, LANES, Numbers, TILE, Tile, WordFours, block_of, blocks_of, of_four, tile_of,
};
use crate::simd::Vectors;

/// Most levels that are looked up at once, and their bits.
pub(crate) const FEW: usize = 16;
const FEW_BITS: u32 = 4;

/// The rules of a format by its constant.
#[inline(always)]
pub(crate) const fn rules<const REPAIRED: bool>() -> Rules {
    if REPAIRED { Rules::Repaired } else { Rules::Published }
}

/// The roots of all levels; those beyond the last have no meaning.
#[inline(always)]
fn roots<const REPAIRED: bool, const COUNT: usize>(grid: Grid) -> [f32; COUNT] {
    let mut roots = [0.0; COUNT];
    for (code, root) in (0u32..).zip(&mut roots) {
        *root = grid.root(code, rules::<REPAIRED>());
    }
    roots
}

/// The grids of up to sixteen blocks, a lane each; a zero of 1 says that code 0 stands for zero.
pub(crate) struct Grids {
    pub(crate) lowest: [f32; 16],
    pub(crate) step: [f32; 16],
    pub(crate) zeros: [f32; 16],
}

impl Grids {
    /// As [`Grid::new`]; of more endpoints than wanted, others are made too.
    #[inline(always)]
    fn new<V: Vectors>(endpoints: &[[u16; 2]], bits: u32) -> Grids {
        let mut padded = [[0; 2]; 16];
        let pairs = endpoints.first_chunk().unwrap_or_else(|| {
            padded[..endpoints.len()].copy_from_slice(endpoints);
            &padded
        });
        let both = V::pairs(pairs);
        let first = V::from_halves(V::and(both, V::words(0xFFFF)));
        let second = V::from_halves(V::shr::<16>(both));
        let has_zero = V::exceeds(first, second);
        let (lo, hi) = (V::choose(has_zero, second, first), V::choose(has_zero, first, second));
        let intervals = (1 << bits) - 1;
        let unit = V::splat(HALF_LOG2_E / intervals as f32);
        let unit_of_fewer = V::splat(HALF_LOG2_E / (intervals - 1) as f32);
        let step = V::mul(V::sub(hi, lo), V::choose(has_zero, unit_of_fewer, unit));
        let zeros = V::choose(has_zero, V::splat(1.0), V::splat(0.0));
        let mut grids = Grids { lowest: [0.0; 16], step: [0.0; 16], zeros: [0.0; 16] };
        V::store(V::mul(lo, V::splat(HALF_LOG2_E)), &mut grids.lowest);
        V::store(step, &mut grids.step);
        V::store(zeros, &mut grids.zeros);
        grids
    }

    /// As [`Grid::root`], of the block with a number, and of sixteen codes.
    #[inline(always)]
    pub(crate) fn roots<V: Vectors, const REPAIRED: bool>(&self, block: usize) -> V::Floats {
        let codes = V::counted(V::load_words(&LANES));
        let position = V::sub(codes, V::splat(self.zeros[block]));
        let (step, lowest) = (V::splat(self.step[block]), V::splat(self.lowest[block]));
        let root = exp2::<V>(V::fused(position, step, lowest));
        let zero = V::splat(0.0);
        let root = V::choose(V::reaches(position, zero), root, zero);
        if REPAIRED {
            return V::choose(V::exceeds(V::mul(root, root), V::splat(ZERO_MAX)), root, zero);
        }
        root
    }
}

/// As [`exp_log::exp2`].
#[inline(always)]
fn exp2<V: Vectors>(x: V::Floats) -> V::Floats {
    let rounder = V::splat(exp_log::ROUNDER);
    let shifted = V::add(x, rounder);
    let f = V::sub(x, V::sub(shifted, rounder));
    let [c1, c2, c3, c4, c5] = exp_log::EXP2_COEFFICIENTS;
    let upper = V::fused(V::fused(V::splat(c5), f, V::splat(c4)), f, V::splat(c3));
    let p = V::fused(V::fused(upper, f, V::splat(c2)), f, V::splat(c1));
    let p = V::fused(p, f, V::splat(1.0));
    V::float(V::plus(V::bits(p), V::shl::<23>(V::bits(shifted))))
}

/// As [`exp_log::ln`].
#[inline(always)]
fn logarithm<V: Vectors>(x: V::Floats) -> V::Floats {
    let is_normal = V::reaches(x, V::splat(f32::MIN_POSITIVE));
    let normal = V::choose(is_normal, x, V::mul(x, V::splat(16_777_216.0)));
    let offset = V::minus(V::bits(normal), V::words(exp_log::SQRT_HALF_BITS));
    let scaled = V::choose_words(is_normal, V::words(0), V::words(24));
    let e = V::counted(V::minus(V::sar::<23>(offset), scaled));
    let fraction = V::and(offset, V::words(0x007F_FFFF));
    let f = V::float(V::plus(fraction, V::words(exp_log::SQRT_HALF_BITS)));
    let f = V::sub(f, V::splat(1.0));
    let [c0, rest @ ..] = exp_log::LN_COEFFICIENTS;
    let mut q = V::splat(rest[6]);
    for number in [5, 4, 3, 2, 1, 0] {
        q = V::fused(q, f, V::splat(rest[number]));
    }
    let q = V::fused(q, f, V::splat(c0));
    let tail = V::mul(V::mul(f, f), V::fused(q, f, V::splat(-0.5)));
    let low = V::add(f, V::fused(e, V::splat(exp_log::LN_2_LOW), tail));
    V::fused(e, V::splat(exp_log::LN_2_HIGH), low)
}

/// Blocks of second moments, by what they are stored in.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    /// Elements of a block.
    pub(crate) block: usize,
    /// Elements of a block of first moments.
    pub(crate) tile_block: usize,
    pub(crate) bits: u32,
}

/// Makes ready to look up the roots of so many elements, and returns whether one may be zero: of up to 4 bits a
/// table for each block; of more the roots themselves, as [`tiles::put`] leaves them.
#[inline(always)]
pub(crate) fn prepare<V: Vectors, const REPAIRED: bool>(
    shape: Shape,
    (endpoints, stream): (&[u16], &[u8]),
    count: usize,
    roots: &mut [Numbers],
    tables: &mut [[f32; FEW]],
) -> bool {
    let endpoints = endpoints.as_chunks().0;
    if shape.bits > FEW_BITS {
        return prepare_many::<V, REPAIRED>(shape, (endpoints, stream), count, roots);
    }
    let mut least = V::splat(f32::INFINITY);
    let grids = Grids::new::<V>(endpoints, shape.bits);
    for (number, table) in tables[..blocks_of(count, shape.block)].iter_mut().enumerate() {
        let roots = grids.roots::<V, REPAIRED>(number);
        V::store(roots, table);
        least = V::min(roots, least);
    }
    // Codes beyond the last have larger roots.
    V::smallest(V::bits(least)) == 0
}

/// With more bits.
#[inline(always)]
fn prepare_many<V: Vectors, const REPAIRED: bool>(
    Shape { block, tile_block, bits }: Shape,
    (endpoints, stream): (&[[u16; 2]], &[u8]),
    count: usize,
    r: &mut [Numbers],
) -> bool {
    let mut has_zero = false;
    for (&endpoints, first) in endpoints.iter().zip(tiles::steps(0, count, block)) {
        let roots = roots::<REPAIRED, LEVELS_MAX>(Grid::new(endpoints, bits));
        has_zero |= roots[..1 << bits].contains(&0.0);
        for tile in tiles::tiles(first, (first + block).min(count), tile_block) {
            let mut own = [0.0; TILE];
            for (index, root) in (tile.from..tile.to).zip(&mut own) {
                *root = roots[bit_stream::get(stream, index, bits) as usize % LEVELS_MAX];
            }
            tiles::put::<V>(V::fours(&own), &mut r[tile.number]);
        }
    }
    has_zero
}

/// The roots of a tile, after [`prepare`].
#[inline(always)]
pub(crate) fn roots_of<V: Vectors>(
    Shape { block, bits, .. }: Shape,
    stream: &[u8],
    tile: Tile,
    roots: &[Numbers],
    tables: &[[f32; FEW]],
) -> Fours<V> {
    let table = V::load(&tables[block_of(tile.from, block)]);
    match bits {
        2 => looked_up::<V, 2>(stream, tile, table),
        3 => looked_up::<V, 3>(stream, tile, table),
        4 => looked_up::<V, 4>(stream, tile, table),
        _ => tiles::get::<V>(&roots[tile.number]),
    }
}

#[inline(always)]
fn looked_up<V: Vectors, const BITS: u32>(stream: &[u8], tile: Tile, table: V::Floats) -> Fours<V> {
    let own = V::four_halves(&fours_of::<BITS>(stream, tile.from));
    let twice = V::shr::<BITS>(V::shr::<BITS>(own));
    let codes: WordFours<V> = [own, V::shr::<BITS>(own), twice, V::shr::<BITS>(twice)];
    let mask = V::words((1 << BITS) - 1);
    // Of 4 bits all that count are their own.
    of_four!(|k| V::look_up(table, if BITS == 4 { codes[k] } else { V::and(codes[k], mask) }))
}

/// Stores the codes of second moments, given what their endpoints are and where their random numbers come
/// from; and leaves in their place what belongs to what is stored by them, by its root, and dithers.
#[inline(always)]
pub(crate) fn encode<V: Vectors, const REPAIRED: bool>(
    shape: Shape,
    (endpoints, stream): (&[u16], &mut [u8]),
    unit: &Unit,
    draw: (BlockRandom, Span),
    room: &mut Room<'_>,
) {
    let endpoints = endpoints.as_chunks().0;
    match shape.bits {
        2 => encode_few::<V, REPAIRED, 2>(shape, (endpoints, stream), unit, draw, room),
        3 => encode_few::<V, REPAIRED, 3>(shape, (endpoints, stream), unit, draw, room),
        4 => encode_few::<V, REPAIRED, 4>(shape, (endpoints, stream), unit, draw, room),
        6 => encode_many::<V, REPAIRED, 64>(shape, (endpoints, stream), unit, draw, room),
        _ => encode_many::<V, REPAIRED, 256>(shape, (endpoints, stream), unit, draw, room),
    }
}

/// With up to 4 bits.
#[inline(always)]
fn encode_few<V: Vectors, const REPAIRED: bool, const BITS: u32>(
    Shape { block, tile_block, .. }: Shape,
    (endpoints, stream): (&[[u16; 2]], &mut [u8]),
    unit: &Unit,
    (random, Span { start, count }): (BlockRandom, Span),
    room: &mut Room<'_>,
) {
    let tables = room.tables.as_chunks_mut::<TABLES>().0;
    let grids = Grids::new::<V>(endpoints, BITS);
    let guesses = Guesses::new::<V>(&grids);
    let mut least = V::splat(f32::INFINITY);
    for (number, tables) in tables[..blocks_of(count, block)].iter_mut().enumerate() {
        let units = fill_levels::<V, REPAIRED>((&grids, number), 1 << BITS, unit, tables);
        least = V::min(units, least);
    }
    *room.has_dead = V::smallest(V::bits(least)) == 0;
    let mut words = random.words::<V>(start);
    let mut ahead = *room.ahead;
    for tile in tiles::tiles(0, count, tile_block) {
        ahead.ask();
        let number = block_of(tile.from, block);
        let levels = Levels::<V>::load((&grids, &guesses, number), &tables[number]);
        // Drawn a tile ahead, so that nobody waits for them.
        let own_words = words;
        words = random.words::<V>(start + tile.from + tile_of(tile_block));
        let [uniforms, dithers] = if REPAIRED {
            of_words::<V>(own_words)
        } else {
            random.both_by::<V, REPAIRED>(start + tile.from)
        };
        let v = tiles::get::<V>(&room.second[tile.number]);
        let mut own = levels.encode::<REPAIRED>(v, uniforms);
        if let Some(is_first) = tiles::first::<V>(tile) {
            // What lies beyond the last code stays zero, as in a fresh state.
            own = of_four!(|k| V::choose_words(is_first[k], own[k], V::words(0)));
        }
        let own_units: Fours<V> = of_four!(|k| V::look_up(levels.units, own[k]));
        tiles::put::<V>(own_units, &mut room.second[tile.number]);
        tiles::put::<V>(dithers, &mut room.dithers[tile.number]);
        let fours = V::to_four_halves(tiles::packed::<V, BITS>(own));
        store_fours::<BITS>(fours, stream, tile.from, tile.count());
    }
    *room.ahead = ahead;
}

/// The codes of each four neighbours from `from` on in a word.
#[inline(always)]
fn fours_of<const BITS: u32>(stream: &[u8], from: usize) -> [u16; 16] {
    match BITS {
        2 => tiles::bytes::<16>(stream, from / 4, &mut None).map(u16::from),
        3 => {
            let bytes = *tiles::bytes::<24>(stream, from * 3 / 8, &mut None);
            let mut fours = [0; 16];
            for (two, bytes) in
                fours.as_chunks_mut::<2>().0.iter_mut().zip(bytes.as_chunks::<3>().0)
            {
                let [a, b, c] = bytes.map(u16::from);
                *two = [a | (b & 0xF) << 8, b >> 4 | c << 4];
            }
            fours
        }
        _ => bytemuck::cast::<_, [u16; 16]>(*tiles::bytes::<32>(stream, from / 2, &mut None))
            .map(u16::from_le),
    }
}

/// Overwrites `count` codes from `from` on.
#[inline(always)]
fn store_fours<const BITS: u32>(fours: [u16; 16], stream: &mut [u8], from: usize, count: usize) {
    let (from, count) = (from * BITS as usize / 8, (count * BITS as usize).div_ceil(8));
    match BITS {
        2 => tiles::store_bytes(&fours.map(|four| four as u8), stream, from, count),
        3 => {
            let mut bytes = [0; 24];
            for (bytes, two) in
                bytes.as_chunks_mut::<3>().0.iter_mut().zip(fours.as_chunks::<2>().0)
            {
                let [low, high] = *two;
                *bytes = [low as u8, (low >> 8 | high << 4) as u8, (high >> 4) as u8];
            }
            tiles::store_bytes(&bytes, stream, from, count);
        }
        _ => {
            let bytes: [u8; 32] = bytemuck::cast(fours.map(u16::to_le));
            tiles::store_bytes(&bytes, stream, from, count);
        }
    }
}

/// The endpoints of blocks of second moments that are kept, a pair each.
#[inline(always)]
pub(crate) fn endpoints<V: Vectors, const REPAIRED: bool>(
    Shape { block, tile_block, .. }: Shape,
    count: usize,
    room: &mut Room<'_>,
    out: &mut [u16],
) {
    let (out, tile) = (out.as_chunks_mut::<2>().0, tile_of(tile_block));
    let tiles = [blocks_of(count, tile), block_of(block, tile)];
    let [mins, maxs] = tiles::extents::<V>(room.extents, tiles[0], tiles[1]);
    let is_there = V::is_below(V::load_words(&LANES), V::words(out.len() as u32));
    let least = V::smallest(V::choose_words(is_there, mins, V::words(u32::MAX)));
    let (mins, maxs) = (V::float(mins), V::float(maxs));
    if !REPAIRED || is_zero(f32::from_bits(least), Rules::Repaired) {
        endpoints_with_care::<V, REPAIRED>([mins, maxs], (block, tile), count, room.second, out);
        return;
    }
    let largest = V::splat(LOG_MAX);
    let lows = V::halves_below(V::min(logarithm::<V>(mins), largest));
    let highs = V::halves_above(V::min(logarithm::<V>(maxs), largest));
    let mut pairs = [0.0; FEW];
    V::store(V::float(V::or(lows, V::shl::<16>(highs))), &mut pairs);
    for (out, pair) in out.iter_mut().zip(pairs) {
        *out = [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16];
    }
}

/// The same where some numbers count as zero, or by the published rules.
#[cold]
#[inline(never)]
fn endpoints_with_care<V: Vectors, const REPAIRED: bool>(
    extents: [V::Floats; 2],
    (block, tile): (usize, usize),
    count: usize,
    second: &[Numbers],
    out: &mut [[u16; 2]],
) {
    let (mut mins, mut maxs) = ([0.0; FEW], [0.0; FEW]);
    V::store(extents[0], &mut mins);
    V::store(extents[1], &mut maxs);
    for ((number, from), out) in tiles::steps(0, count, block).enumerate().zip(out) {
        let own = block_of(from, tile)..blocks_of((from + block).min(count), tile);
        let mut extent = Extent { min: mins[number], max: maxs[number], has_zero: false };
        if is_zero(extent.min, rules::<REPAIRED>()) {
            extent = Extent::NONE;
            for &v in second[own].as_flattened() {
                extent = extent.with(v, rules::<REPAIRED>());
            }
        }
        *out = extent.endpoints(rules::<REPAIRED>());
    }
}

/// What a second moment must reach to have a code from 1 on: its level, or not to be zero.
#[inline(always)]
fn border(grid: Grid, levels: &[f32], code: usize) -> f32 {
    if grid.has_zero && code == 1 { ZERO_MAX.next_up() } else { levels[code] }
}

/// With more bits: neighbours are looked up.
#[inline(always)]
fn encode_many<V: Vectors, const REPAIRED: bool, const COUNT: usize>(
    Shape { block, tile_block, bits }: Shape,
    (endpoints, stream): (&[[u16; 2]], &mut [u8]),
    unit: &Unit,
    (random, Span { start, count }): (BlockRandom, Span),
    room: &mut Room<'_>,
) {
    for (&endpoints, first) in endpoints.iter().zip(tiles::steps(0, count, block)) {
        let grid = Grid::new(endpoints, bits);
        let roots = roots::<REPAIRED, COUNT>(grid);
        let values = roots.map(|root| root * root);
        for tile in tiles::tiles(first, (first + block).min(count), tile_block) {
            let (mut v, mut uniforms, mut own_roots) = ([0.0; TILE], [0.0; TILE], [0.0; TILE]);
            V::store_fours(tiles::get::<V>(&room.second[tile.number]), &mut v);
            let [own, dithers] = random.both_by::<V, REPAIRED>(start + tile.from);
            V::store_fours(own, &mut uniforms);
            let elements = v.into_iter().zip(uniforms).zip(&mut own_roots);
            for (index, ((v, uniform), root)) in (tile.from..tile.to).zip(elements) {
                let reached = |code: &usize| border(grid, &values, *code) <= v;
                let lower = (1..COUNT).filter(reached).count();
                let a = values[lower];
                let b = values.get(lower + 1).copied().unwrap_or(f32::INFINITY);
                let upper = lower as u32 + is_upper(v - a, b - a, uniform);
                let code = if is_zero(v, rules::<REPAIRED>()) { 0 } else { upper };
                bit_stream::set(stream, index, bits, code);
                *root = roots[code as usize % COUNT];
            }
            let own = V::fours(&own_roots);
            let units = of_four!(|k| unit.of::<V, REPAIRED>(own[k]));
            tiles::put::<V>(units, &mut room.second[tile.number]);
            tiles::put::<V>(dithers, &mut room.dithers[tile.number]);
        }
    }
}
