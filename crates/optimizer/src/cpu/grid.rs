//! Second moments on grids of logarithms, which `ustate1q` and `n4l4` share.
//!
//! A code is read by computing what it stands for, which vectorises; looking it up in a table would
//! not. It is written by comparing with all levels of the block, of which there are few.

use formats::Rules;
use formats::one_q::{Extent, Grid, LEVELS_MAX, ZERO_MAX, is_zero};

/// The rules of a format by its constant.
#[inline(always)]
pub(crate) const fn rules<const REPAIRED: bool>() -> Rules {
    if REPAIRED { Rules::Repaired } else { Rules::Published }
}

/// The second moments of codes, and their roots.
#[inline(always)]
pub(crate) fn decode<const REPAIRED: bool>(
    endpoints: [u16; 2],
    bits: u32,
    codes: &[u32],
    v: &mut [f32],
    roots: &mut [f32],
) {
    let grid = Grid::new(endpoints, bits);
    for ((v, root), &code) in v.iter_mut().zip(roots).zip(codes) {
        *v = grid.value(code, rules::<REPAIRED>());
        *root = v.sqrt();
    }
}

/// The codes of a block of second moments, given their random numbers, and what is stored by
/// them, with the roots. Returns the endpoints.
#[inline(always)]
pub(crate) fn encode<const REPAIRED: bool>(
    bits: u32,
    (v, uniforms): (&[f32], &[f32]),
    codes: &mut [u32],
    stored: &mut [f32],
    roots: &mut [f32],
) -> [u16; 2] {
    let endpoints = extent::<REPAIRED>(v).endpoints(rules::<REPAIRED>());
    let grid = Grid::new(endpoints, bits);
    match bits {
        2 => encode_few::<REPAIRED, 4>(grid, v, uniforms, codes, stored),
        3 => encode_few::<REPAIRED, 8>(grid, v, uniforms, codes, stored),
        4 => encode_few::<REPAIRED, 16>(grid, v, uniforms, codes, stored),
        6 => encode_many::<REPAIRED, 64>(grid, v, uniforms, codes, stored),
        _ => encode_many::<REPAIRED, 256>(grid, v, uniforms, codes, stored),
    }
    for (root, stored) in roots.iter_mut().zip(stored) {
        *root = stored.sqrt();
    }
    endpoints
}

/// All levels, and infinity above them, which nothing is rounded up to.
#[inline(always)]
fn levels<const REPAIRED: bool, const COUNT: usize>(grid: Grid) -> [f32; LEVELS_MAX + 1] {
    let mut levels = [f32::INFINITY; LEVELS_MAX + 1];
    for (code, level) in levels[..COUNT].iter_mut().enumerate() {
        *level = grid.value(code as u32, rules::<REPAIRED>());
    }
    levels
}

/// What a second moment must reach to have a code from 1 on: its level, or not to be zero.
#[inline(always)]
fn border(grid: Grid, levels: &[f32], code: usize) -> f32 {
    if grid.has_zero && code == 1 { ZERO_MAX.next_up() } else { levels[code] }
}

/// With up to 16 levels: both neighbours are chosen while all levels are compared.
#[inline(always)]
fn encode_few<const REPAIRED: bool, const COUNT: usize>(
    grid: Grid,
    v: &[f32],
    uniforms: &[f32],
    codes: &mut [u32],
    stored: &mut [f32],
) {
    let levels = levels::<REPAIRED, COUNT>(grid);
    let mut borders = [0.0; COUNT];
    for (code, own) in borders.iter_mut().enumerate() {
        *own = border(grid, &levels, code);
    }
    for (((&v, &uniform), code), stored) in v.iter().zip(uniforms).zip(codes).zip(stored) {
        let (mut lower, mut a, mut b) = (0, levels[0], levels[1]);
        for next in 1..COUNT {
            let is_reached = borders[next] <= v;
            lower += u32::from(is_reached);
            a = if is_reached { levels[next] } else { a };
            b = if is_reached { levels[next + 1] } else { b };
        }
        let is_upper = uniform * (b - a) < v - a;
        let is_zero = is_zero(v, rules::<REPAIRED>());
        let chosen = if is_upper { b } else { a };
        *code = if is_zero { 0 } else { lower + u32::from(is_upper) };
        *stored = if is_zero { levels[0] } else { chosen };
    }
}

/// With more levels: neighbours are looked up.
#[inline(always)]
fn encode_many<const REPAIRED: bool, const COUNT: usize>(
    grid: Grid,
    v: &[f32],
    uniforms: &[f32],
    codes: &mut [u32],
    stored: &mut [f32],
) {
    let levels = levels::<REPAIRED, COUNT>(grid);
    for (((&v, &uniform), code), stored) in v.iter().zip(uniforms).zip(codes).zip(stored) {
        let reached = |code: &usize| border(grid, &levels, *code) <= v;
        let lower = (1..COUNT).filter(reached).count();
        let (a, b) = (levels[lower], levels[lower + 1]);
        let is_upper = uniform * (b - a) < v - a;
        let is_zero = is_zero(v, rules::<REPAIRED>());
        *code = if is_zero { 0 } else { (lower + usize::from(is_upper)) as u32 };
        *stored = levels[*code as usize];
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
