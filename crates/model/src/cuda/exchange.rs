//! Sums over ranks on CUDA: by NCCL, on a stream of its own, beside the backward pass.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use gpu_kernels::{Buffer, Nccl};

use super::{Cuda, Sums};
use crate::Error;
use crate::ops::Exchange;

impl Cuda {
    /// Makes this device one of several ranks; none leaves it alone again.
    pub fn set_ranks(&self, ranks: Option<Arc<Nccl>>) {
        *self.inner.ranks.lock().unwrap_or_else(PoisonError::into_inner) = ranks;
    }

    fn ranks(&self) -> Option<Arc<Nccl>> {
        self.inner.ranks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does work on the stream of the ranks, after all work of both lanes.
    fn among_ranks(
        &self,
        work: impl FnOnce(&Nccl) -> Result<(), gpu_kernels::Error>,
    ) -> Result<(), Error> {
        let Some(ranks) = self.ranks() else { return Ok(()) };
        self.compute_postponed()?;
        self.inner.lanes.hold(ranks.gpu())?;
        Ok(work(&ranks)?)
    }
}

impl Exchange for Cuda {
    fn has_ranks(&self) -> bool {
        self.ranks().is_some()
    }

    fn exchange(&self, gradients: &mut Buffer<f32>, part: Range<usize>) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.all_reduce(&gradients.view_mut().part(part)))
    }

    fn exchange_total(&self, sums: &mut Sums) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.all_reduce_f64(&mut sums.total))
    }

    fn finish_exchange(&self) -> Result<(), Error> {
        match self.ranks() {
            Some(ranks) => Ok(self.gpu().wait_for(ranks.gpu())?),
            None => Ok(()),
        }
    }

    fn clear(&self, gradients: &mut Buffer<f32>, sums: &mut Sums) -> Result<(), Error> {
        gradients.fill_zero()?;
        Ok(sums.total.fill_zero()?)
    }

    fn leave_ranks(&self) {
        if let Some(ranks) = self.ranks() {
            ranks.abort();
        }
    }
}
