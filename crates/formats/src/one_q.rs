//! The second moment in a few bits: a grid of logarithms between two endpoints per block, which the
//! formats `ustate1q` and `n4l4` share.
//!
//! A block keeps two endpoints as binary16: natural logarithms of its smallest and largest `v`.
//! With K bits a code k stands for
//!
//! ```text
//! v = exp(lo + k * step)           step = (hi - lo) / (2^K - 1)
//! ```
//!
//! which is computed as the square of its root, `r = exp2(lo / (2 ln 2) + k * step / (2 ln 2))`, since the
//! first moment needs the root: one rounding of either product, of the sum and of the square, and the bound
//! of [`exp2`]. With the constants' own roundings r is within
//!
//! ```text
//! ln 2 (2^-23 |lo / (2 ln 2)| + 2^-24 |hi / (2 ln 2)| + 1.5 * 2^-23 (hi - lo) / (2 ln 2)) + 2^-22
//! ```
//!
//! of the true value, relatively, and v within twice that and `2^-24`: 8e-6 for v down to 1e-13.
//!
//! Codes round stochastically, and without bias in `v` itself: between two neighbours a < b the upper
//! one is taken with the probability `(v - a) / (b - a)`, see [`code`].
//!
//! The published format cannot say zero, and a block with a dead coordinate would have to span
//! forty decades. Here endpoints in *descending* order say that code 0 stands for zero and the codes from 1
//! on for the grid, of one interval less; the published format has no such blocks, so all of its
//! blocks keep their meaning. A `v` of at most [`ZERO_MAX`] counts as zero.
//!
//! Endpoints are rounded outward, always. In the published format a block of equal `v` rounds to the
//! nearest binary16 instead and then cannot follow a slow average: it freezes.

use crate::exp_log::{exp2, ln};
use crate::format::Rules;
use crate::fused::fused;
use crate::half_floats::{
    binary16_above, binary16_below, binary16_nearest, binary16_next_below, binary16_to_f32,
};

/// The endpoints of a block that nothing was stored in: `exp` of it is 1.0152e-30.
pub const FRESH_ENDPOINT: u16 = 0xD451;

/// What a second moment must exceed to be kept: 2^-96, the square of 3.6e-15.
pub const ZERO_MAX: f32 = f32::from_bits((127 - 96) << 23);

/// The largest logarithm of an endpoint: the largest binary16 below `ln` of the largest f32.
pub const LOG_MAX: f32 = 88.6875;
/// What the published format raises smaller numbers to before it takes logarithms.
const PUBLISHED_MIN: f32 = 1e-38;

/// The most codes of a block.
pub const LEVELS_MAX: usize = 256;

/// What of a block's second moments decides its endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The smallest one that is not zero; infinite if there is none.
    pub min: f32,
    /// The largest one.
    pub max: f32,
    /// Whether one of them is zero.
    pub has_zero: bool,
}

impl Extent {
    /// That of no numbers.
    pub const NONE: Extent = Extent { min: f32::INFINITY, max: 0.0, has_zero: false };

    /// With one more number.
    #[inline(always)]
    #[must_use]
    pub fn with(self, v: f32, rules: Rules) -> Extent {
        let is_zero = is_zero(v, rules);
        let kept = if is_zero { f32::INFINITY } else { v };
        Extent {
            min: if kept < self.min { kept } else { self.min },
            max: if v > self.max { v } else { self.max },
            has_zero: self.has_zero | is_zero,
        }
    }

    /// The endpoints, in the order in which they are stored.
    #[inline(always)]
    #[must_use]
    pub fn endpoints(self, rules: Rules) -> [u16; 2] {
        self.endpoints_of(self.ends(rules).map(ln), rules)
    }

    /// The numbers whose logarithms decide the endpoints.
    #[inline(always)]
    #[must_use]
    pub fn ends(self, rules: Rules) -> [f32; 2] {
        let raised = |v: f32| if v > PUBLISHED_MIN { v } else { PUBLISHED_MIN };
        match rules {
            Rules::Repaired => [self.min, self.max],
            Rules::Published => [raised(self.min), raised(self.max)],
        }
    }

