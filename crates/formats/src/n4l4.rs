//! The `n4l4` format, 8.5 bits: the normalised first moment in signed 4-bit codes, the root of the
//! second moment on a 4-bit grid.
//!
//! One byte holds both codes of an element, the first moment's in its low half. Every 64 elements
//! share a bf16 `unit`, every 128 two bf16 endpoints, `lo` and `hi`.
//!
//! ```text
//! r = the f32 whose bits are  bits(lo) + k * step      v = r r
//! q = (c - 8) * unit                                   m = q r       c = 1..15; 0 where r is
//! ```
//!
//! **Second moments.** The bits of a positive f32, read as an integer, are its binary logarithm but for
//! the straight lines between powers of two; so a grid that is even in them is one of logarithms,
//! and needs no exp and no ln. `step` is the 15th part of the way from lo to hi, rounded up. Between
//! two neighbours a < b the upper one is taken with the probability `(r^2 - a^2) / (b^2 - a^2)`, which
//! keeps v on average. Endpoints are rounded outward. Endpoints in descending order say that code 0
//! stands for zero, and the codes from 1 on for the grid, of one interval less; an r of at most
//! [`ROOT_ZERO_MAX`] counts as zero.
//!
//! **First moments.** q = m / r, with r as it is stored, is bounded by what exact moments allow. Codes round
//! stochastically too. Zero is a code, so a coordinate without gradients keeps exactly no first
//! moment; and q is a quotient of moments alone, so that it needs no bias corrections and a state
//! means the same whenever it is read. The unit is a seventh of the largest `|q|`, rounded up, but not
//! beyond a seventh of the bound of q, so that no decoded moment needs to be bounded again.
//!
//! A moment and its unit come from the same stored r, so an error of r moves both: the step
//! that is lost or won at the next update is that of q alone.

use crate::Error;
use crate::half_floats::bf16_to_f32;
use crate::options::{power_of_two, whole, wrong};

/// The largest multiple of the unit.
pub const CODE_MAX: i32 = 7;
/// Its inverse, rounded once.
pub const INVERSE_CODE_MAX: f32 = 1.0 / CODE_MAX as f32;
/// The code of a first moment of zero.
pub const CODE_OF_ZERO: i32 = 8;
/// Bits of a code of the second moment.
pub const V_BITS: u32 = 4;

/// What an `n4l4` tensor is stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct N4l4 {
    /// Elements that share a unit: a power of two from 16 to 256, at most a block of `v`.
    pub m_block: u32,
    /// Elements that share endpoints: a power of two from 16 to 256.
    pub v_block: u32,
    /// Whether codes of the first moment round to nearest instead.
    pub is_nearest: bool,
    /// Tensors with fewer elements are stored as f32.
    pub min_elements: u32,
}

impl N4l4 {
    /// Blocks of 64 and 128, from 4096 elements on.
    pub const DEFAULT: N4l4 =
        N4l4 { m_block: 64, v_block: 128, is_nearest: false, min_elements: 4096 };

    /// Sets the option `name`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match name {
            "m_block" => self.m_block = power_of_two(name, value, 16..=256)?,
            "v_block" => self.v_block = power_of_two(name, value, 16..=256)?,
            "m_rounding" => {
                self.is_nearest = match value {
                    "stochastic" => false,
                    "nearest" => true,
                    _ => return Err(wrong(name, "stochastic or nearest", value)),
                }
            }
            "min" => self.min_elements = whole(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the options fit each other.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.m_block <= self.v_block {
            Ok(())
        } else {
            Err(Error::MeanBlock { block: self.v_block, found: self.m_block })
        }
    }

    /// The options, as they are set.
    pub(crate) fn options(self) -> [(&'static str, u32); 4] {
        [
            ("m_block", self.m_block),
            ("v_block", self.v_block),
            ("m_rounding", u32::from(self.is_nearest)),
            ("min", self.min_elements),
        ]
    }
}

/// What the root of a second moment must exceed to be kept: 2^-48.
pub const ROOT_ZERO_MAX: f32 = f32::from_bits((127 - 48) << 23);
/// A sum with this number is rounded to an integer, also a negative one, which its low bits then count.
pub const ROUNDER: f32 = 12_582_912.0;
/// The largest code of a second moment.
pub const V_CODE_MAX: u32 = (1 << V_BITS) - 1;

/// What of a block's roots decides its endpoints: bits, which order as the roots do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Of the smallest one that is not zero; all ones if there is none.
    pub min_bits: u32,
    /// Of the largest one.
    pub max_bits: u32,
}

impl Extent {
    /// That of no numbers.
    pub const NONE: Extent = Extent { min_bits: u32::MAX, max_bits: 0 };

    /// With one more root.
    #[inline(always)]
    #[must_use]
    pub fn with(self, root: f32) -> Extent {
        let bits = root.to_bits();
        let kept = if root <= ROOT_ZERO_MAX { u32::MAX } else { bits };
        Extent { min_bits: self.min_bits.min(kept), max_bits: self.max_bits.max(bits) }
    }

