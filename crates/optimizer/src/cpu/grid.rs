//! Second moments of `ustate1q` on grids of logarithms.
//!
//! What a code stands for, and the number that turns a first moment into a normalised update, are made
//! once for every level of a block, and looked up for its elements. A code is found by comparing with levels.

use formats::exp_log;
use formats::one_q::{Extent, Grid, HALF_LOG2_E, LEVELS_MAX, LOG_MAX, ZERO_MAX, is_upper, is_zero};
use formats::{Rules, bit_stream};

use super::blocks::Room;
use super::random::BlockRandom;
use super::tiles::{self, Fours, LANES, TILE, WordFours, block_of, blocks_of, of_four};
use crate::simd::Vectors;

/// Most levels that are looked up at once.
const FEW: usize = 16;

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
struct Grids {
    lowest: [f32; 16],
    step: [f32; 16],
    zeros: [f32; 16],
}

impl Grids {
    /// As [`Grid::new`].
    #[inline(always)]
    fn new<V: Vectors>(endpoints: &[[u16; 2]], bits: u32) -> Grids {
        let mut both = [0; 16];
        for (both, &[first, second]) in both.iter_mut().zip(endpoints) {
            *both = u32::from(first) | u32::from(second) << 16;
        }
        let both = V::load_words(&both);
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

    /// As [`Grid::root`], of the block with a number, and of sixteen codes from the first on.
    #[inline(always)]
    fn roots<V: Vectors, const REPAIRED: bool>(&self, block: usize, first: f32) -> V::Floats {
        let codes = V::add(V::counted(V::load_words(&LANES)), V::splat(first));
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
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Elements of a block.
    pub(crate) block: usize,
    /// Elements of a tile.
    pub(crate) tile: usize,
    pub(crate) bits: u32,
}

/// The second moments of codes, and their roots as [`tiles::put`] leaves them; returns whether one may be
/// zero. `count` of them are elements.
#[inline(always)]
pub(crate) fn decode<V: Vectors, const REPAIRED: bool>(
    shape: Shape,
    (endpoints, stream): (&[u16], &[u8]),
    count: usize,
    (v, r): (&mut [f32], &mut [f32]),
    tables: &mut [[f32; FEW]],
) -> bool {
    let (endpoints, of_block) = (endpoints.as_chunks().0, (v, r));
    match shape.bits {
        2 => decode_few::<V, REPAIRED, 2>(shape, (endpoints, stream), count, of_block, tables),
        3 => decode_few::<V, REPAIRED, 3>(shape, (endpoints, stream), count, of_block, tables),
        4 => decode_few::<V, REPAIRED, 4>(shape, (endpoints, stream), count, of_block, tables),
        _ => decode_many::<V, REPAIRED>(shape, (endpoints, stream), count, of_block),
    }
}

/// With up to 4 bits.
#[inline(always)]
fn decode_few<V: Vectors, const REPAIRED: bool, const BITS: u32>(
    Shape { block, tile, .. }: Shape,
    (endpoints, stream): (&[[u16; 2]], &[u8]),
    count: usize,
    (v, r): (&mut [f32], &mut [f32]),
    tables: &mut [[f32; FEW]],
) -> bool {
    let blocks = blocks_of(count, block);
    let mut least = V::splat(f32::INFINITY);
    let grids = Grids::new::<V>(&endpoints[..blocks], BITS);
    for (number, table) in tables[..blocks].iter_mut().enumerate() {
        let roots = grids.roots::<V, REPAIRED>(number, 0.0);
        V::store(roots, table);
        least = V::min(roots, least);
    }
    let mask = V::words((1 << BITS) - 1);
    for from in tiles::steps(0, count, tile) {
        let (to, table) = (from + tile, V::load(&tables[block_of(from, block)]));
        let own = V::four_halves(&fours_of::<BITS>(stream, from));
        let twice = V::shr::<BITS>(V::shr::<BITS>(own));
        let codes: WordFours<V> = [own, V::shr::<BITS>(own), twice, V::shr::<BITS>(twice)];
        let roots: Fours<V> = of_four!(|k| V::look_up(table, V::and(codes[k], mask)));
        tiles::put::<V>(roots, r, from, to);
        tiles::store::<V>(of_four!(|k| V::mul(roots[k], roots[k])), v, from, to);
    }
    // Codes beyond the last have larger roots.
    V::smallest(V::bits(least)) == 0
}

/// With more bits.
#[inline(always)]
fn decode_many<V: Vectors, const REPAIRED: bool>(
    Shape { block, tile, bits }: Shape,
    (endpoints, stream): (&[[u16; 2]], &[u8]),
    count: usize,
    (v, r): (&mut [f32], &mut [f32]),
) -> bool {
    let mut has_zero = false;
    for (&endpoints, first) in endpoints.iter().zip(tiles::steps(0, count, block)) {
        let roots = roots::<REPAIRED, LEVELS_MAX>(Grid::new(endpoints, bits));
        has_zero |= roots[..1 << bits].contains(&0.0);
        for from in tiles::steps(first, (first + block).min(count), tile) {
            let to = from + tile;
            let mut own = [0.0; TILE];
            for (index, root) in own[..to.min(count) - from].iter_mut().enumerate() {
                *root = roots[bit_stream::get(stream, from + index, bits) as usize % LEVELS_MAX];
            }
            let own = V::fours(&own);
            tiles::put::<V>(own, r, from, to);
            tiles::store::<V>(of_four!(|k| V::mul(own[k], own[k])), v, from, to);
        }
    }
    has_zero
}

/// Stores the codes of second moments, given what their endpoints are and where their random numbers come
/// from; and leaves, as [`tiles::put`] does, what belongs to what is stored by them, by its root.
#[inline(always)]
pub(crate) fn encode<V: Vectors, const REPAIRED: bool>(
    shape: Shape,
    (endpoints, stream): (&[u16], &mut [u8]),
    unit: &Unit,
    draw: (BlockRandom, usize),
    v: &[f32],
    room: &mut Room<'_>,
) {
    let endpoints = endpoints.as_chunks().0;
    match shape.bits {
        2 => encode_few::<V, REPAIRED, 2>(shape, (endpoints, stream), unit, draw, v, room),
        3 => encode_few::<V, REPAIRED, 3>(shape, (endpoints, stream), unit, draw, v, room),
        4 => encode_few::<V, REPAIRED, 4>(shape, (endpoints, stream), unit, draw, v, room),
        6 => encode_many::<V, REPAIRED, 64>(shape, (endpoints, stream), unit, draw, v, room),
        _ => encode_many::<V, REPAIRED, 256>(shape, (endpoints, stream), unit, draw, v, room),
    }
}

/// With up to 4 bits.
#[inline(always)]
fn encode_few<V: Vectors, const REPAIRED: bool, const BITS: u32>(
    Shape { block, tile, .. }: Shape,
    (endpoints, stream): (&[[u16; 2]], &mut [u8]),
    unit: &Unit,
    (random, start): (BlockRandom, usize),
    v: &[f32],
    room: &mut Room<'_>,
) {
    let tables = room.tables.as_chunks_mut::<TABLES>().0;
    let grids = Grids::new::<V>(endpoints, BITS);
    for (number, tables) in tables[..endpoints.len()].iter_mut().enumerate() {
        fill_levels::<V, REPAIRED>((&grids, number), 1 << BITS, unit, tables);
    }
    for from in tiles::steps(0, v.len(), tile) {
        let to = (from + tile).min(v.len());
        let levels = Levels::<V>::load(&tables[block_of(from, block)]);
        let uniforms = if REPAIRED {
            let (uniforms, dithers) = random.both::<V>(start + from);
            tiles::put::<V>(dithers, room.dithers, from, to);
            uniforms
        } else {
            random.uniforms::<V, REPAIRED>(start + from)
        };
        let mut own = levels.encode::<REPAIRED>(tiles::load::<V>(v, from, to), uniforms);
        if let Some(is_first) = tiles::first::<V>(to - from) {
            // What lies beyond the last code stays zero, as in a fresh state.
            own = of_four!(|k| V::choose_words(is_first[k], own[k], V::words(0)));
        }
        let own_units: Fours<V> = of_four!(|k| V::look_up(levels.units, own[k]));
        tiles::put::<V>(own_units, room.units, from, to);
        let fours = V::to_four_halves(tiles::packed::<V, BITS>(own));
        store_fours::<BITS>(fours, stream, from, to - from);
    }
}

/// The codes of each four neighbours from `from` on in a word.
#[inline(always)]
fn fours_of<const BITS: u32>(stream: &[u8], from: usize) -> [u16; 16] {
    match BITS {
        2 => tiles::bytes::<16>(stream, from / 4).map(u16::from),
        3 => {
            let bytes = tiles::bytes::<24>(stream, from * 3 / 8);
            let mut fours = [0; 16];
            for (two, bytes) in
                fours.as_chunks_mut::<2>().0.iter_mut().zip(bytes.as_chunks::<3>().0)
            {
                let [a, b, c] = bytes.map(u16::from);
                *two = [a | (b & 0xF) << 8, b >> 4 | c << 4];
            }
            fours
        }
        _ => bytemuck::cast::<_, [u16; 16]>(tiles::bytes::<32>(stream, from / 2)).map(u16::from_le),
    }
}

/// Overwrites `count` codes from `from` on.
#[inline(always)]
fn store_fours<const BITS: u32>(fours: [u16; 16], stream: &mut [u8], from: usize, count: usize) {
    let (from, count) = (from * BITS as usize / 8, (count * BITS as usize).div_ceil(8));
    match BITS {
        2 => tiles::store_bytes(fours.map(|four| four as u8), stream, from, count),
        3 => {
            let mut bytes = [0; 24];
            for (bytes, two) in
                bytes.as_chunks_mut::<3>().0.iter_mut().zip(fours.as_chunks::<2>().0)
            {
                let [low, high] = *two;
                *bytes = [low as u8, (low >> 8 | high << 4) as u8, (high >> 4) as u8];
            }
            tiles::store_bytes(bytes, stream, from, count);
        }
        _ => {
            let bytes: [u8; 32] = bytemuck::cast(fours.map(u16::to_le));
            tiles::store_bytes(bytes, stream, from, count);
        }
    }
}

/// The endpoints of blocks of `block` second moments, a pair each.
#[inline(always)]
pub(crate) fn endpoints<V: Vectors, const REPAIRED: bool>(
    block: usize,
    v: &[f32],
    out: &mut [u16],
) {
    let out = out.as_chunks_mut::<2>().0;
    let (mut mins, mut maxs) = ([1.0; FEW], [1.0; FEW]);
    let mut extents = [Extent::NONE; FEW];
    for (number, from) in tiles::steps(0, v.len(), block).enumerate() {
        let own = &v[from..(from + block).min(v.len())];
        extents[number] = extent::<V, REPAIRED>(own);
        [mins[number], maxs[number]] = extents[number].ends(rules::<REPAIRED>());
    }
    let (mins, maxs) = (logarithm::<V>(V::load(&mins)), logarithm::<V>(V::load(&maxs)));
    if !REPAIRED {
        let (mut logs, mut max_logs) = ([0.0; FEW], [0.0; FEW]);
        V::store(mins, &mut logs);
        V::store(maxs, &mut max_logs);
        for ((out, extent), logs) in out.iter_mut().zip(extents).zip(logs.into_iter().zip(max_logs))
        {
            *out = extent.endpoints_of([logs.0, logs.1], Rules::Published);
        }
        return;
    }
    let largest = V::splat(LOG_MAX);
    let (mut lows, mut highs) = ([0.0; FEW], [0.0; FEW]);
    V::store(V::float(V::halves_below(V::min(mins, largest))), &mut lows);
    V::store(V::float(V::halves_above(V::min(maxs, largest))), &mut highs);
    for ((out, extent), (lo, hi)) in out.iter_mut().zip(extents).zip(lows.into_iter().zip(highs)) {
        *out = extent.ordered([lo.to_bits() as u16, hi.to_bits() as u16]);
    }
}

/// What a second moment must reach to have a code from 1 on: its level, or not to be zero.
#[inline(always)]
fn border(grid: Grid, levels: &[f32], code: usize) -> f32 {
    if grid.has_zero && code == 1 { ZERO_MAX.next_up() } else { levels[code] }
}

/// Tables of a block.
const TABLES: usize = 5;

/// What up to 16 codes of a block stand for: values, how far the next one is (nothing is rounded up to
/// infinity, which lies above the last), what a number must reach to have a code, what belongs to what is
/// stored; and whether borders ascend.
#[inline(always)]
fn fill_levels<V: Vectors, const REPAIRED: bool>(
    (grids, number): (&Grids, usize),
    count: u32,
    unit: &Unit,
    [values, widths, borders, units, own]: &mut [[f32; FEW]; TABLES],
) {
    let (lanes, infinity) = (V::load_words(&LANES), V::splat(f32::INFINITY));
    let roots = grids.roots::<V, REPAIRED>(number, 0.0);
    let next_roots = grids.roots::<V, REPAIRED>(number, 1.0);
    let (own_values, next) = (V::mul(roots, roots), V::mul(next_roots, next_roots));
    let next = V::choose(V::is_below(lanes, V::words(count - 1)), next, infinity);
    V::store(own_values, values);
    V::store(V::sub(next, own_values), widths);
    V::store(unit.of::<V, REPAIRED>(roots), units);
    let mut own_borders = V::choose(V::is_below(lanes, V::words(count)), own_values, infinity);
    if grids.zeros[number] > 0.0 {
        let above_zero = V::splat(ZERO_MAX.next_up());
        own_borders = V::choose(V::is_below(lanes, V::words(2)), above_zero, own_borders);
    }
    // The first is none; it lies above no other.
    own_borders = V::choose(V::is_below(lanes, V::words(1)), V::splat(0.0), own_borders);
    V::store(own_borders, borders);
    own[0] = f32::from_bits(V::count(V::exceeds(own_borders, next)));
}

/// What first moments are multiplied by to be stored.
pub(crate) struct Unit {
    pub(crate) inverse_correction: f32,
    pub(crate) rms_scale: f32,
    pub(crate) eps: f32,
}

impl Unit {
    /// Given the roots of second moments as they are stored; zero where there is to be no first
    /// moment.
    #[inline(always)]
    pub(crate) fn of<V: Vectors, const REPAIRED: bool>(&self, root: V::Floats) -> V::Floats {
        if !REPAIRED {
            let unit = V::fused(root, V::splat(self.rms_scale), V::splat(self.eps));
            return V::div(V::splat(self.inverse_correction), unit);
        }
        let common = V::splat(self.inverse_correction / self.rms_scale);
        let unit = V::mul(V::div(V::splat(1.0), root), common);
        V::choose(V::exceeds(V::mul(root, root), V::splat(ZERO_MAX)), unit, V::splat(0.0))
    }
}

/// The same in registers.
struct Levels<V: Vectors> {
    values: V::Floats,
    widths: V::Floats,
    borders: V::Floats,
    units: V::Floats,
    ascend: bool,
}

impl<V: Vectors> Levels<V> {
    #[inline(always)]
    fn load([values, widths, borders, units, own]: &[[f32; FEW]; TABLES]) -> Levels<V> {
        Levels {
            values: V::load(values),
            widths: V::load(widths),
            borders: V::load(borders),
            units: V::load(units),
            ascend: own[0].to_bits() == 0,
        }
    }

    /// The codes of a tile.
    #[inline(always)]
    fn encode<const REPAIRED: bool>(&self, v: Fours<V>, uniforms: Fours<V>) -> WordFours<V> {
        let zero_max = V::splat(ZERO_MAX);
        let lower: WordFours<V> = if self.ascend {
            of_four!(|k| self.halved(v[k]))
        } else {
            let (mut numbers, mut borders) = ([0.0; TILE], [0.0; FEW]);
            V::store_fours(v, &mut numbers);
            V::store(self.borders, &mut borders);
            let counts = V::fours(&counted(&borders, &numbers));
            of_four!(|k| V::whole(counts[k]))
        };
        of_four!(|k| {
            let lower = lower[k];
            let (a, width) = (V::look_up(self.values, lower), V::look_up(self.widths, lower));
            let side = V::fused(uniforms[k], width, V::sub(a, v[k]));
            let code = V::plus(lower, V::shr::<31>(V::bits(side)));
            if REPAIRED {
                V::choose_words(V::exceeds(v[k], zero_max), code, V::words(0))
            } else {
                code
            }
        })
    }

    /// How many of the borders but the first each number has reached, by halves.
    #[inline(always)]
    fn halved(&self, v: V::Floats) -> V::Words {
        let mut count = V::words(0);
        for step in [8, 4, 2, 1] {
            let next = V::or(count, V::words(step));
            count = V::choose_words(V::reaches(v, V::look_up(self.borders, next)), next, count);
        }
        count
    }
}

/// How many of the borders but the first each number has reached, one by one.
#[cold]
#[inline(never)]
fn counted(borders: &[f32; FEW], v: &[f32; TILE]) -> [f32; TILE] {
    v.map(|v| borders[1..].iter().filter(|&&border| border <= v).count() as f32)
}

/// With more bits: neighbours are looked up.
#[inline(always)]
fn encode_many<V: Vectors, const REPAIRED: bool, const COUNT: usize>(
    Shape { block, tile, bits }: Shape,
    (endpoints, stream): (&[[u16; 2]], &mut [u8]),
    unit: &Unit,
    (random, start): (BlockRandom, usize),
    v: &[f32],
    room: &mut Room<'_>,
) {
    for (&endpoints, first) in endpoints.iter().zip(tiles::steps(0, v.len(), block)) {
        let grid = Grid::new(endpoints, bits);
        let roots = roots::<REPAIRED, COUNT>(grid);
        let values = roots.map(|root| root * root);
        for from in tiles::steps(first, (first + block).min(v.len()), tile) {
            let to = (from + tile).min(v.len());
            let (mut uniforms, mut own_roots) = ([0.0; TILE], [0.0; TILE]);
            V::store_fours(random.uniforms::<V, REPAIRED>(start + from), &mut uniforms);
            let elements = v[from..to].iter().zip(uniforms).zip(&mut own_roots).enumerate();
            for (index, ((&v, uniform), root)) in elements {
                let reached = |code: &usize| border(grid, &values, *code) <= v;
                let lower = (1..COUNT).filter(reached).count();
                let a = values[lower];
                let b = values.get(lower + 1).copied().unwrap_or(f32::INFINITY);
                let upper = lower as u32 + is_upper(v - a, b - a, uniform);
                let code = if is_zero(v, rules::<REPAIRED>()) { 0 } else { upper };
                bit_stream::set(stream, from + index, bits, code);
                *root = roots[code as usize % COUNT];
            }
            let own = V::fours(&own_roots);
            tiles::put::<V>(of_four!(|k| unit.of::<V, REPAIRED>(own[k])), room.units, from, to);
            if REPAIRED {
                let dithers = random.dithers::<V, REPAIRED>(start + from);
                tiles::put::<V>(dithers, room.dithers, from, to);
            }
        }
    }
}

/// What decides the endpoints of a block.
#[inline(always)]
fn extent<V: Vectors, const REPAIRED: bool>(v: &[f32]) -> Extent {
    let [min, max] = tiles::extent::<V>(v).map(f32::from_bits);
    let mut extent = Extent { min, max, has_zero: false };
    if is_zero(min, rules::<REPAIRED>()) {
        extent = Extent::NONE;
        for &v in v {
            extent = extent.with(v, rules::<REPAIRED>());
        }
    }
    extent
}
