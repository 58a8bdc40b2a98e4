//! Minifloats whose every code is finite: E4M11, E4M12 and binary16 without its
//! infinities.
//!
//! With `M` fraction bits and bias `B`, a code is the exponent field `e` above
//! `M` fraction bits `f`, and stands for
//!
//! ```text
//! value = f * 2^(1 - B - M)              if e == 0   (subnormal)
//! value = (1 + f / 2^M) * 2^(e - B)      otherwise   (normal)
//! ```
//!
//! The codec holds the constants that follow from `B`, so a loop over one tensor
//! makes it once and each element costs a few integer and f32 operations. All of
//! them are exact, except the one rounding of an encode. No f32 subnormal takes
//! part: the smallest step of any bias is `2^-51`.
//!
//! What this file does not do: put two lanes into a word (see [`word`](crate::word)).

use crate::bias::Bias;

/// Fraction bits of f32.
const F32_FRACTION_BITS: u32 = f32::MANTISSA_DIGITS - 1;
/// Exponent bias of f32.
const F32_BIAS: u32 = 127;
/// The sign bit of a signed 16-bit lane.
const LANE_SIGN: u32 = 0x8000;

/// Codec of a minifloat with `M` fraction bits whose largest finite magnitude
/// has the code `CODE_MAX`, at one bias.
#[derive(Clone, Copy, Debug)]
pub struct Minifloat<const M: u32, const CODE_MAX: u32> {
    /// `(127 - B) << M`: what takes a normal code to the upper bits of its f32.
    rebase: u32,
    /// `2^(1 - B)`, where the normal codes begin.
    normal_min: f32,
    /// `2^(1 - B - M)`, the distance between subnormal codes.
    step: f32,
    /// `2^(B + M - 1)`, its reciprocal.
    steps_per_unit: f32,
}

/// The first moment of the `e4` formats: sign, 4 exponent bits, 11 fraction bits.
pub type E4M11 = Minifloat<11, 0x7FFF>;
/// The RMS of the `e4` formats: no sign, 4 exponent bits, 12 fraction bits.
pub type E4M12 = Minifloat<12, 0xFFFF>;
/// The lanes of the `fp16` format: at [`Bias::BINARY16`], IEEE 754 binary16, where
/// an encode stops at 65504 and never makes an infinity or a NaN.
pub type Binary16 = Minifloat<10, 0x7BFF>;

/// The code that an encode chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded {
    /// The code.
    pub code: u32,
    /// Whether rounding led beyond the largest finite code, which was stored instead.
    pub saturated: bool,
}

impl<const M: u32, const CODE_MAX: u32> Minifloat<M, CODE_MAX> {
    /// Fraction bits of f32 that the format has no room for.
    const DROPPED_BITS: u32 = F32_FRACTION_BITS - M;

    /// The codec at `bias`.
    #[must_use]
    pub const fn new(bias: Bias) -> Self {
        let bias = bias.get();
        Minifloat {
            rebase: (F32_BIAS - bias) << M,
            normal_min: power_of_two(1 - bias as i32),
            step: power_of_two(1 - bias as i32 - M as i32),
            steps_per_unit: power_of_two(bias as i32 + M as i32 - 1),
        }
    }

    /// The value of a code without sign: exact, never negative.
    ///
    /// Total over codes of up to 16 bits; those above `CODE_MAX` continue the
    /// formula of the normal codes.
    #[inline(always)]
    #[must_use]
    pub const fn decode(self, code: u32) -> f32 {
        let subnormal = code as i32 as f32 * self.step;
        let normal = f32::from_bits(code.wrapping_add(self.rebase) << Self::DROPPED_BITS);
        if code < (1 << M) { subnormal } else { normal }
    }

    /// The code nearest to `magnitude`, ties to the even code.
    ///
    /// `magnitude` has no sign bit. Beyond the largest finite code, infinity and
    /// NaN included, the result is that code and counts as saturated; a number
    /// that rounds down to it does not.
    #[inline(always)]
    #[must_use]
    pub const fn encode_nearest(self, magnitude: f32) -> Rounded {
        let bits = magnitude.to_bits();
        // Half a step less one, and one more if the kept part is odd, carries
        // into the kept part exactly when the dropped bits round up.
        let odd = (bits >> Self::DROPPED_BITS) & 1;
        let half_less_one = (1 << (Self::DROPPED_BITS - 1)) - 1;
        let rounded = bits.wrapping_add(half_less_one + odd);
        let normal = (rounded >> Self::DROPPED_BITS).wrapping_sub(self.rebase);
        // Near 2^23 steps the spacing of f32 is one step, so this addition is the
        // rounding, and the low bits of the sum count the steps.
        let anchor = self.step * (1 << F32_FRACTION_BITS) as f32;
        let subnormal = (magnitude + anchor).to_bits().wrapping_sub(anchor.to_bits());
        saturate::<CODE_MAX>(if magnitude < self.normal_min { subnormal } else { normal })
    }

