//! The 16-bit floating-point numbers in which block formats keep their scales: binary16 and bf16.
//!
//! Scales are few, so these are plain conversions, one number at a time. The lanes
//! of state words have their own codecs in [`minifloat`](crate::minifloat).

use crate::bias::Bias;
use crate::minifloat::Binary16;

const BINARY16: Binary16 = Binary16::new(Bias::BINARY16);
const SIGN: u16 = 0x8000;

/// The value of a binary16 that is neither infinite nor NaN.
#[inline(always)]
#[must_use]
pub const fn binary16_to_f32(bits: u16) -> f32 {
    BINARY16.decode_signed(bits as u32)
}

/// The nearest binary16, ties to even, at most 65504.
#[inline(always)]
#[must_use]
pub const fn binary16_nearest(value: f32) -> u16 {
    BINARY16.encode_signed_nearest(value).code as u16
}

/// The largest binary16 that is not above `value`.
#[inline(always)]
#[must_use]
pub const fn binary16_below(value: f32) -> u16 {
    let nearest = binary16_nearest(value);
    if binary16_to_f32(nearest) > value { binary16_next_below(nearest) } else { nearest }
}

/// The smallest binary16 that is not below `value`.
#[inline(always)]
#[must_use]
pub const fn binary16_above(value: f32) -> u16 {
    let nearest = binary16_nearest(value);
    if binary16_to_f32(nearest) < value { binary16_next_above(nearest) } else { nearest }
}

/// The next binary16 below one; both zeros count as one number.
#[inline(always)]
#[must_use]
pub const fn binary16_next_below(bits: u16) -> u16 {
    if bits & !SIGN == 0 {
        SIGN | 1
    } else if bits & SIGN == 0 {
        bits - 1
    } else {
        bits + 1
    }
}

/// The next binary16 above one; both zeros count as one number.
#[inline(always)]
#[must_use]
pub const fn binary16_next_above(bits: u16) -> u16 {
    binary16_next_below(bits ^ SIGN) ^ SIGN
}

/// The value of a bf16.
#[inline(always)]
#[must_use]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest bf16, ties to even, of a number that is not NaN.
#[inline(always)]
#[must_use]
pub const fn bf16_nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}
