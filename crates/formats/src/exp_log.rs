//! `exp` and `ln` of f32 by one fixed sequence of sums and products, so that every
//! device gives the same bits.
//!
//! A library's functions differ from machine to machine in their last bit, and a
//! format that stores logarithms would then store other codes. Here each step is one
//! IEEE operation, rounded to nearest, and none is fused:
//!
//! ```text
//! exp(x):  n = round(x / ln 2),  r = (x - n H) - n L        H + L = ln 2, n H exact
//!          exp(x) = (1 + (r + r^2 P(r))) 2^n                |r| <= ln 2 / 2
//! ln(x):   x = (1 + f) 2^e,  sqrt(1/2) <= 1 + f < sqrt(2)
//!          ln(x) = e H + (f + (f^3 Q(f) - f^2 / 2 + e L))
//! ```
//!
//! P and Q are minimax polynomials of degree 4 and 7. Bounds, which the tests prove over
//! all f32 of the ranges in steps:
//!
//! * [`exp`] is within `2^-22` of the true value, relatively, where the result is
//!   normal; subnormal results are rounded once more;
//! * [`ln`] is within `2^-23 (1 + |ln x|)` of the true value, absolutely.
//!
//! How the bound of `exp` comes about, in units of `2^-24` relative to the result: 0.1 from P,
//! 0.5 from the rounding of r (of at most 0.35, where half an ulp is `2^-26`, doubled by its two
//! steps), 0.7 from the rounding of the sum in the bracket, and up to 1.5 from the
//! last sum, whose ulp is `2^-23` at most and whose value is at least 0.7.

/// `1 / ln 2`
pub const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// The upper 10 bits of `ln 2`, so that its product with an exponent is exact.
pub const LN_2_HIGH: f32 = f32::from_bits(0x3F31_8000);
/// The rest of `ln 2`.
pub const LN_2_LOW: f32 = f32::from_bits(0xB95E_8083);
/// A sum with this number is rounded to an integer, which its low bits then count.
const ROUNDER: f32 = 12_582_912.0;
/// The bits of `sqrt(1/2)`, where the fractions of [`ln`] begin.
pub const SQRT_HALF_BITS: u32 = 0x3F35_04F3;

/// P, from its constant term up.
pub const EXP_COEFFICIENTS: [f32; 5] =
    [0.499_999_94, 0.166_665_21, 0.041_668_374, 0.008_368_647, 0.001_381_496_7];
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

/// `e^x` for `x` from -103 to 88.72.
#[inline(always)]
#[must_use]
pub const fn exp(x: f32) -> f32 {
    let shifted = x * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let [c0, c1, c2, c3, c4] = EXP_COEFFICIENTS;
    let p = (((c4 * r + c3) * r + c2) * r + c1) * r + c0;
    let fraction = 1.0 + (r + (r * r) * p);
    // In two halves, so that neither power leaves the range of normal numbers.
    let half = exponent >> 1;
    (fraction * power_of_two(half)) * power_of_two(exponent - half)
}

/// The natural logarithm of a finite number above zero.
#[inline(always)]
#[must_use]
pub const fn ln(x: f32) -> f32 {
    let is_subnormal = x < f32::MIN_POSITIVE;
    let normal = if is_subnormal { x * power_of_two(24) } else { x };
    let offset = normal.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = ((offset as i32) >> 23) - if is_subnormal { 24 } else { 0 };
    let e = exponent as f32;
    let f = f32::from_bits((offset & 0x007F_FFFF) + SQRT_HALF_BITS) - 1.0;
    let [c0, c1, c2, c3, c4, c5, c6, c7] = LN_COEFFICIENTS;
    let q = ((((((c7 * f + c6) * f + c5) * f + c4) * f + c3) * f + c2) * f + c1) * f + c0;
    let square = f * f;
    let tail = (f * square) * q - 0.5 * square;
    e * LN_2_HIGH + (f + (tail + e * LN_2_LOW))
}

/// `2^exponent`, for exponents of normal f32 numbers.
#[inline(always)]
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
