//! Ranges of tapes on a device: brought when they are first wanted, and kept while there is room.
//!
//! With room for all of them, a tape is on the device once every range was wanted; with less, the range
//! that nobody wanted for the longest time makes room. Copies are queued like all work, so a range is
//! never overwritten under an update that was queued before.

use std::collections::HashMap;

use model::ops::Operations;
use model::{Error as ModelError, Gpt};

use crate::error::Error;

/// Most token ids of a pool: places in it are counted in 32 bits.
const IDS_MAX: u64 = u32::MAX as u64;

/// What the ranges of a run are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeShape {
    /// Token ids of the longest, its last target included.
    pub ids: u64,
    /// How many the run comes to, at most.
    pub ranges: u64,
    /// How many one update comes to, at most.
    pub update_ranges: u64,
}

/// A range, by its tape and its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeKey {
    /// The tape.
    pub tape: usize,
    /// The position of its first token there.
    pub start: u64,
}

/// Ranges on a device.
pub struct Pool<D: Operations> {
    ids: D::Tokens,
    slot_ids: usize,
    slots: Vec<Slot>,
    places: HashMap<RangeKey, usize>,
}

#[derive(Clone, Copy)]
struct Slot {
    key: Option<RangeKey>,
    /// The last time that it was wanted.
    wanted: u64,
}

impl RangeShape {
    /// Ranges that a device keeps which can spare memory for so many ids: at least those of one update.
    #[must_use]
    pub fn kept(self, spare_ids: u64) -> u64 {
        let room = spare_ids.min(IDS_MAX) / self.ids.max(1);
        room.min(self.ranges).max(self.update_ranges)
    }
}

impl<D: Operations> Pool<D> {
    /// Room for ranges of `shape`.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(device: &D, shape: RangeShape) -> Result<Self, Error> {
        let kept = shape.kept(device.spare_tokens()?);
        let too_large = ModelError::TooLarge { what: "a range of a tape" };
        let all = kept.checked_mul(shape.ids).filter(|&all| all <= IDS_MAX).ok_or(too_large)?;
        Ok(Self {
            ids: device.tokens(all as usize)?,
            slot_ids: shape.ids as usize,
            slots: vec![Slot { key: None, wanted: 0 }; kept as usize],
            places: HashMap::new(),
        })
    }

    /// The ids of all ranges.
    #[must_use]
    pub fn ids(&self) -> &D::Tokens {
        &self.ids
    }

    /// Where the range `key` begins, after bringing it if it is not there; at time `now`, which ranges
    /// that are wanted together share. `None` if there is no room beside those.
    ///
    /// # Errors
    ///
    /// A token that the vocabulary does not have, and what the device refuses.
    ///
    /// # Panics
    ///
    /// When the range is longer than the shape said.
    pub fn place(
        &mut self,
        gpt: &Gpt<D>,
        key: RangeKey,
        ids: &[u32],
        now: u64,
    ) -> Result<Option<usize>, Error> {
        let slot = match self.places.get(&key) {
            Some(&slot) => slot,
            None => {
                let oldest = (0..self.slots.len()).min_by_key(|&slot| self.slots[slot].wanted);
                let slot = oldest.expect("a pool has slots");
                if self.slots[slot].wanted == now {
                    return Ok(None);
                }
                assert!(ids.len() <= self.slot_ids, "a range of {} ids", ids.len());
                gpt.check_ids(ids)?;
                // Whatever was there is gone, also when the copy fails.
                if let Some(old) = self.slots[slot].key.take() {
                    self.places.remove(&old);
                }
                gpt.device().upload_tokens(&mut self.ids, slot * self.slot_ids, ids)?;
                self.slots[slot].key = Some(key);
                self.places.insert(key, slot);
                slot
            }
        };
        self.slots[slot].wanted = now;
        Ok(Some(slot * self.slot_ids))
    }
}