    /// The endpoints, given these logarithms.
    #[inline(always)]
    #[must_use]
    pub fn endpoints_of(self, logs: [f32; 2], rules: Rules) -> [u16; 2] {
        let [log_min, log_max] = logs.map(|log| smaller(log, LOG_MAX));
        if rules == Rules::Published {
            return if log_max > log_min {
                let above = binary16_to_f32(binary16_above(log_max));
                [binary16_below(log_min), binary16_nearest(smaller(above, LOG_MAX))]
            } else {
                [binary16_nearest(log_min), binary16_nearest(log_max)]
            };
        }
        self.ordered([binary16_below(log_min), binary16_above(log_max)])
    }

    /// The endpoints of a mended format, given the logarithms rounded outward.
    #[inline(always)]
    #[must_use]
    pub fn ordered(self, [lo, hi]: [u16; 2]) -> [u16; 2] {
        if self.min == f32::INFINITY {
            return [FRESH_ENDPOINT; 2];
        }
        match (self.has_zero, lo == hi) {
            (false, _) => [lo, hi],
            (true, false) => [hi, lo],
            // Equal endpoints have no order; one more step makes one.
            (true, true) => [hi, binary16_next_below(lo)],
        }
    }
}

/// `1 / (2 ln 2)`: what turns the logarithm of v into the binary one of its root.
pub const HALF_LOG2_E: f32 = 0.721_347_5;

/// What the codes of a block stand for: the binary logarithms of roots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// That of code 0, if that is not zero.
    pub lowest: f32,
    /// How far that of the next code is.
    pub step: f32,
    /// Whether code 0 is zero.
    pub has_zero: bool,
}

impl Grid {
    /// What `bits`-bit codes mean between these endpoints.
    #[inline(always)]
    #[must_use]
    pub fn new(endpoints: [u16; 2], bits: u32) -> Grid {
        let [first, second] = endpoints.map(binary16_to_f32);
        let has_zero = first > second;
        let (lo, hi) = if has_zero { (second, first) } else { (first, second) };
        let intervals = (1u32 << bits) - 1 - has_zero as u32;
        let unit = HALF_LOG2_E / intervals as f32;
        Grid { lowest: lo * HALF_LOG2_E, step: (hi - lo) * unit, has_zero }
    }

    /// The root of what a code stands for. In the mended formats, the root of a number that is kept as zero
    /// is zero.
    #[inline(always)]
    #[must_use]
    pub fn root(self, code: u32, rules: Rules) -> f32 {
        let position = code.wrapping_sub(self.has_zero as u32) as i32;
        let root = exp2(fused(position as f32, self.step, self.lowest));
        if is_zero(root * root, rules) || position < 0 { 0.0 } else { root }
    }

    /// What a code stands for.
    #[inline(always)]
    #[must_use]
    pub fn value(self, code: u32, rules: Rules) -> f32 {
        let root = self.root(code, rules);
        root * root
    }
}

/// Whether a second moment is kept as zero.
#[inline(always)]
#[must_use]
pub fn is_zero(v: f32, rules: Rules) -> bool {
    v <= ZERO_MAX && matches!(rules, Rules::Repaired)
}

/// The code of `v`, given what all codes stand for; `uniform` is from 0 to 1.
///
/// With n levels, not counting that of zero, at or below `v`: the last of those, a, or the next one b if
/// `fma(uniform, b - a, -(v - a))` has a sign, which happens with the probability that the file head says.
#[inline(always)]
#[must_use]
pub fn code(levels: &[f32], has_zero: bool, v: f32, uniform: f32, rules: Rules) -> u32 {
    if is_zero(v, rules) {
        return 0;
    }
    // What is not zero has a code above that of zero, though rounding may have put the lowest level
    // above it.
    let lowest = has_zero as usize;
    let lower = lowest + levels[lowest + 1..].iter().filter(|&&level| level <= v).count();
    let a = levels[lower];
    let b = levels.get(lower + 1).copied().unwrap_or(f32::INFINITY);
    lower as u32 + is_upper(v - a, b - a, uniform)
}

/// 1 for the upper of two levels, given how far `v` lies above the lower one and how wide they are
/// apart; else 0.
#[inline(always)]
#[must_use]
pub fn is_upper(distance: f32, width: f32, uniform: f32) -> u32 {
    fused(uniform, width, -distance).to_bits() >> 31
}

#[inline(always)]
fn smaller(x: f32, y: f32) -> f32 {
    if x < y { x } else { y }
}
