//! `exp2` and `ln` of f32 by one fixed sequence of sums and products, so that every
//! device gives the same bits.
//!
//! A library's functions differ from machine to machine in their last bit, and a
//! format that stores logarithms would then store other codes. Here each step is one
//! IEEE operation, rounded to nearest; `fma(x, y, z)` is `x y + z` rounded once, which processors have or
//! a library computes exactly:
//!
//! ```text
//! exp2(x): n = round(x),  f = x - n exactly                 |f| <= 1/2
//!          exp2(x) = P(f) 2^n                               P(0) = 1
//! ln(x):   x = (1 + f) 2^e,  sqrt(1/2) <= 1 + f < sqrt(2)
//!          ln(x) = e H + (f + (f^2 (f Q(f) - 1/2) + e L))   H + L = ln 2, e H exact
//! ```
//!
//! P and Q are minimax polynomials of degree 5 and 7, by Horner's rule with fma. Bounds, which the tests
//! prove over all f32 of the ranges in steps:
//!
//! * [`exp2`] is within `2^-22` of the true value, relatively;
//! * [`ln`] is within `2^-23 (1 + |ln x|)` of the true value, absolutely.
//!
//! How the bound of `exp2` comes about, in units of `2^-24` relative to the result: 1.54 from P (9.15e-8),
//! 0.1 from its coefficients, and of the roundings of Horner's rule that of the last step, 1 at most since the
//! result is at least 0.7, and 0.35 of the one before it, halved by `|f|`, with less of the others: 3.1, where
//! the bound is 4.

use crate::fused::fused;

/// The upper 10 bits of `ln 2`, so that its product with an exponent is exact.
pub const LN_2_HIGH: f32 = f32::from_bits(0x3F31_8000);
/// The rest of `ln 2`.
pub const LN_2_LOW: f32 = f32::from_bits(0xB95E_8083);
/// A sum with this number is rounded to an integer, which its low bits then count.
pub const ROUNDER: f32 = 12_582_912.0;
/// The bits of `sqrt(1/2)`, where the fractions of [`ln`] begin.
pub const SQRT_HALF_BITS: u32 = 0x3F35_04F3;

/// P, from its linear term up; the constant one is 1.
pub const EXP2_COEFFICIENTS: [f32; 5] =
    [f32::from_bits(0x3F31_7215), 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];
/// Q, from its constant term up.
pub const LN_COEFFICIENTS: [f32; 8] = [
    0.333_333_3,
    -0.250_008_2,
    0.200_012_28,
    -0.166_233_94,
    0.142_017_63,
    -0.131_598_77,
    0.127_613_9,
    -0.076_349_8,
];

/// `2^x` for `x` from -125 to 127.
#[inline(always)]
#[must_use]
pub fn exp2(x: f32) -> f32 {
    let shifted = x + ROUNDER;
    let f = x - (shifted - ROUNDER);
    let [c1, c2, c3, c4, c5] = EXP2_COEFFICIENTS;
    let upper = fused(fused(c5, f, c4), f, c3);
    let p = fused(fused(fused(upper, f, c2), f, c1), f, 1.0);
    // The low bits of the sum count n; all others are shifted out.
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// The natural logarithm of a finite number above zero.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let is_subnormal = x < f32::MIN_POSITIVE;
    let normal = if is_subnormal { x * 16_777_216.0 } else { x };
    let offset = normal.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = ((offset as i32) >> 23) - if is_subnormal { 24 } else { 0 };
    let e = exponent as f32;
    let f = f32::from_bits((offset & 0x007F_FFFF) + SQRT_HALF_BITS) - 1.0;
    let [c0, c1, c2, c3, c4, c5, c6, c7] = LN_COEFFICIENTS;
    let upper = fused(fused(fused(c7, f, c6), f, c5), f, c4);
    let q = fused(fused(fused(fused(upper, f, c3), f, c2), f, c1), f, c0);
    let tail = (f * f) * fused(q, f, -0.5);
    fused(e, LN_2_HIGH, f + fused(e, LN_2_LOW, tail))
}
