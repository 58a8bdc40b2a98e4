//! Updates that follow each other as one recording: how many, and what is recorded.
//!
//! On a device a recording costs the host some microseconds whatever is in it, and within one the update of
//! parameters can go on beside the next forward pass, which takes memory's bandwidth for a small part: the tensors are
//! updated in the order in which that pass comes to them, and it waits for those that it reads. Attention takes whole
//! multiprocessors, so the tensors of a block begin behind the attention of one before it, beside the linear layers there.

use std::collections::VecDeque;
use std::ops::Range;

use model::ops::Operations;
use model::{Gpt, Layout};

use crate::error::Error;
use crate::stage::Stage;
use crate::updater::Updater;

/// Most micro-batches of a recording.
const MICRO_BATCHES_MAX: usize = 8;
/// Most tokens of a recording: where updates take longer, neither is worth a stop that comes later.
const TOKENS_MAX: u64 = 1 << 14;

/// Updates of so many micro-batches and tokens that are recorded together, where `most` could be.
#[must_use]
pub fn updates_at_once(micro_batches: usize, tokens: u64, most: usize) -> usize {
    let by_tokens = TOKENS_MAX / tokens.max(1);
    let by_batches = MICRO_BATCHES_MAX / micro_batches.max(1);
    most.min(by_batches).min(by_tokens as usize).max(1)
}

/// What updates work on.
pub struct Work<'a, D: Operations, O> {
    /// The network.
    pub gpt: &'a mut Gpt<D>,
    /// Its optimizer, which has as many updates set.
    pub optimizer: &'a mut O,
    /// What both work on.
    pub parameters: &'a mut D::Floats,
    /// Between the two.
    pub gradients: &'a mut D::Floats,
    /// What the updates learn from.
    pub stage: &'a mut Stage<D>,
    /// Parameters and gradients once more, for the optimizer beside a pass; see [`both`].
    pub both: Option<&'a mut [D::Floats; 2]>,
}

/// Parameters and gradients as the optimizer has them beside a pass: the same memory, whose use the device orders.
/// `None` where it does nothing beside a pass.
///
/// # Errors
///
/// What the device refuses.
pub fn both<D: Operations, O: Updater<D>>(
    device: &D,
    optimizer: &O,
    [parameters, gradients]: [&D::Floats; 2],
) -> Result<Option<[D::Floats; 2]>, Error> {
    if !optimizer.can_be_beside() {
        return Ok(None);
    }
    let whole = |floats: &D::Floats| device.part(floats, 0..device.length(floats));
    Ok(Some([whole(parameters)?, whole(gradients)?]))
}

/// Tensors of an update that wait for the pass behind it.
struct Waiting {
    /// The update's position.
    position: usize,
    /// In the order in which the pass comes to them.
    tensors: VecDeque<Range<usize>>,
}

impl<D: Operations, O: Updater<D> + Send> Work<'_, D, O> {
    /// Queues `updates` updates of `micro_batches` micro-batches each.
    ///
    /// # Errors
    ///
    /// What the device and the optimizer refuse.
    pub fn queue(&mut self, micro_batches: usize, updates: usize) -> Result<(), Error> {
        let mut waiting = None;
        for position in 0..updates {
            let is_followed = position + 1 < updates;
            self.optimizer.select(position);
            self.gpt.select_total(position);
            self.accumulate_beside(micro_batches, position > 0, waiting)?;
            let Self { gpt, optimizer, parameters, gradients, stage, .. } = self;
            optimizer.begin_step(parameters, gradients, gpt.total())?;
            if is_followed {
                // Beside the update of the tensors that come now.
                let rows = [0, stage.update_rows()];
                let (ids, schedule) = stage.parts();
                gpt.gather_aside(ids, schedule, rows, micro_batches == 1)?;
            }
            waiting = self.update_tensors(position, is_followed)?;
        }
        Ok(())
    }

    /// Updates the tensors, or where a pass follows those that it begins with.
    fn update_tensors(
        &mut self,
        position: usize,
        is_followed: bool,
    ) -> Result<Option<Waiting>, Error> {
        let Self { gpt, optimizer, parameters, gradients, both, .. } = self;
        let (device, layout) = (gpt.device(), gpt.layout());
        let mut pieces = VecDeque::from(layout.forward_pieces());
        let both = both.as_mut().filter(|_| is_followed);
        let first = if both.is_some() { pieces.pop_front() } else { None };
        let first = first.unwrap_or(0..layout.slots().len());
        optimizer.update_tensors(device.stream(), parameters, gradients, first, false)?;
        let Some(both) = both else { return Ok(None) };
        // The next block comes beside what the pass begins with.
        let mut waiting = Waiting { position, tensors: pieces };
        waiting.update_next(device, layout, &mut **optimizer, both)?;
        Ok(Some(waiting))
    }

    /// The gradients and the loss of `count` micro-batches together.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn accumulate(&mut self, count: usize) -> Result<(), Error> {
        self.accumulate_beside(count, false, None)
    }

    /// [`Work::accumulate`] where the first batch may be gathered already, with what waits for the pass.
    fn accumulate_beside(
        &mut self,
        count: usize,
        is_gathered: bool,
        mut waiting: Option<Waiting>,
    ) -> Result<(), Error> {
        let Self { gpt, optimizer, parameters, gradients, stage, both } = self;
        let (rows, update_rows) = (gpt.batch().rows, stage.update_rows());
        let (device, layout) = (gpt.device().clone(), gpt.layout().clone());
        let mut beside = |_: usize| match (&mut waiting, &mut *both) {
            (Some(waiting), Some(both)) => {
                waiting.update_next(&device, &layout, &mut **optimizer, both)
            }
            _ => Ok(()),
        };
        for position in 0..count {
            let (is_last, adds) = (position + 1 == count, position > 0);
            if !is_gathered || adds {
                let (ids, schedule) = stage.parts();
                gpt.gather(ids, schedule, [position * rows, update_rows], is_last)?;
            }
            gpt.forward_backward_beside(parameters, gradients, adds, &mut beside)?;
        }
        Ok(())
    }
}

impl Waiting {
    /// Updates the next tensors, beside whatever follows.
    fn update_next<D: Operations, O: Updater<D>>(
        &mut self,
        device: &D,
        layout: &Layout,
        optimizer: &mut O,
        [parameters, gradients]: &mut [D::Floats; 2],
    ) -> Result<(), Error> {
        let Some(tensors) = self.tensors.pop_front() else { return Ok(()) };
        let slots = layout.slots();
        let elements = slots[tensors.start].offset..slots[tensors.end - 1].range().end;
        let stream = device.begin_beside()?;
        optimizer.select(self.position);
        optimizer.update_tensors(stream, parameters, gradients, tensors, true)?;
        optimizer.select(self.position + 1);
        Ok(device.end_beside(parameters, elements)?)
    }
}

#[cfg(test)]
mod tests {
    use super::updates_at_once;

    #[test]
    fn short_updates_are_recorded_together() {
        assert_eq!(updates_at_once(1, 1152, 8), 8);
        assert_eq!(updates_at_once(2, 2 * 1024, 8), 4);
        assert_eq!(updates_at_once(1, 4096, 8), 4);
        assert_eq!(updates_at_once(1, 32 * 1024, 8), 1);
        assert_eq!(updates_at_once(16, 64, 8), 1);
        assert_eq!(updates_at_once(1, 1152, 1), 1);
    }
}