    /// One of the two codes around `magnitude`: the upper one with a probability
    /// equal to how far `magnitude` lies from the lower one, so the expected
    /// value of the code is `magnitude`.
    ///
    /// `random` is a uniform word, of which the upper 23 bits count. They
    /// are enough for that to hold exactly for every `magnitude` of at least one
    /// subnormal step; below, the probability is cut to 23 bits. Saturates as
    /// [`encode_nearest`](Self::encode_nearest) does.
    #[inline(always)]
    #[must_use]
    pub const fn encode_stochastic(self, magnitude: f32, random: u32) -> Rounded {
        let bits = magnitude.to_bits();
        let steps = magnitude * self.steps_per_unit;
        let is_subnormal = magnitude < self.normal_min;
        let lower_subnormal = steps as i32;
        let lower_normal = (bits >> Self::DROPPED_BITS).wrapping_sub(self.rebase);
        let dropped = bits & ((1 << Self::DROPPED_BITS) - 1);
        let (lower, fraction) = if is_subnormal {
            (lower_subnormal as u32, steps - lower_subnormal as f32)
        } else {
            (lower_normal, dropped as i32 as f32 * power_of_two(-(Self::DROPPED_BITS as i32)))
        };
        let uniform = (random >> 9) as i32 as f32 * power_of_two(-23);
        saturate::<CODE_MAX>(lower.wrapping_add((uniform < fraction) as u32))
    }

    /// [`decode`](Self::decode) of a 16-bit lane with the sign in bit 15.
    #[inline(always)]
    #[must_use]
    pub const fn decode_signed(self, code: u32) -> f32 {
        let magnitude = self.decode(code & !LANE_SIGN);
        f32::from_bits(magnitude.to_bits() | (code & LANE_SIGN) << 16)
    }

    /// [`encode_nearest`](Self::encode_nearest) of a 16-bit lane with the sign in
    /// bit 15. Zero keeps its sign, and so does a number that rounds to zero.
    #[inline(always)]
    #[must_use]
    pub const fn encode_signed_nearest(self, value: f32) -> Rounded {
        let bits = value.to_bits();
        let Rounded { code, saturated } = self.encode_nearest(f32::from_bits(bits & 0x7FFF_FFFF));
        Rounded { code: code | (bits >> 16 & LANE_SIGN), saturated }
    }

    /// [`encode_stochastic`](Self::encode_stochastic) of a 16-bit lane with the sign in bit 15, which zero keeps.
    #[inline(always)]
    #[must_use]
    pub const fn encode_signed_stochastic(self, value: f32, random: u32) -> Rounded {
        let bits = value.to_bits();
        let magnitude = f32::from_bits(bits & 0x7FFF_FFFF);
        let Rounded { code, saturated } = self.encode_stochastic(magnitude, random);
        Rounded { code: code | (bits >> 16 & LANE_SIGN), saturated }
    }
}

impl Rounded {
    /// Replaces code 0 by the smallest code unless `magnitude` is zero: a second
    /// moment that is alive never decodes to zero, so a live first moment never
    /// meets a zero denominator. `magnitude` has no sign bit.
    #[inline(always)]
    #[must_use]
    pub const fn never_zero_for(self, magnitude: f32) -> Rounded {
        let smallest = (magnitude > 0.0) as u32;
        Rounded { code: if self.code < smallest { smallest } else { self.code }, ..self }
    }
}

#[inline(always)]
const fn saturate<const CODE_MAX: u32>(code: u32) -> Rounded {
    let saturated = code > CODE_MAX;
    Rounded { code: if saturated { CODE_MAX } else { code }, saturated }
}

/// `2^exponent`, for exponents of normal f32 numbers.
#[inline(always)]
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + F32_BIAS as i32) as u32) << F32_FRACTION_BITS)
}
