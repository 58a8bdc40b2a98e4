//! Small things on their way between host and device, in order, without a wait in between.

use std::collections::VecDeque;

use bytemuck::Pod;

use crate::buffer::check_length;
use crate::{Buffer, Error, Gpu, Pinned, ViewMut};

/// Uploads that may be under way at once.
const SLOTS: usize = 4;
/// Elements of each, at most.
const SLOT_ELEMENTS: usize = 1 << 18;

/// Copies of the front of a buffer, queued one by one and taken in the same order. Pinned memory is
/// used again, so once as many were made as are ever under way, nothing is allocated.
pub struct Ring<T: Pod> {
    gpu: Gpu,
    length: usize,
    queued: VecDeque<Pinned<T>>,
    free: Vec<Pinned<T>>,
}

impl<T: Pod> Ring<T> {
    /// A ring of copies of `length` elements, with room for a few at once.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn new(gpu: &Gpu, length: usize) -> Result<Ring<T>, Error> {
        let free = (0..8).map(|_| Pinned::zeros(gpu, length)).collect::<Result<_, _>>()?;
        Ok(Ring { gpu: gpu.clone(), length, queued: VecDeque::new(), free })
    }

    /// Queues a copy of the front of `from`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if `from` is shorter, [`Error::Recording`], and what the driver refuses.
    pub fn queue(&mut self, from: &Buffer<T>) -> Result<(), Error> {
        let mut pinned = match self.free.pop() {
            Some(pinned) => pinned,
            None => Pinned::zeros(&self.gpu, self.length)?,
        };
        pinned.queue_download(from)?;
        self.queued.push_back(pinned);
        Ok(())
    }

    /// What `read` makes of the oldest copy that was not taken yet. `None` if there is none, or if it
    /// is still under way and nobody `waits` for it.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before that copy.
    pub fn take<R>(
        &mut self,
        waits: bool,
        read: impl FnOnce(&[T]) -> R,
    ) -> Result<Option<R>, Error> {
        match self.queued.front() {
            Some(oldest) if waits || oldest.is_ready()? => {}
            _ => return Ok(None),
        }
        let Some(oldest) = self.queued.pop_front() else { return Ok(None) };
        let found = read(oldest.read()?);
        self.free.push(oldest);
        Ok(Some(found))
    }
}

/// Copies from the host, whose memory is free again when a copy is queued. They go through a few pieces of
/// pinned memory in turn; when all are under way, the next copy waits for the first of them.
pub struct Uploads<T: Pod> {
    gpu: Gpu,
    slots: VecDeque<Pinned<T>>,
    slots_max: usize,
    /// Elements of each.
    slot_elements: usize,
}

impl<T: Pod> Uploads<T> {
    /// None under way, of any length. Pinned memory is allocated when it is first needed.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Uploads<T> {
        let (slots_max, slot_elements) = (SLOTS, SLOT_ELEMENTS);
        Uploads { gpu: gpu.clone(), slots: VecDeque::new(), slots_max, slot_elements }
    }

    /// None under way, of `length` elements each, with pinned memory for as many at once as `slots`.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn of_length(gpu: &Gpu, length: usize, slots: usize) -> Result<Uploads<T>, Error> {
        let free = (0..slots).map(|_| Pinned::zeros(gpu, length)).collect::<Result<_, _>>()?;
        Ok(Uploads { gpu: gpu.clone(), slots: free, slots_max: slots, slot_elements: length })
    }

    /// Queues a copy over all of `to`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if that is not as long, [`Error::Recording`], and what the driver refuses.
    pub fn queue(&mut self, mut to: ViewMut<'_, T>, from: &[T]) -> Result<(), Error> {
        check_length("an upload", to.len(), from.len())?;
        for piece in from.chunks(self.slot_elements) {
            let (front, rest) = to.split_at(piece.len());
            to = rest;
            let is_full = self.slots.len() >= self.slots_max;
            let mut slot = match if is_full { self.slots.pop_front() } else { None } {
                Some(slot) => slot,
                None => Pinned::zeros(&self.gpu, self.slot_elements)?,
            };
            slot.write()?[..piece.len()].copy_from_slice(piece);
            slot.queue_front(front)?;
            self.slots.push_back(slot);
        }
        Ok(())
    }
}
