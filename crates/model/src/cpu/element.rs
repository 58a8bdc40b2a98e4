//! The numbers that the CPU computes with: `f32` for work, `f64` for checking. `f32` has an
//! exponential of its own, because the loops around it must vectorise and its bits must not depend
//! on a platform's mathematics library.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// `f32` or `f64`.
pub trait Element:
    sealed::Sealed
    + Copy
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Below every number.
    const NEGATIVE_INFINITY: Self;

    /// The nearest value.
    fn from_f64(value: f64) -> Self;

    /// The value, exactly.
    fn to_f64(self) -> f64;

    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;

    /// e^x. In `f32`: 0 below -87 and e^87 above 87; in between the relative error is below
    /// 2.5 * 2^-24, and NaN stays NaN.
    fn exp(self) -> Self;
}

mod sealed {
    /// The products accept no other types.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Element for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEGATIVE_INFINITY: Self = f64::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEGATIVE_INFINITY: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    // x = n ln 2 + r with |r| <= ln(2) / 2, and e^x = 2^n e^r. n is rounded by adding 1.5 * 2^23,
    // which leaves it in the low bits of the sum. ln 2 is subtracted in two parts, of which the
    // first has so few bits that n times it is exact. e^r is its Taylor polynomial of degree 7,
    // whose remainder is below r^8 / 8! < 2^-27.
    #[inline(always)]
    fn exp(self) -> Self {
        const LIMIT: f32 = 87.0;
        const ROUNDER: f32 = 12_582_912.0;
        const LN_2_HIGH: f32 = 0.693_359_4;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        let x = if self < -LIMIT { -LIMIT } else { self };
        let x = if x > LIMIT { LIMIT } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
        let n = shifted - ROUNDER;
        let r = x - n * LN_2_HIGH - n * LN_2_LOW;
        let p = r * (1.0 / 5040.0) + 1.0 / 720.0;
        let p = p * r + 1.0 / 120.0;
        let p = p * r + 1.0 / 24.0;
        let p = p * r + 1.0 / 6.0;
        let p = p * r + 0.5;
        let p = p * r * r + r + 1.0;
        let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
        let value = p * f32::from_bits(exponent << 23);
        if self < -LIMIT { 0.0 } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::Element;

    #[test]
    fn exponential_keeps_its_bound() {
        let mut worst = 0.0f64;
        for step in -870_000i32..=870_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(Element::exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.5 * 2f64.powi(-24), "relative error {worst:e}");
    }

    #[test]
    fn exponential_at_the_edges() {
        assert_eq!(Element::exp(0.0f32), 1.0);
        assert_eq!(Element::exp(-87.001f32), 0.0);
        assert_eq!(Element::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Element::exp(f32::INFINITY), Element::exp(87.0f32));
        assert!(Element::exp(f32::NAN).is_nan());
    }
}
