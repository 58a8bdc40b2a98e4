//! The `n4l4` format, 8.5 bits: the normalised first moment in signed 4-bit codes, the second moment on a
//! 4-bit grid of logarithms.
//!
//! One byte holds both codes of an element, the first moment's in its low half. Every 64 elements
//! share a bf16 `absmax`, every 128 the endpoints of [`one_q`](crate::one_q).
//!
//! ```text
//! q = m / sqrt(v')                 v': the second moment as it is stored; 0 where v' is
//! q = c * (absmax / 7)             c = -7..7, as the low four bits of its two's complement
//! ```
//!
//! Codes round stochastically. Zero is a code, so a coordinate without gradients keeps exactly no first
//! moment; and q is a quotient of moments alone, so that it needs no bias corrections and a state means
//! the same whenever it is read.
//!
//! A moment and its unit come from the same stored `v'`, so an error of `v'` moves both: the step
//! that is lost or won at the next update is that of q alone.

use crate::Error;
use crate::half_floats::{bf16_nearest, bf16_to_f32};
use crate::options::{power_of_two, whole, wrong};

/// The largest code of a first moment.
pub const CODE_MAX: i32 = 7;
/// Bits of a code of the second moment.
pub const V_BITS: u32 = 4;

/// What an `n4l4` tensor is stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct N4l4 {
    /// Elements that share an absmax: a power of two from 16 to 256, at most a block of `v`.
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

/// The absmax of a block, as it is stored: the nearest bf16, or zero below 2^-100, so that its
/// inverse is finite.
#[must_use]
pub const fn stored_absmax(absmax: f32) -> u16 {
    const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
    if absmax < SMALLEST { 0 } else { bf16_nearest(absmax) }
}

/// The distance of neighbouring codes.
#[must_use]
pub fn unit(absmax: u16) -> f32 {
    bf16_to_f32(absmax) / CODE_MAX as f32
}

/// Codes for a unit of q.
#[must_use]
pub fn inverse_unit(absmax: u16) -> f32 {
    let absmax = bf16_to_f32(absmax);
    if absmax > 0.0 { CODE_MAX as f32 / absmax } else { 0.0 }
}

/// The code of q, as four bits: the next lower integer, or the one above it if `uniform` lies below
/// the distance.
#[inline(always)]
#[must_use]
pub fn code(q: f32, inverse_unit: f32, uniform: f32) -> u32 {
    const LARGEST: f32 = CODE_MAX as f32;
    let position = q * inverse_unit + LARGEST;
    let position = if position > 0.0 { position } else { 0.0 };
    let position = if position < 2.0 * LARGEST { position } else { 2.0 * LARGEST };
    let lower = position as i32;
    let code = lower + i32::from(uniform < position - lower as f32) - CODE_MAX;
    code as u32 & 0xF
}

/// The integer that four bits stand for.
#[inline(always)]
#[must_use]
pub const fn integer(code: u32) -> i32 {
    ((code << 28) as i32) >> 28
}
