//! The first moment of `ustate1q`: 2-bit codes of the normalised update, a bf16 mean per block, and
//! one scale per tensor.
//!
//! The normalised update is what AdamW divides: `q = (m / (1 - beta1^t)) / (sqrt(v) / sqrt(1 -
//! beta2^t) + eps)`, taken with the second moment as it is *stored*. A mean block of
//! [`UState1Q::mean_block`] elements keeps its mean as bf16; code c of an element stands for
//! `(c - 1.5) * scale`, and decoding moves all elements of the block so that their mean is the stored one
//! again:
//!
//! ```text
//! q = mean + scale * (c - S / n)        S: sum of the block's codes, n: their number
//! ```
//!
//! An update encodes with the scale that the one before it found, 1.1 times the root mean square of
//! all distances from the means, and finds that of the next. Both scales are stored, with a third
//! number that is always zero in what is stored.
//!
//! Sums over a block add up four neighbours first, `(x0 + x1) + (x2 + x3)`, then those sums by
//! halves: sum j adds sum j + h, for h half of their number down to 1. Elements beyond the tensor,
//! or without a first moment, count as zero. Squares of distances are added up for four neighbours,
//! `fma(d3, d3, fma(d2, d2, fma(d1, d1, d0 d0)))`, and the sum of those over the tensor is exact, see
//! [`SquareSum`]: it has no order, so any cut of the tensor at borders of blocks gives the same scale.
//!
//! `ustate1q` mends what breaks the published format: an element whose second moment is stored as
//! zero has no first moment, and is left out of means and scale; q is bounded by what exact moments
//! allow; eps is left out of the unit, so that a moment far below it decodes far below it; and while
//! no element is alive the scale stays. `ustate1q-original` does none of that.

use crate::Error;
use crate::format::Rules;
use crate::fused::fused;
use crate::options::{power_of_two, whole, wrong};

/// Bits of a code.
pub const CODE_BITS: u32 = 2;
/// What the root mean square is multiplied by.
pub const STEP_FACTOR: f64 = 1.1;
/// The scale of the first update.
pub const FIRST_SCALE: f32 = 1.1;

/// What a `ustate1q` tensor is stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UState1Q {
    /// Elements of a storage block: a power of two from 32 to 1024.
    pub block: u32,
    /// Elements that share a mean: a power of two from 16 to 256, at most a block.
    pub mean_block: u32,
    /// Bits of a code of the second moment: 2, 3, 4, 6 or 8.
    pub v_bits: u32,
    /// Whether the first moment is compressed; else it is f32.
    pub has_first: bool,
    /// Whether the second moment is compressed; else it is f32.
    pub has_second: bool,
    /// First moments of tensors with fewer elements are f32.
    pub min_first: u32,
    /// Second moments of tensors with fewer elements are f32.
    pub min_second: u32,
    /// Whether the format is mended.
    pub rules: Rules,
}

/// A sum of f32 that is exact, and so does not depend on the order.
///
/// A number from 0 to 2^14 is cut into pieces of 22 and of 21 bits, of which the last is rounded to nearest.
/// Each piece is added up as an integer: those of a thousand numbers fit 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SquareSum {
    /// In units of 2^-8 and 2^-29.
    pub pieces: [u64; 2],
}

/// What squares of four neighbours are kept below: distances of 32 normalised updates and more.
pub const SQUARES_MAX: f32 = 16_383.998;
/// A sum with this number counts in units of 2^-8.
pub const HIGH_COUNTER: f32 = 32_768.0;
/// A sum of less than 2^-8 with this number counts in units of 2^-29.
pub const LOW_COUNTER: f32 = 1.0 / 64.0;

impl UState1Q {
    /// 4-bit codes of the second moment, blocks of 128, means of 64, from 4096 elements on.
    pub const DEFAULT: UState1Q = UState1Q {
        block: 128,
        mean_block: 64,
        v_bits: 4,
        has_first: true,
        has_second: true,
        min_first: 4096,
        min_second: 4096,
        rules: Rules::Repaired,
    };
    /// The published format.
    pub const ORIGINAL: UState1Q = UState1Q { rules: Rules::Published, ..UState1Q::DEFAULT };

