//! What ranks with a device each add up on their devices.

use std::ops::Range;

use super::Loss;
use crate::Error;

/// Sums over ranks on the device itself. A device without other ranks has none of this, which is the default; what the
/// others do then never happens.
pub trait Exchange: Loss {
    /// f64 numbers where the device's other values are.
    type Numbers: ?Sized;

    /// Whether the device has other ranks.
    fn has_ranks(&self) -> bool {
        false
    }

    /// Begins or ends to put off gradients of linear layers' parameters until a part with them is exchanged.
    fn delay_parameters(&self, delays: bool) {
        let _ = delays;
    }

    /// Adds up a part of the gradients over ranks: beside whatever follows, until [`Exchange::finish_exchange`]. Work on it that
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

    /// As [`Exchange::exchange`] of these parts, each only on the rank that it is given with; the others find anything there.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn exchange_parts(
        &self,
        gradients: &mut Self::Floats,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        let _ = (gradients, parts);
        Ok(())
    }

    /// Brings each part from the rank that it is given with to all, likewise.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn share_parts(
        &self,
        floats: &mut Self::Floats,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        let _ = (floats, parts);
        Ok(())
    }

    /// Adds up numbers over ranks: on the device where that has ranks, can then be recorded, and is over for whatever
    /// follows; else `on_host` does it.
    ///
    /// # Errors
    ///
    /// Those of the device and of `on_host`.
    fn add_numbers<E: From<Error>>(
        &self,
        numbers: &mut Self::Numbers,
        on_host: impl FnOnce(&mut [f64]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// A part of a buffer as a buffer: the same memory, or where a device cannot have that a copy, which
    /// [`Exchange::take_part`] and [`Exchange::put_part`] keep up to date.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    fn part(&self, floats: &Self::Floats, range: Range<usize>) -> Result<Self::Floats, Error>;

    /// Has a part say what the buffer does.
    fn take_part(&self, floats: &Self::Floats, range: Range<usize>, part: &mut Self::Floats) {
        let _ = (floats, range, part);
    }

    /// Has the buffer say what a part does.
    fn put_part(&self, floats: &mut Self::Floats, range: Range<usize>, part: &Self::Floats) {
        let _ = (floats, range, part);
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

    /// Whether the device adds up micro-batches in an order of the caller's, with what follows.
    fn adds_in_order(&self) -> bool {
        false
    }

    /// `sum[i] = sum[i] + other[i]`, each rounded once. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn add(&self, sum: &mut Self::Floats, other: &Self::Floats) -> Result<(), Error> {
        let _ = (sum, other);
        Ok(())
    }

    /// Copies a buffer to another of its length. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn copy(&self, to: &mut Self::Floats, from: &Self::Floats) -> Result<(), Error> {
        let _ = (to, from);
        Ok(())
    }

    /// Sends each of `outgoing` to the rank that it is given with, and receives into each of `incoming` what the rank that it
    /// is given with sends here, in its order; is over for whatever follows. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn swap(
        &self,
        outgoing: &[(usize, Self::Floats)],
        incoming: &mut [(usize, Self::Floats)],
    ) -> Result<(), Error> {
        let _ = (outgoing, incoming);
        Ok(())
    }

    /// Makes room for the losses of so many micro-batches, one by one, and makes them zero; only the latter where there is
    /// room already, which can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn clear_totals(&self, sums: &mut Self::Sums, count: usize) -> Result<(), Error> {
        let _ = (sums, count);
        Ok(())
    }

    /// Stores the summed loss of a pass as that of micro-batch `number`. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn total_of(
        &self,
        sums: &mut Self::Sums,
        losses: &Self::Floats,
        length: usize,
        number: usize,
    ) -> Result<(), Error> {
        let _ = (sums, losses, length, number);
        Ok(())
    }

    /// Makes the losses of all micro-batches the total, those of other ranks too: added one after the other, in their order.
    /// Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn total_in_order(&self, sums: &mut Self::Sums) -> Result<(), Error> {
        let _ = sums;
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

    /// Begins to measure the time that the device works at its own share of what follows, until
    /// [`Exchange::stop_watch`]. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn start_watch(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends to measure, where all work of the own share is done.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn stop_watch(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Sends what was measured last to the host.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn queue_watch(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The oldest time that was sent and not taken yet, in milliseconds, after waiting for it; none where none was sent.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    fn take_watch(&self) -> Result<Option<f64>, Error> {
        Ok(None)
    }

    /// Parts from the other ranks, also in the middle of work with them: nothing of that is waited for.
    fn leave_ranks(&self) {}
}
