//! The exponent bias of a tensor's E4 lanes: a checked number, and the rule that
//! chooses one from the first gradient.
//!
//! A bias belongs to one tensor, serves both lanes of its words, and is kept in
//! the checkpoint's metadata. Who chooses it and when is the optimizer's part.

use core::fmt;

use crate::Error;

/// An exponent bias from 0 to 40: a normal E4 code with exponent field `e` lies
/// in the binade `2^(e - bias)`.
///
/// A larger bias moves the whole range towards zero. At the default of 16 the
/// largest finite magnitude is just under 1, the bound of a gradient clipped at
/// norm 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bias(u8);

impl Bias {
    /// The smallest bias.
    pub const MIN: Bias = Bias(0);
    /// The largest bias.
    pub const MAX: Bias = Bias(40);
    /// The bias of a tensor that nobody chose one for.
    pub const DEFAULT: Bias = Bias(16);
    /// The bias that IEEE 754 gives to binary16.
    pub const BINARY16: Bias = Bias(15);

    /// How far the automatic choice keeps the largest finite code above the
    /// first gradient: its `2^3` of headroom is `16 - 13` binades.
    pub const AUTO_OFFSET: i32 = 13;

    /// Checks that `bias` lies in 0..=40.
    ///
    /// # Errors
    ///
    /// [`Error::BiasOutOfRange`] otherwise.
    pub const fn new(bias: u32) -> Result<Bias, Error> {
        if bias <= Bias::MAX.get() {
            Ok(Bias(bias as u8))
        } else {
            Err(Error::BiasOutOfRange { found: bias })
        }
    }

    /// The bias as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The automatic choice: `13 - ceil(log2(gradient_max))`, clamped to 0..=40.
    ///
    /// `gradient_max` is the largest finite `|g|` of a tensor's first gradient
    /// that has a non-zero one; its largest code then lies 8 to 16 times above
    /// it. The logarithm is read off the bits, so every device chooses alike.
    /// `None` when there is nothing to choose from: zero, infinity, NaN. The
    /// sign is ignored.
    #[must_use]
    pub const fn for_max_gradient(gradient_max: f32) -> Option<Bias> {
        const FRACTION_BITS: u32 = f32::MANTISSA_DIGITS - 1;
        let magnitude_bits = gradient_max.to_bits() & 0x7FFF_FFFF;
        if magnitude_bits == 0 || magnitude_bits >= f32::INFINITY.to_bits() {
            return None;
        }
        // An f32 subnormal has field 0 and a logarithm below -126; both that and
        // the -127 read here are far beyond the clamp.
        let log2_floor = (magnitude_bits >> FRACTION_BITS) as i32 - 127;
        let is_power_of_two = magnitude_bits.trailing_zeros() >= FRACTION_BITS;
        let log2_ceil = if is_power_of_two { log2_floor } else { log2_floor + 1 };
        let bias = Bias::AUTO_OFFSET - log2_ceil;
        if bias < 0 {
            Some(Bias::MIN)
        } else if bias > Bias::MAX.get() as i32 {
            Some(Bias::MAX)
        } else {
            Some(Bias(bias as u8))
        }
    }
}

impl Default for Bias {
    fn default() -> Bias {
        Bias::DEFAULT
    }
}

impl fmt::Display for Bias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
