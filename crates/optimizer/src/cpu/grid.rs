//! Second moments of `ustate1q` on grids of logarithms.
//!
//! What a code stands for, and the number that turns a normalised update into a first moment or the
//! other way round, are made once for every level of a block, and looked up for its elements.
//! A code is found by comparing with all levels, of which there are few.

use formats::Rules;
use formats::one_q::{Extent, Grid, LEVELS_MAX, ZERO_MAX, is_zero};

use crate::simd::Vectors;

/// Most levels that are looked up at once.
const FEW: usize = 16;

/// The rules of a format by its constant.
#[inline(always)]
pub(crate) const fn rules<const REPAIRED: bool>() -> Rules {
    if REPAIRED { Rules::Repaired } else { Rules::Published }
}

/// All levels and what belongs to each; those beyond the last have no meaning.
struct Levels<const COUNT: usize> {
    values: [f32; COUNT],
    units: [f32; COUNT],
}

impl<const COUNT: usize> Levels<COUNT> {
    #[inline(always)]
    fn new<const REPAIRED: bool>(grid: Grid, unit_of: impl Fn(f32) -> f32) -> Self {
        let mut values = [0.0; COUNT];
        for (code, value) in (0u32..).zip(&mut values) {
            *value = grid.value(code, rules::<REPAIRED>());
        }
        let mut units = [0.0; COUNT];
        for (unit, &value) in units.iter_mut().zip(&values) {
            *unit = unit_of(value);
        }
        Levels { values, units }
    }
}

/// The second moments of codes, and what belongs to them.
#[inline(always)]
pub(crate) fn decode<V: Vectors, const REPAIRED: bool>(
    (endpoints, bits): ([u16; 2], u32),
    unit_of: impl Fn(f32) -> f32,
    codes: &[u32],
    v: &mut [f32],
    units: &mut [f32],
) {
    let grid = Grid::new(endpoints, bits);
    if 1 << bits <= FEW {
        let levels = Levels::<FEW>::new::<REPAIRED>(grid, unit_of);
        V::look_up_16(&levels.values, codes, v);
        V::look_up_16(&levels.units, codes, units);
    } else {
        let levels = Levels::<LEVELS_MAX>::new::<REPAIRED>(grid, unit_of);
        for ((v, unit), &code) in v.iter_mut().zip(units).zip(codes) {
            let code = code as usize % LEVELS_MAX;
            (*v, *unit) = (levels.values[code], levels.units[code]);
        }
    }
}

/// The codes of a block of second moments, given their random numbers, and what belongs to
/// what is stored by them; `stored` is overwritten with what nobody needs. Returns the endpoints.
#[inline(always)]
pub(crate) fn encode<V: Vectors, const REPAIRED: bool>(
    bits: u32,
    unit_of: impl Fn(f32) -> f32,
    (v, uniforms): (&[f32], &[f32]),
    codes: &mut [u32],
    stored: &mut [f32],
    units: &mut [f32],
) -> [u16; 2] {
    let endpoints = extent::<REPAIRED>(v).endpoints(rules::<REPAIRED>());
    let grid = Grid::new(endpoints, bits);
    match bits {
        2 => encode_few::<V, REPAIRED, 4>(grid, unit_of, (v, uniforms), codes, stored, units),
        3 => encode_few::<V, REPAIRED, 8>(grid, unit_of, (v, uniforms), codes, stored, units),
        4 => encode_few::<V, REPAIRED, 16>(grid, unit_of, (v, uniforms), codes, stored, units),
        6 => encode_many::<REPAIRED, 64>(grid, unit_of, (v, uniforms), codes, units),
        _ => encode_many::<REPAIRED, 256>(grid, unit_of, (v, uniforms), codes, units),
    }
    endpoints
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
    let levels = Levels::<FEW>::new::<REPAIRED>(grid, unit_of);
    let mut borders = [0.0; COUNT];
    let mut nexts = [f32::INFINITY; FEW];
    for (code, own) in borders.iter_mut().enumerate() {
        *own = border(grid, &levels.values, code);
    }
    // Nothing is rounded up to infinity, which lies above the last level.
    nexts[..COUNT - 1].copy_from_slice(&levels.values[1..COUNT]);
    for (&v, code) in v.iter().zip(&mut *codes) {
        *code = borders[1..].iter().map(|&border| u32::from(border <= v)).sum();
    }
    V::look_up_16(&levels.values, codes, stored);
    V::look_up_16(&nexts, codes, units);
    let neighbours = stored.iter().zip(&*units);
    for ((&v, &uniform), (code, (&a, &b))) in
        v.iter().zip(uniforms).zip(codes.iter_mut().zip(neighbours))
    {
        let is_upper = uniform * (b - a) < v - a;
        *code = if is_zero(v, rules::<REPAIRED>()) { 0 } else { *code + u32::from(is_upper) };
    }
    V::look_up_16(&levels.units, codes, units);
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
    let levels = Levels::<COUNT>::new::<REPAIRED>(grid, unit_of);
    for (((&v, &uniform), code), unit) in v.iter().zip(uniforms).zip(codes).zip(units) {
        let reached = |code: &usize| border(grid, &levels.values, *code) <= v;
        let lower = (1..COUNT).filter(reached).count();
        let a = levels.values[lower];
        let b = levels.values.get(lower + 1).copied().unwrap_or(f32::INFINITY);
        let is_upper = uniform * (b - a) < v - a;
        let is_zero = is_zero(v, rules::<REPAIRED>());
        *code = if is_zero { 0 } else { (lower + usize::from(is_upper)) as u32 };
        *unit = levels.units[*code as usize % COUNT];
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
