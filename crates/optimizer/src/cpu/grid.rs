//! Second moments of `ustate1q` on grids of logarithms.
//!
//! What a code stands for, and the number that turns a first moment into a normalised update, are made
//! once for every level of a block, and looked up for its elements. A code is found by comparing with levels.

use formats::Rules;
use formats::exp_log::ln;
use formats::one_q::{Extent, Grid, LEVELS_MAX, ZERO_MAX, is_upper, is_zero};

use crate::simd::{Plain, Vectors};

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

/// The second moments of codes, and their roots.
#[inline(always)]
pub(crate) fn decode<V: Vectors, const REPAIRED: bool>(
    (endpoints, bits): ([u16; 2], u32),
    codes: &[u32],
    v: &mut [f32],
    r: &mut [f32],
) {
    // With a number that is known a division is none.
    let few = match bits {
        2 => Some(Grid::new(endpoints, 2)),
        3 => Some(Grid::new(endpoints, 3)),
        4 => Some(Grid::new(endpoints, 4)),
        _ => None,
    };
    if let Some(grid) = few {
        V::look_up_16(&roots::<REPAIRED, FEW>(grid), codes, r);
    } else {
        let roots = roots::<REPAIRED, LEVELS_MAX>(Grid::new(endpoints, bits));
        for (r, &code) in r.iter_mut().zip(codes) {
            *r = roots[code as usize % LEVELS_MAX];
        }
    }
    for (v, r) in v.iter_mut().zip(r) {
        *v = *r * *r;
    }
}

/// The codes of a block of second moments, given their random numbers, and what belongs to
/// what is stored by them, by its root; `stored` is overwritten with what nobody needs.
#[inline(always)]
pub(crate) fn encode<V: Vectors, const REPAIRED: bool>(
    (endpoints, bits): ([u16; 2], u32),
    unit_of: impl Fn(f32) -> f32,
    (v, uniforms): (&[f32], &[f32]),
    codes: &mut [u32],
    stored: &mut [f32],
    units: &mut [f32],
) {
    let grid = |bits| Grid::new(endpoints, bits);
    match bits {
        2 => encode_few::<V, REPAIRED, 4>(grid(2), unit_of, (v, uniforms), codes, stored, units),
        3 => encode_few::<V, REPAIRED, 8>(grid(3), unit_of, (v, uniforms), codes, stored, units),
        4 => encode_few::<V, REPAIRED, 16>(grid(4), unit_of, (v, uniforms), codes, stored, units),
        6 => encode_many::<REPAIRED, 64>(grid(6), unit_of, (v, uniforms), codes, units),
        _ => encode_many::<REPAIRED, 256>(grid(8), unit_of, (v, uniforms), codes, units),
    }
}

/// Blocks whose endpoints are found together, so that their logarithms are.
const TOGETHER: usize = 8;

/// The endpoints of blocks of `block` second moments, a pair each.
#[inline(always)]
pub(crate) fn endpoints<const REPAIRED: bool>(block: usize, v: &[f32], out: &mut [u16]) {
    let rules = rules::<REPAIRED>();
    for (v, out) in v.chunks(TOGETHER * block).zip(out.chunks_mut(2 * TOGETHER)) {
        let mut extents = [Extent::NONE; TOGETHER];
        let mut logs = [1.0; 2 * TOGETHER];
        for ((v, extent), ends) in
            v.chunks(block).zip(&mut extents).zip(logs.as_chunks_mut::<2>().0)
        {
            *extent = self::extent::<REPAIRED>(v);
            *ends = extent.ends(rules);
        }
        for log in &mut logs {
            *log = ln(*log);
        }
        let both = extents.iter().zip(logs.as_chunks::<2>().0);
        for (out, (extent, &logs)) in out.as_chunks_mut::<2>().0.iter_mut().zip(both) {
            *out = extent.endpoints_of(logs, rules);
        }
    }
}

/// What a second moment must reach to have a code from 1 on: its level, or not to be zero.
#[inline(always)]
fn border(grid: Grid, levels: &[f32], code: usize) -> f32 {
    if grid.has_zero && code == 1 { ZERO_MAX.next_up() } else { levels[code] }
}

/// With up to 16 levels.
#[inline(always)]
fn encode_few<V: Vectors, const REPAIRED: bool, const COUNT: usize>(
    grid: Grid,
    unit_of: impl Fn(f32) -> f32,
    (v, uniforms): (&[f32], &[f32]),
    codes: &mut [u32],
    stored: &mut [f32],
    units: &mut [f32],
) {
    let roots = roots::<REPAIRED, FEW>(grid);
    let (mut values, mut level_units) = ([0.0; FEW], [0.0; FEW]);
    for ((value, unit), root) in values.iter_mut().zip(&mut level_units).zip(roots) {
        (*value, *unit) = (root * root, unit_of(root));
    }
    // Nothing is rounded up to infinity, which lies above the last level.
    let (mut borders, mut widths) = ([f32::INFINITY; FEW], [f32::INFINITY; FEW]);
    for code in 0..COUNT {
        borders[code] = border(grid, &values, code);
        if code + 1 < COUNT {
            widths[code] = values[code + 1] - values[code];
        }
    }
    let ascend = borders[1..].windows(2).all(|pair| pair[0] <= pair[1]);
    if ascend {
        V::count_16(&borders, v, codes);
    } else {
        Plain::count_16(&borders, v, codes);
    }
    V::look_up_16(&values, codes, stored);
    V::look_up_16(&widths, codes, units);
    let neighbours = stored.iter().zip(&*units);
    for ((&v, &uniform), (code, (&a, &width))) in
        v.iter().zip(uniforms).zip(codes.iter_mut().zip(neighbours))
    {
        let upper = *code + is_upper(v - a, width, uniform);
        *code = if is_zero(v, rules::<REPAIRED>()) { 0 } else { upper };
    }
    V::look_up_16(&level_units, codes, units);
}

/// With more levels: neighbours are looked up.
#[inline(always)]
fn encode_many<const REPAIRED: bool, const COUNT: usize>(
    grid: Grid,
    unit_of: impl Fn(f32) -> f32,
    (v, uniforms): (&[f32], &[f32]),
    codes: &mut [u32],
    units: &mut [f32],
) {
    let roots = roots::<REPAIRED, COUNT>(grid);
    let (values, level_units) = (roots.map(|root| root * root), roots.map(unit_of));
    for (((&v, &uniform), code), unit) in v.iter().zip(uniforms).zip(codes).zip(units) {
        let reached = |code: &usize| border(grid, &values, *code) <= v;
        let lower = (1..COUNT).filter(reached).count();
        let a = values[lower];
        let b = values.get(lower + 1).copied().unwrap_or(f32::INFINITY);
        let upper = lower as u32 + is_upper(v - a, b - a, uniform);
        *code = if is_zero(v, rules::<REPAIRED>()) { 0 } else { upper };
        *unit = level_units[*code as usize % COUNT];
    }
}

/// What decides the endpoints of a block.
#[inline(always)]
fn extent<const REPAIRED: bool>(v: &[f32]) -> Extent {
    // Numbers that are not negative order as their bits do, and integers vectorise.
    let (mut min, mut max, mut zeros) = (f32::INFINITY.to_bits(), 0, 0);
    for &v in v {
        let is_zero = is_zero(v, rules::<REPAIRED>());
        let bits = v.to_bits();
        min = min.min(if is_zero { u32::MAX } else { bits });
        max = max.max(bits);
        zeros |= u32::from(is_zero);
    }
    Extent { min: f32::from_bits(min), max: f32::from_bits(max), has_zero: zeros != 0 }
}
