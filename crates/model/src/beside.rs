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
/// Blocks whose chains read what is updated before the pass.
const LAYERS_BEFORE: usize = 2;

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
    /// From the projection of the third block to the last slot, in pieces of about equal length, one for each chain but the
    /// last. With those of the second block too, an update of a piece would take longer than a chain.
    fn late_slots(&self) -> Vec<Range<usize>> {
        let pieces = self.config().layers().saturating_sub(1);
        let late =
            TABLES.end + BLOCK_SLOTS * LAYERS_BEFORE + SLOTS_BEFORE_CHAIN..self.slots().len();
        if late.is_empty() {
            return Vec::new();
        }
        let elements: usize = self.slots()[late.clone()].iter().map(|slot| slot.length).sum();
        let (mut before, mut ends) = (0, vec![late.start; pieces]);
        for slot in late.clone() {
            let length = self.slots()[slot].length;
            let of_equal = (2 * before + length) * pieces / (2 * elements.max(1));
            before += length;
            // What a chain reads is there before it.
            let layer = (slot - TABLES.end - SLOTS_BEFORE_CHAIN) / BLOCK_SLOTS;
            ends[of_equal.min(layer - 1)..].fill(slot + 1);
        }
        let starts = [late.start].into_iter().chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, &end)| start..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Dimensions, Layout};

    #[test]
    fn what_a_chain_reads_is_updated_before_it() {
        for layers in 1..8 {
            let size = Dimensions { vocabulary: 11, context: 4, channels: 4, layers, heads: 2 };
            let layout = Layout::new(Config::new(size).unwrap());
            let late = layout.late_slots();
            assert_eq!(late.len(), if layers < 3 { 0 } else { layers - 1 });
            let Some(first) = late.first() else { continue };
            assert_eq!(layout.slots()[first.start].name, "h.2.attn.c_proj.weight");
            assert!(late.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(late[layers - 2].end, layout.slots().len());
            // Beside chain k is updated what chain k + 1 reads, up to qkv of the block behind it.
            for (chain, piece) in late.iter().enumerate().skip(1) {
                let read = layout
                    .slots()
                    .iter()
                    .position(|slot| slot.name == format!("h.{}.attn.c_attn.bias", chain + 2));
                assert!(piece.end > read.unwrap_or(0), "{layers} layers, chain {chain}");
            }
            let length = |piece: &std::ops::Range<usize>| -> usize {
                layout.slots()[piece.clone()].iter().map(|slot| slot.length).sum()
            };
            let most = late.iter().map(length).max().unwrap();
            assert!(layers < 6 || most * (layers - 1) < 2 * late.iter().map(length).sum::<usize>());
        }
    }
}
