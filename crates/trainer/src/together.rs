//! Updates that follow each other as one recording: how many, and what is recorded.
//!
//! On a device a recording costs the host some microseconds whatever is in it, and within one the update of
//! parameters can go on beside the next forward pass, which takes memory's bandwidth for a small part: the tensors are
//! updated in the order in which that pass comes to them, and it waits for those that it reads.

use model::Gpt;
use model::ops::Operations;

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
}

impl<D: Operations, O: Updater<D>> Work<'_, D, O> {
    /// Queues `updates` updates of `micro_batches` micro-batches each.
    ///
    /// # Errors
    ///
    /// What the device and the optimizer refuse.
    pub fn queue(&mut self, micro_batches: usize, updates: usize) -> Result<(), Error> {
        for position in 0..updates {
            self.optimizer.select(position);
            self.gpt.select_total(position);
            self.accumulate(micro_batches, false)?;
            self.step(position + 1 < updates)?;
        }
        Ok(())
    }

    /// The step of an update; a pass follows it, or nothing of this recording.
    fn step(&mut self, is_followed: bool) -> Result<(), Error> {
        let Self { gpt, optimizer, parameters, gradients, .. } = self;
        let device = gpt.device();
        optimizer.begin_step(parameters, gradients, gpt.total())?;
        let slots = gpt.layout().slots();
        if !is_followed || !optimizer.can_be_beside() {
            let (stream, all) = (device.stream(), 0..slots.len());
            return Ok(optimizer.update_tensors(stream, parameters, gradients, all, false)?);
        }
        for tensors in gpt.layout().forward_pieces() {
            // The pass begins with the first of them, so that there is nothing to do beside them.
            if tensors.start == 0 {
                let stream = device.stream();
                optimizer.update_tensors(stream, parameters, gradients, tensors, false)?;
                continue;
            }
            let elements = slots[tensors.start].offset..slots[tensors.end - 1].range().end;
            let stream = device.begin_beside()?;
            optimizer.update_tensors(stream, parameters, gradients, tensors, true)?;
            device.end_beside(parameters, elements)?;
        }
        Ok(())
    }

    /// The gradients and the loss of `count` micro-batches together, and together with those of other ranks where
    /// devices add up.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn accumulate(&mut self, count: usize, is_shared: bool) -> Result<(), Error> {
        let Self { gpt, parameters, gradients, stage, .. } = self;
        let (rows, update_rows) = (gpt.batch().rows, stage.update_rows());
        for position in 0..count {
            let (ids, schedule) = stage.parts();
            let (is_last, adds) = (position + 1 == count, position > 0);
            gpt.gather(ids, schedule, [position * rows, update_rows], is_last)?;
            if is_last && is_shared {
                gpt.forward_backward_shared(parameters, gradients, adds)?;
            } else {
                gpt.forward_backward(parameters, gradients, adds)?;
                gpt.total_loss(adds)?;
            }
        }
        Ok(())
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
