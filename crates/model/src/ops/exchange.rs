//! What ranks with a device each add up on their devices.

use std::ops::Range;

use super::Loss;
use crate::Error;

/// Sums over ranks on the device itself. A device without other ranks has none of this, which is the default; what the
/// others do then never happens.
pub trait Exchange: Loss {
    /// Whether the device has other ranks.
    fn has_ranks(&self) -> bool {
        false
    }

    /// Adds up a part of the gradients over ranks: beside whatever follows, until [`Exchange::finish_exchange`]. Work that
    /// was asked for before is finished first; nothing may touch the part meanwhile. Every rank asks for the same parts in
    /// the same order. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn exchange(&self, gradients: &mut Self::Floats, part: Range<usize>) -> Result<(), Error> {
        let _ = (gradients, part);
        Ok(())
    }

    /// Adds up the totals of ranks, likewise.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn exchange_total(&self, sums: &mut Self::Sums) -> Result<(), Error> {
        let _ = sums;
        Ok(())
    }

    /// Makes whatever follows wait for what is being added up.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn finish_exchange(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Zero gradients and a zero total: what a rank without a micro-batch has to add. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn clear(&self, gradients: &mut Self::Floats, sums: &mut Self::Sums) -> Result<(), Error> {
        let _ = (gradients, sums);
        Ok(())
    }

    /// Parts from the other ranks, also in the middle of work with them: nothing of that is waited for.
    fn leave_ranks(&self) {}
}
