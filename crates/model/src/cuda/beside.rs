//! What an optimizer does beside a pass on CUDA: updates on the second stream beside forward chains, whose blocks leave
//! multiprocessors idle.

use std::ops::Range;

use gpu_kernels::LaterUpdate;

use super::Cuda;
use crate::Error;
use crate::ops::{Beside, ChainShapes};

impl Beside for Cuda {
    type LaterUpdate = LaterUpdate;

    fn has_room_beside(&self, shapes: ChainShapes) -> Result<bool, Error> {
        let mut has_all = self.inner.depth_tiles.is_some();
        for is_linked in [true, false] {
            has_all &= self.forward_chain(shapes, is_linked)?.is_some()
                && self.backward_chain(shapes, is_linked)?.is_some();
        }
        Ok(has_all)
    }

    fn update_beside_chains(&self, updates: Vec<LaterUpdate>) {
        self.postpone_updates(updates);
    }
}

impl Cuda {
    /// Queues the next update that waits for a forward chain, beside the one that is queued next.
    pub(super) fn update_beside_chain(&self) -> Result<(), Error> {
        let Some(update) = self.take_update() else { return Ok(()) };
        let written = update.written();
        Ok(self.inner.lanes.aside(&written, |lane| update.queue(lane.gpu()))?)
    }

    /// Where the last of them writes, for which attention waits: the chain behind it may begin to read before attention has
    /// ended.
    pub(super) fn updated_last(&self) -> Vec<u64> {
        self.take_updated().into_iter().map(|Range { start, .. }| start).collect()
    }
}
