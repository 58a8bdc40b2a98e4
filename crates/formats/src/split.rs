//! An f32 parameter as a bf16 and 16 remainder bits: a master copy that costs 4
//! bytes, of which a network in bf16 reads 2.
//!
//! ```text
//! upper     = (bits >> 16) + (bits >> 15 & 1)        modulo 2^16
//! remainder = bits & 0xFFFF
//! bits      = (upper - (remainder >> 15)) << 16 | remainder
//! ```
//!
//! `upper` is the bf16 nearest to the parameter, ties away from zero. The top bit of
//! the remainder says whether it was rounded up, so the two together are the f32
//! again for every one of the 2^32 patterns.
//!
//! Rounding ties to even could not be undone: after a tie, the remainder `0x8000`
//! beside an even upper half may come from that half, which was even already, or
//! from the odd one below it, which was rounded up.
//!
//! A NaN keeps its bits in the pair, but its upper half alone may read as another
//! number; parameters are finite.

/// A parameter in two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The bits of the bf16.
    pub upper: u16,
    /// What the bf16 has no room for.
    pub remainder: u16,
}

impl Split {
    /// The halves of `number`.
    #[inline(always)]
    #[must_use]
    pub const fn of(number: f32) -> Split {
        let bits = number.to_bits();
        let rounds_up = bits >> 15 & 1;
        Split { upper: (bits >> 16).wrapping_add(rounds_up) as u16, remainder: bits as u16 }
    }

    /// The number, bit for bit.
    #[inline(always)]
    #[must_use]
    pub const fn recombine(self) -> f32 {
        let upper = self.upper.wrapping_sub(self.remainder >> 15);
        f32::from_bits((upper as u32) << 16 | self.remainder as u32)
    }
}
