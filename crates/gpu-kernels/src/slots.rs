//! Some updates that are set at once: a slot in device memory for the scalars and the counters of each, all filled by one
//! copy and read by one.
//!
//! A step works on one slot, which the host selects; a recorded step goes on to work on the one that was
//! selected when it was recorded. So a recording may have several updates, and every replay of it others.

use std::collections::VecDeque;
use std::ops::Range;

use bytemuck::Zeroable;
use formats::counter_hash::UpdateKeys;

use crate::outcome::{self, Outcome};
use crate::ring::Ring;
use crate::table::{Control, Group};
use crate::{Buffer, Error, FusedAdamW, Gpu, Pinned};

/// Updates that can be set at once.
pub const UPDATES_AT_ONCE: usize = 8;

/// Sets of updates that the host may be ahead of the device before it waits.
const SETS_AHEAD: usize = 4;

/// Words of a control, without groups.
const CONTROL_WORDS: usize = size_of::<Control>() / size_of::<u32>();
/// Words of a group.
const GROUP_WORDS: usize = size_of::<Group>() / size_of::<u32>();

/// The slots of a model.
pub(crate) struct Slots {
    /// The control and the groups of each, as words.
    controls: Buffer<u32>,
    /// Words of a slot.
    words: usize,
    /// The slot that is worked on.
    selected: usize,
    staging: VecDeque<Pinned<u32>>,
    /// Whether the counters are those of no step yet.
    pub(crate) is_fresh: bool,
    last_outcome: Pinned<u32>,
    outcomes: Ring<u32>,
    /// The slots that each copy under way is about.
    queued: VecDeque<Range<usize>>,
}

impl Slots {
    /// Slots for the scalars of so many groups.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub(crate) fn new(gpu: &Gpu, groups: usize) -> Result<Slots, Error> {
        let words = CONTROL_WORDS + groups * GROUP_WORDS;
        let all = words * UPDATES_AT_ONCE;
        let staging = (0..SETS_AHEAD).map(|_| Pinned::zeros(gpu, all));
        Ok(Slots {
            controls: gpu.zeros(all)?,
            words,
            selected: 0,
            staging: staging.collect::<Result<_, _>>()?,
            is_fresh: false,
            last_outcome: Pinned::zeros(gpu, words)?,
            outcomes: Ring::new(gpu, all)?,
            queued: VecDeque::new(),
        })
    }

    /// The memory of a slot.
    pub(crate) fn of(&self, slot: usize) -> Buffer<u32> {
        self.controls.shared(slot * self.words..(slot + 1) * self.words)
    }

    /// What `read` makes of the oldest copy that was not taken yet: of the slots that it is about, and of all words.
    fn take<R>(
        &mut self,
        waits: bool,
        read: impl FnOnce(Range<usize>, Words<'_>) -> R,
    ) -> Result<Option<R>, Error> {
        let Some(slots) = self.queued.front().cloned() else { return Ok(None) };
        let of_slot = self.words;
        let taken = self.outcomes.take(waits, |all| read(slots, Words { all, of_slot }))?;
        if taken.is_some() {
            self.queued.pop_front();
        }
        Ok(taken)
    }
}

/// A copy of all slots.
struct Words<'w> {
    all: &'w [u32],
    of_slot: usize,
}

impl Words<'_> {
    fn outcome(&self, slot: usize) -> Outcome {
        outcome::read(&self.all[slot * self.of_slot..][..CONTROL_WORDS])
    }
}

impl FusedAdamW {
    /// Has the slots on another stream.
    pub(crate) fn set_stream_of_slots(&mut self, gpu: &Gpu) -> Result<(), Error> {
        // Nobody else may hold the memory meanwhile.
        self.control = gpu.zeros(0)?;
        self.slots.controls.set_stream(gpu);
        self.control = self.slots.of(self.slots.selected);
        Ok(())
    }

    /// What the next steps read: the number of the update, its random keys, and the scalars of
    /// each group. Sets the counters to zero. Queues one small copy; not to be recorded, but to be
    /// called before every replay.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and [`Error::Recording`].
    ///
    /// # Panics
    ///
    /// If `groups` are not as many as the model has.
    pub fn set_update(
        &mut self,
        update: u64,
        keys: UpdateKeys,
        groups: impl ExactSizeIterator<Item = Group>,
    ) -> Result<(), Error> {
        self.set_updates([(update, keys, groups)].into_iter())
    }

