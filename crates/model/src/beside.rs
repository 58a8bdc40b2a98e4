//! What an optimizer may do beside a pass of a network: which parameters are read later than others.

use std::ops::Range;

use crate::ops::Operations;
use crate::{Error, Gpt, Layout};

/// Slots of a block.
const BLOCK_SLOTS: usize = 12;
/// Slots before those of the first block: the tables.
const TABLES: Range<usize> = 0..2;
/// Those of a block up to what its own chain reads first: a LayerNorm, qkv.
const SLOTS_BEFORE_CHAIN: usize = 4;

impl<D: Operations> Gpt<D> {
    /// The slots that the next forward pass reads late: those of the first list not before its second chain, those of the next
    /// not before the third, and so on up to the last slot. None where a device has no room for updates beside chains.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn late_slots(&self) -> Result<Vec<Range<usize>>, Error> {
        let has_room = self.has_room_beside()?;
        Ok(if has_room { self.layout().late_slots() } else { Vec::new() })
    }

    /// Has updates of [`Gpt::late_slots`], one for each list of them, done during the next forward pass.
    pub fn update_beside_chains(&self, updates: Vec<D::LaterUpdate>) {
        self.device().update_beside_chains(updates);
    }

    fn has_room_beside(&self) -> Result<bool, Error> {
        match self.shapes_of_chains() {
            Some(shapes) => self.device().has_room_beside(shapes),
            None => Ok(false),
        }
    }
}

impl Layout {
    /// From the projection of a block but the first to qkv of the next, or to the end.
    fn late_slots(&self) -> Vec<Range<usize>> {
        let layers = self.config().layers();
        let start = |layer: usize| TABLES.end + BLOCK_SLOTS * layer + SLOTS_BEFORE_CHAIN;
        let end =
            |layer: usize| if layer + 1 < layers { start(layer + 1) } else { self.slots().len() };
        (1..layers).map(|layer| start(layer)..end(layer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Dimensions, Layout};

    #[test]
    fn what_a_chain_reads_is_one_piece() {
        let size = Dimensions { vocabulary: 11, context: 4, channels: 4, layers: 3, heads: 2 };
        let layout = Layout::new(Config::new(size).unwrap());
        let name = |slot: usize| layout.slots()[slot].name.as_str();
        let late = layout.late_slots();
        assert_eq!(late.len(), 2);
        assert_eq!(name(late[0].start), "h.1.attn.c_proj.weight");
        assert_eq!(name(late[0].end - 1), "h.2.attn.c_attn.bias");
        assert_eq!(late[0].end, late[1].start);
        assert_eq!(late[1].end, layout.slots().len());
    }
}
