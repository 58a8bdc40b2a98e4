//! What an optimizer does beside a pass, where a device has room for it.

use super::{Chain, ChainShapes};
use crate::Error;

/// Updates of an optimizer beside the pass after its step. A device without room for it has none of this, which is
/// the default.
///
/// A pass here is one of chains: every block has buffers of its own, and [`Chain`] is all that lies between attentions.
pub trait Beside: Chain {
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

    /// Has updates of parameters done during the next forward pass, each beside the next of its chains, which is before the
    /// chain after that one reads these parameters.
    fn update_beside_chains(&self, updates: Vec<Self::LaterUpdate>) {
        let _ = updates;
    }
}