    /// The endpoints, in the order in which they are stored; `has_zero` says whether a root counts as
    /// zero.
    #[inline(always)]
    #[must_use]
    pub const fn endpoints(self, has_zero: bool) -> [u16; 2] {
        if self.min_bits == u32::MAX {
            return [0; 2];
        }
        let lo = (self.min_bits >> 16) as u16;
        let hi = ((self.max_bits + 0xFFFF) >> 16) as u16;
        match (has_zero, lo == hi) {
            (false, _) => [lo, hi],
            (true, false) => [hi, lo],
            // Equal endpoints have no order; one more step makes one.
            (true, true) => [hi + 1, lo],
        }
    }
}

/// What the codes of a block of second moments stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Bits of the root of code 0, if that is not zero.
    pub base: u32,
    /// How far those of the next code are.
    pub step: u32,
    /// The inverse of the step; 0 for a step of 0.
    pub inverse_step: f32,
    /// Whether code 0 is zero.
    pub has_zero: bool,
}

impl Grid {
    /// What codes mean between these endpoints.
    #[inline(always)]
    #[must_use]
    pub fn new([first, second]: [u16; 2]) -> Grid {
        let has_zero = first > second;
        let (lo, hi) = if has_zero { (second, first) } else { (first, second) };
        let (lo_bits, width) = (u32::from(lo) << 16, u32::from(hi - lo) << 16);
        let step =
            if has_zero { width.div_ceil(V_CODE_MAX - 1) } else { width.div_ceil(V_CODE_MAX) };
        let inverse_step = if step == 0 { 0.0 } else { 1.0 / step as i32 as f32 };
        let base = if has_zero { lo_bits.wrapping_sub(step) } else { lo_bits };
        Grid { base, step, inverse_step, has_zero }
    }

    /// The root that a code stands for.
    #[inline(always)]
    #[must_use]
    pub fn root(self, code: u32) -> f32 {
        let root = f32::from_bits(self.base.wrapping_add(code.wrapping_mul(self.step)));
        if self.has_zero && code == 0 { 0.0 } else { root }
    }

    /// The code of a root between the endpoints, and what is stored by it; `uniform` is from 0 to 1.
    #[inline(always)]
    #[must_use]
    pub fn code(self, root: f32, uniform: f32) -> (u32, f32) {
        let distance = root.to_bits().wrapping_sub(self.base) as i32;
        // The next lower integer; or, which changes nothing, the one below an integer.
        let shifted = (distance as f32 * self.inverse_step - 0.5) + ROUNDER;
        let lower = shifted.to_bits().wrapping_sub(ROUNDER.to_bits());
        let (a, b) = (self.root(lower), self.root(lower.wrapping_add(1)));
        let a_square = a * a;
        let is_upper = uniform * (b * b - a_square) < root * root - a_square;
        let (code, stored) = if is_upper { (lower.wrapping_add(1), b) } else { (lower, a) };
        if root <= ROOT_ZERO_MAX { (0, self.root(0)) } else { (code, stored) }
    }
}

/// The unit of a block, as it is stored: the next bf16 not below a seventh of the largest `|q|`, but no
/// larger than a seventh of `ratio_max`, the bound of q; zero below 2^-100, so that its inverse is
/// finite.
#[inline(always)]
#[must_use]
pub const fn stored_unit(absmax: f32, ratio_max: f32) -> u16 {
    const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
    let above = ((absmax * INVERSE_CODE_MAX).to_bits() + 0xFFFF) >> 16;
    let largest = (ratio_max * INVERSE_CODE_MAX).to_bits() >> 16;
    if absmax < SMALLEST {
        0
    } else if above < largest {
        above as u16
    } else {
        largest as u16
    }
}

/// Codes for a unit of q.
#[inline(always)]
#[must_use]
pub fn inverse_unit(unit: u16) -> f32 {
    let unit = bf16_to_f32(unit);
    if unit > 0.0 { 1.0 / unit } else { 0.0 }
}

/// The code of q, from 1 to 15: 8 and the multiple of the unit, and `dither - 1/2`, rounded to nearest;
/// `dither` is from 0 to 1.
#[inline(always)]
#[must_use]
pub const fn code(q: f32, inverse_unit: f32, dither: f32) -> u32 {
    // A sum with this number is rounded to an integer, which its low bits then count.
    const COUNTER: f32 = 8_388_608.0;
    let position = q * inverse_unit + (dither + (CODE_OF_ZERO as f32 - 0.5));
    let position = if position > 1.0 { position } else { 1.0 };
    let position = if position < 15.0 { position } else { 15.0 };
    (position + COUNTER).to_bits() & 0xF
}

/// The multiple of the unit that a code stands for.
#[inline(always)]
#[must_use]
pub const fn multiple(code: u32) -> f32 {
    (code & 0xF) as i32 as f32 - CODE_OF_ZERO as f32
}
