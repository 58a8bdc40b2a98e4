//! What an optimizer does beside a pass, where a device has room for it.

use super::{Chain, ChainShapes};
use crate::Error;

/// Work of an optimizer beside the passes before and after its step. A device without room for it has none of this, which is
/// the default.
///
/// A pass here is one of chains: every block has buffers of its own, and [`Chain`] is all that lies between attentions.
pub trait Beside: Chain {
    /// Where a device queues such work.
    type Lane;
    /// The update of some parameters that is left for later.
    type LaterUpdate;

    /// Whether there is room beside chains of these shapes.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn has_room_beside(&self, shapes: ChainShapes) -> Result<bool, Error> {
        let _ = shapes;
        Ok(false)
    }

    /// Notes that the backward pass has come through all blocks, and that what it adds to the tables follows.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn note_blocks_passed(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Does something with the gradients of a pass of chains that has come to its end, but for [`Device::finish_pass`](super::Device::finish_pass):
    /// first on a lane on which those of the weights of all blocks but the first are there, then on one on which those of
    /// the tables are too. If nothing tells when which are there, it does nothing.
    ///
    /// # Errors
    ///
    /// Those of the work and of the device.
    fn beside_end<E: From<Error>>(
        &self,
        work: impl FnMut(&Self::Lane) -> Result<(), E>,
    ) -> Result<(), E> {
        let _ = work;
        Ok(())
    }

    /// Has updates of parameters done during the next forward pass, each beside the next of its chains, which is before the
    /// chain after that one reads these parameters.
    fn update_beside_chains(&self, updates: Vec<Self::LaterUpdate>) {
        let _ = updates;
    }
}
