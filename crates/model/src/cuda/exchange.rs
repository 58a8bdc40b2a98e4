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
    /// Sums whose values are there, in the order in which they were asked for.
    waiting: Vec<Sum>,
}

/// A sum over ranks that has not begun.
enum Sum {
    /// On all ranks.
    Whole(Buffer<f32>),
    /// Of each part, on the rank that it is given with.
    Parts(Buffer<f32>, Vec<(usize, Range<usize>)>),
}

impl Sum {
    fn addresses(&self) -> Vec<Range<u64>> {
        let range = |values: &Buffer<f32>, part: &Range<usize>| {
            let place = |index: usize| values.address() + (index * size_of::<f32>()) as u64;
            place(part.start)..place(part.end)
        };
        match self {
            Sum::Whole(values) => vec![range(values, &(0..values.len()))],
            Sum::Parts(values, parts) => {
                parts.iter().map(|(_, part)| range(values, part)).collect()
            }
        }
    }
}

impl Cuda {
    /// Makes this device one of several ranks; none leaves it alone again.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn set_ranks(&self, ranks: Option<Arc<Nccl>>) -> Result<(), Error> {
        let with_watch = |nccl| {
            let watch = Stopwatch::new(self.gpu())?;
            Ok::<_, Error>(Ranks { nccl, watch, waiting: Vec::new() })
        };
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

    /// Does work on the stream of the ranks, after all work of both lanes and all sums.
    fn among_ranks(
        &self,
        work: impl FnOnce(&Nccl) -> Result<(), gpu_kernels::Error>,
    ) -> Result<(), Error> {
        let Some(ranks) = self.ranks() else { return Ok(()) };
        self.begin_sums()?;
        self.compute_postponed()?;
        self.inner.lanes.hold(ranks.gpu())?;
        Ok(work(&ranks)?)
    }

    /// Notes a sum, of values that are there when all work of both lanes so far, and what was postponed of them, is done.
    /// It begins with the next [`Cuda::begin_sums`].
    fn note_sum(&self, sum: Sum) -> Result<(), Error> {
        let Some(ranks) = self.ranks() else { return Ok(()) };
        self.begin_sums()?;
        self.compute_postponed_within(&sum.addresses())?;
        self.inner.lanes.hold(ranks.gpu())?;
        self.locked().as_mut().expect("there are ranks").waiting.push(sum);
        Ok(())
    }

    /// Forgets what was noted, when a recording failed.
    pub(super) fn forget_sums(&self) {
        if let Some(ranks) = &mut *self.locked() {
            ranks.waiting.clear();
        }
    }

    /// Begins the sums over ranks that were noted, at the same time as what the main lane does next.
    ///
    /// NCCL takes some multiprocessors as long as a sum goes on. A product whose blocks are as many as there are
    /// multiprocessors then takes twice its time; a kernel of many short blocks, such as attention's, hardly any more. So
    /// sums begin with those.
    pub(super) fn begin_sums(&self) -> Result<(), Error> {
        let mut locked = self.locked();
        let Some(Ranks { nccl, waiting, .. }) = &mut *locked else { return Ok(()) };
        if !waiting.is_empty() {
            nccl.gpu().wait_for(self.gpu())?;
        }
        for sum in waiting.drain(..) {
            match sum {
                Sum::Whole(mut values) => nccl.all_reduce(&values.view_mut())?,
                Sum::Parts(mut values, parts) => nccl.reduce(&mut values.view_mut(), &parts)?,
            }
        }
        Ok(())
    }
}

impl Exchange for Cuda {
    type Numbers = Buffer<f64>;

    fn has_ranks(&self) -> bool {
        self.ranks().is_some()
    }

    fn delay_parameters(&self, delays: bool) {
        self.postpone_all(delays && self.has_ranks());
    }

    fn exchange(&self, gradients: &mut Buffer<f32>, part: Range<usize>) -> Result<(), Error> {
        self.note_sum(Sum::Whole(gradients.shared(part)))
    }

    fn exchange_parts(
        &self,
        gradients: &mut Buffer<f32>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        self.note_sum(Sum::Parts(gradients.shared(0..gradients.len()), parts.to_vec()))
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
        self.begin_sums()?;
        match self.ranks() {
            Some(ranks) => Ok(self.gpu().wait_for(ranks.gpu())?),
            None => Ok(()),
        }
    }

    fn adds_in_order(&self) -> bool {
        true
    }

    fn add(&self, sum: &mut Buffer<f32>, other: &Buffer<f32>) -> Result<(), Error> {
        self.settle(&[sum.address(), other.address()])?;
        Ok(self.inner.plus.queue(self.gpu(), sum, other)?)
    }

    fn copy(&self, to: &mut Buffer<f32>, from: &Buffer<f32>) -> Result<(), Error> {
        self.settle(&[to.address(), from.address()])?;
        if to.address() == from.address() {
            return Ok(());
        }
        Ok(to.copy_from(from)?)
    }

    fn swap(
        &self,
        outgoing: &[(usize, Buffer<f32>)],
        incoming: &mut [(usize, Buffer<f32>)],
    ) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.swap(outgoing, incoming))?;
        self.finish_exchange()
    }

    fn clear_totals(&self, sums: &mut Sums, count: usize) -> Result<(), Error> {
        if sums.each.len() < count {
            sums.each = self.gpu().zeros(count)?;
        }
        Ok(sums.each.fill_zero()?)
    }

    fn total_of(
        &self,
        sums: &mut Sums,
        losses: &Buffer<f32>,
        length: usize,
        number: usize,
    ) -> Result<(), Error> {
        let mut place = sums.each.shared(number..number + 1);
        Ok(self.inner.tree_sum.queue(self.gpu(), &mut place, losses, length, false)?)
    }

    fn total_in_order(&self, sums: &mut Sums) -> Result<(), Error> {
        self.among_ranks(|ranks| ranks.all_reduce_f64(&mut sums.each))?;
        self.finish_exchange()?;
        Ok(self.inner.plus.queue_in_order(self.gpu(), &mut sums.total, &sums.each)?)
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
