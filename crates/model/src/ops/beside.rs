//! Work on parameters beside a pass that has not come to them yet.

use std::ops::Range;

use super::Device;
use crate::Error;

/// Work of others on parameters, such as their update, that goes on while a pass over them has begun already: every
/// operation waits for what it reads. A device without streams does one after the other, which is the default.
pub trait Beside: Device {
    /// A stream of work.
    type Stream;

    /// The other form that a device keeps of parameters, see [`Device::reserve_parameters`].
    type Copy;

    /// The stream of the operations.
    fn stream(&self) -> &Self::Stream;

    /// The other form of a buffer, for whoever changes parameters to change it too; `None` if none is kept. After
    /// [`Device::reserve_parameters`].
    fn parameter_copy(&self, parameters: &Self::Floats) -> Option<Self::Copy>;

    /// The stream for work beside the operations that follow; it comes after those before. Can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn begin_beside(&self) -> Result<&Self::Stream, Error> {
        Ok(self.stream())
    }

    /// Says that what was queued on that stream since changes the parameters in `range`, and their copies.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn end_beside(&self, parameters: &Self::Floats, range: Range<usize>) -> Result<(), Error> {
        let _ = (parameters, range);
        Ok(())
    }

    /// Makes the operations that follow wait for all work beside them.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn settle_beside(&self) -> Result<(), Error> {
        Ok(())
    }
}
