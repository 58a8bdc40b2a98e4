//! Sums over ranks on CUDA: by NCCL, on a stream of its own, beside the backward pass.

use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use gpu_kernels::{Buffer, Nccl, Point, Stopwatch};

use super::{Cuda, Sums};
use crate::Error;
use crate::ops::Exchange;

/// What a device among ranks has besides.
pub(super) struct Ranks {
    nccl: Arc<Nccl>,
    watch: Stopwatch,
}

impl Cuda {
    /// Makes this device one of several ranks; none leaves it alone again.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn set_ranks(&self, ranks: Option<Arc<Nccl>>) -> Result<(), Error> {
        let with_watch = |nccl| Ok::<_, Error>(Ranks { nccl, watch: Stopwatch::new(self.gpu())? });
        *self.locked() = ranks.map(with_watch).transpose()?;
        Ok(())
    }

    fn ranks(&self) -> Option<Arc<Nccl>> {
        self.locked().as_ref().map(|ranks| Arc::clone(&ranks.nccl))
    }

    fn locked(&self) -> MutexGuard<'_, Option<Ranks>> {
        self.inner.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the watch of a device among ranks.
    fn watched<T: Default>(
        &self,
        with: impl FnOnce(&mut Stopwatch) -> Result<T, gpu_kernels::Error>,
    ) -> Result<T, Error> {
        let mut ranks = self.locked();
        Ok(ranks.as_mut().map(|ranks| with(&mut ranks.watch)).transpose()?.unwrap_or_default())
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
    type Numbers = Buffer<f64>;

    fn has_ranks(&self) -> bool {
        self.ranks().is_some()
    }

    fn exchange(&self, gradients: &mut Buffer<f32>, part: Range<usize>) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.all_reduce(&gradients.view_mut().part(part)))
    }

    fn exchange_parts(
        &self,
        gradients: &mut Buffer<f32>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.reduce(&mut gradients.view_mut(), parts))
    }

    fn share_parts(
        &self,
        floats: &mut Buffer<f32>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.share(&mut floats.view_mut(), parts))
    }

    fn add_numbers<E: From<Error>>(
        &self,
        numbers: &mut Buffer<f64>,
        on_host: impl FnOnce(&mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.has_ranks() {
            self.among_ranks(|ranks| ranks.all_reduce_f64(numbers))?;
            return Ok(self.finish_exchange()?);
        }
        let mut host = numbers.to_vec().map_err(Error::from)?;
        on_host(&mut host)?;
        Ok(numbers.upload(&host).map_err(Error::from)?)
    }

    fn part(&self, floats: &Buffer<f32>, range: Range<usize>) -> Result<Buffer<f32>, Error> {
        Ok(floats.shared(range))
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

    fn start_watch(&self) -> Result<(), Error> {
        self.watched(|watch| watch.pass(self.gpu(), Point::Start))
    }

    fn stop_watch(&self) -> Result<(), Error> {
        self.watched(|watch| watch.pass(self.gpu(), Point::Stop))
    }

    fn queue_watch(&self) -> Result<(), Error> {
        self.watched(Stopwatch::queue)
    }

    fn take_watch(&self) -> Result<Option<f64>, Error> {
        self.watched(|watch| watch.take_ms(true))
    }

    fn leave_ranks(&self) {
        if let Some(ranks) = self.ranks() {
            ranks.abort();
        }
    }
}