    /// [`FusedAdamW::set_update`] of updates that follow each other, each into a slot of its own; the last one is then
    /// selected.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::set_update`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::set_update`], and if they are none or more than [`UPDATES_AT_ONCE`].
    pub fn set_updates<G: ExactSizeIterator<Item = Group>>(
        &mut self,
        updates: impl ExactSizeIterator<Item = (u64, UpdateKeys, G)>,
    ) -> Result<(), Error> {
        let count = updates.len();
        assert!((1..=UPDATES_AT_ONCE).contains(&count), "{count} updates at once");
        let fresh = Control {
            gradient_norm: self.unmeasured_norm(),
            clip_scale: 1.0,
            first_nonfinite: u64::MAX,
            gate: self.gate_address(),
            seed_low: self.options.seed as u32,
            ..Control::zeroed()
        };
        let slots = &mut self.slots;
        slots.staging.rotate_left(1);
        let staging = &mut slots.staging[0];
        let words = staging.write()?;
        for ((update, keys, groups), words) in updates.zip(words.chunks_exact_mut(slots.words)) {
            let UpdateKeys { inner: inner_key, outer: outer_key, .. } = keys;
            let control = Control { update, inner_key, outer_key, ..fresh };
            let (head, rest) = words.split_at_mut(CONTROL_WORDS);
            head.copy_from_slice(bytemuck::cast_slice(&[control]));
            assert_eq!(groups.len() * GROUP_WORDS, rest.len(), "one scalar set a group");
            for (group, words) in groups.zip(rest.chunks_exact_mut(GROUP_WORDS)) {
                words.copy_from_slice(bytemuck::cast_slice(&[group]));
            }
        }
        let words = count * slots.words;
        staging.queue_front(slots.controls.view_mut().part(0..words))?;
        slots.is_fresh = true;
        self.select(count - 1);
        Ok(())
    }

    /// Has what is queued from now on work on the update in a slot.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn select(&mut self, slot: usize) {
        assert!(slot < UPDATES_AT_ONCE, "slot {slot}");
        if self.slots.selected != slot {
            self.slots.selected = slot;
            self.control = self.slots.of(slot);
        }
    }

    /// Has the counters at zero.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        let slots = &mut self.slots;
        if !slots.is_fresh && !self.gpu.is_recording()? {
            let words = (slots.selected + 1) * slots.words;
            slots.staging[0].queue_front(slots.controls.view_mut().part(0..words))?;
        }
        slots.is_fresh = false;
        Ok(())
    }

    /// What the steps since the last `set_update` found, after waiting for them.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub fn outcome(&mut self) -> Result<Outcome, Error> {
        let last = &mut self.slots.last_outcome;
        last.queue_download(&self.control)?;
        Ok(outcome::read(&last.read()?[..CONTROL_WORDS]))
    }

    /// Queues the copy of an outcome to the host.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and [`Error::Recording`].
    pub fn queue_outcome(&mut self) -> Result<(), Error> {
        let selected = self.slots.selected;
        self.queue_outcomes_of(selected..selected + 1)
    }

    /// Queues the copy of the outcomes of all updates that were set last, in order.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::queue_outcome`].
    pub fn queue_outcomes(&mut self) -> Result<(), Error> {
        self.queue_outcomes_of(0..self.slots.selected + 1)
    }

    fn queue_outcomes_of(&mut self, slots: Range<usize>) -> Result<(), Error> {
        self.slots.outcomes.queue(&self.slots.controls)?;
        self.slots.queued.push_back(slots);
        Ok(())
    }

    /// The oldest queued outcomes that were not taken yet. `None` if there are none, or if they are still
    /// on their way and nobody `waits` for them.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before.
    pub fn take_outcomes(&mut self, waits: bool) -> Result<Option<Vec<Outcome>>, Error> {
        let read =
            |slots: Range<usize>, words: Words<'_>| slots.map(|slot| words.outcome(slot)).collect();
        self.slots.take(waits, read)
    }

    /// [`FusedAdamW::take_outcomes`] of one update, or the last of several.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before.
    pub fn take_outcome(&mut self, waits: bool) -> Result<Option<Outcome>, Error> {
        self.slots.take(waits, |slots, words| words.outcome(slots.end - 1))
    }
}
