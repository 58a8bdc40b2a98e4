//! The `block8` format: both moments in 8-bit codes of a map, with the largest magnitude of every
//! block as f32.
//!
//! ```text
//! m = first_map[m_code] * m_absmax          m_code = first quantizer of  m / m_absmax
//! v = second_map[v_code] * v_absmax         v_code = second quantizer of v / v_absmax
//! ```
//!
//! Products and quotients are rounded to nearest. A block of zeros has an absmax of zero and the
//! codes of zero. The last block of a tensor may be shorter.
//!
//! `block8` mends what breaks block-wise formats, and costs no bits for it:
//!
//! * where entries lie far apart, a first moment rounds to the smaller one until it reaches 0.9 of
//!   the larger: at beta1 of 0.9 or less, one without further gradients then fades to zero, instead
//!   of drifting at an entry for good;
//! * a second moment above zero never becomes zero, which would let its coordinate jump;
//! * a decoded second moment is at least `(m / K)^2`, where K is the largest `|m| / sqrt(v)` that
//!   exact moments can have (the optimizer has it), so that no step is longer than one that exact AdamW
//!   could take.
//!
//! `block8-original` does none of that, treats signs as the published format does, and decays
//! parameters after the update.

use alloc::boxed::Box;

use crate::Error;
use crate::dynamic_map::{Map, Nearest, Quantizer, checked, signed, unsigned};
use crate::format::Rules;
use crate::options::{power_of_two, whole};

/// What a `block8` tensor is stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block8 {
    /// Elements of a block: a power of two from 64 to 4096.
    pub block: u32,
    /// Tensors with fewer elements are stored as f32.
    pub min_elements: u32,
    /// Whether the format is mended.
    pub rules: Rules,
}

/// The quantizers of both moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Maps {
    /// Of the first moment.
    pub first: Quantizer,
    /// Of the second moment.
    pub second: Quantizer,
}

impl Block8 {
    /// Blocks of 256, from 4096 elements on.
    pub const DEFAULT: Block8 = Block8 { block: 256, min_elements: 4096, rules: Rules::Repaired };
    /// The published format.
    pub const ORIGINAL: Block8 = Block8 { rules: Rules::Published, ..Block8::DEFAULT };

    /// Sets the option `name`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match name {
            "block" => self.block = power_of_two(name, value, 64..=4096)?,
            "min" => self.min_elements = whole(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The options, as they are set.
    pub(crate) fn options(self) -> [(&'static str, u32); 2] {
        [("block", self.block), ("min", self.min_elements)]
    }
}

impl Maps {
    /// The dynamic maps, with the roundings of `rules`.
    #[must_use]
    pub fn dynamic(rules: Rules) -> Box<Maps> {
        Maps::of(signed(), unsigned(), rules)
    }

    /// Any other maps, by their entries in ascending order.
    ///
    /// # Errors
    ///
    /// If a map has not 256 entries, or they are not finite and strictly ascending.
    pub fn new(first: &[f32], second: &[f32], rules: Rules) -> Result<Box<Maps>, Error> {
        Ok(Maps::of(checked(first)?, checked(second)?, rules))
    }

    /// The maps of the plain formula: the nearest entry, whatever its sign.
    ///
    /// # Errors
    ///
    /// As [`Maps::new`].
    pub fn plain(first: &[f32], second: &[f32]) -> Result<Box<Maps>, Error> {
        let quantizer = |entries| Ok(Quantizer::new(checked(entries)?, Nearest::Plain));
        Ok(Box::new(Maps { first: quantizer(first)?, second: quantizer(second)? }))
    }

    fn of(first: Map, second: Map, rules: Rules) -> Box<Maps> {
        let [one, other] = match rules {
            Rules::Repaired => [Nearest::Fading, Nearest::NeverZero],
            Rules::Published => [Nearest::NegativeNeverZero, Nearest::Plain],
        };
        Box::new(Maps { first: Quantizer::new(first, one), second: Quantizer::new(second, other) })
    }

    /// A number that tells maps apart: a hash of all entries.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let entries = self.first.map.iter().chain(&self.second.map);
        entries.fold(0xCBF2_9CE4_8422_2325, |hash, entry| {
            (hash ^ u64::from(entry.to_bits())).wrapping_mul(0x0100_0000_01B3)
        })
    }
}

impl Quantizer {
    /// The code of `value` in a block whose largest magnitude is `absmax`.
    #[inline(always)]
    #[must_use]
    pub fn code_in_block(&self, value: f32, absmax: f32) -> u8 {
        // What is rounded up beside a subnormal absmax may lie above 1; codes end there anyway.
        if absmax > 0.0 { self.code(value / absmax) } else { self.code_of_zero() }
    }

    /// The value of a code in a block whose largest magnitude is `absmax`.
    #[inline(always)]
    #[must_use]
    pub fn value_in_block(&self, code: u8, absmax: f32) -> f32 {
        self.map[code as usize] * absmax
    }
}