    /// Sets the option `name`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match name {
            "block" => self.block = power_of_two(name, value, 32..=1024)?,
            "mean_block" => self.mean_block = power_of_two(name, value, 16..=256)?,
            "v_bits" => match whole(name, value)? {
                bits @ (2 | 3 | 4 | 6 | 8) => self.v_bits = bits,
                _ => return Err(wrong(name, "2, 3, 4, 6 or 8", value)),
            },
            "halves" => {
                (self.has_first, self.has_second) = match value {
                    "both" => (true, true),
                    "m" => (true, false),
                    "v" => (false, true),
                    _ => return Err(wrong(name, "both, m or v", value)),
                }
            }
            "min" => {
                self.min_first = whole(name, value)?;
                self.min_second = self.min_first;
            }
            "min_m" => self.min_first = whole(name, value)?,
            "min_v" => self.min_second = whole(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the options fit each other.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.mean_block <= self.block {
            Ok(())
        } else {
            Err(Error::MeanBlock { block: self.block, found: self.mean_block })
        }
    }

    /// The options, as they are set.
    pub(crate) fn options(self) -> [(&'static str, u32); 6] {
        let halves = u32::from(self.has_first) + 2 * u32::from(self.has_second);
        [
            ("block", self.block),
            ("mean_block", self.mean_block),
            ("v_bits", self.v_bits),
            ("halves", halves),
            ("min_m", self.min_first),
            ("min_v", self.min_second),
        ]
    }
}

impl SquareSum {
    /// With one more number; what is not between 0 and 2^14 becomes so.
    #[inline(always)]
    #[must_use]
    pub fn with(self, squares: f32) -> SquareSum {
        let [high, low] = SquareSum::pieces_of(squares);
        self.plus(SquareSum { pieces: [u64::from(high), u64::from(low)] })
    }

    /// Both sums together.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, other: SquareSum) -> SquareSum {
        let ([a, b], [x, y]) = (self.pieces, other.pieces);
        SquareSum { pieces: [a + x, b + y] }
    }

    /// The sum over a count, 0 if that is.
    #[must_use]
    pub fn mean(self, count: u64) -> f64 {
        let [high, low] = self.pieces.map(|piece| piece as f64);
        let sum = high * (1.0 / 256.0) + low * (1.0 / 536_870_912.0);
        if count == 0 { 0.0 } else { sum / count as f64 }
    }

    /// The pieces of a number.
    #[inline(always)]
    #[must_use]
    pub fn pieces_of(squares: f32) -> [u32; 2] {
        let bounded = if squares < SQUARES_MAX { squares } else { SQUARES_MAX };
        let bounded = if bounded > 0.0 { bounded } else { 0.0 };
        let counted = bounded + HIGH_COUNTER;
        // Rounded to nearest where it should be rounded down.
        let nearest = counted - HIGH_COUNTER;
        let is_above = nearest > bounded;
        let high = counted.to_bits() - HIGH_COUNTER.to_bits() - u32::from(is_above);
        let rest = bounded - if is_above { nearest - 1.0 / 256.0 } else { nearest };
        let low = (rest + LOW_COUNTER).to_bits() - LOW_COUNTER.to_bits();
        [high, low]
    }
}

/// The code of a distance from the mean, given the inverse of the scale: the position between 0 and 3, and
/// `dither`, rounded down; `dither` is from 0 to 1.
#[inline(always)]
#[must_use]
pub fn code(distance: f32, inverse_scale: f32, dither: f32) -> u32 {
    let quarter = fused(distance, inverse_scale * 0.25, fused(dither, 0.25, 0.375));
    let quarter = if quarter > 0.0 { quarter } else { 0.0 };
    let quarter = if quarter < 1.0 { quarter } else { 1.0 };
    let position = quarter * CODES_BELOW_FOUR;
    // Conversions to integers look for what they cannot convert, and do not vectorise.
    u32::from(position >= 1.0) + u32::from(position >= 2.0) + u32::from(position >= 3.0)
}

/// The largest f32 below 4: a quarter of 1 has the last code.
pub const CODES_BELOW_FOUR: f32 = 3.999_999_8;

/// What a code stands for is `fma(4 + code, scale, offset)`, with this offset, so that the block has its
/// mean: `code_mean` is the average of the block's codes.
#[inline(always)]
#[must_use]
pub fn offset(scale: f32, code_mean: f32, mean: f32) -> f32 {
    fused(-scale, code_mean, mean) - 4.0 * scale
}

/// The inverse of a scale; zero for a scale of zero, so that all codes are equal.
#[must_use]
pub fn inverse(scale: f32) -> f32 {
    if scale > 0.0 {
        1.0 / (if scale > f32::MIN_POSITIVE { scale } else { f32::MIN_POSITIVE })
    } else {
        0.0
    }
}
