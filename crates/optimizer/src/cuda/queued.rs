//! Updates queued several at a time on a device, each cut into tensors on two streams.

use std::ops::Range;

use formats::counter_hash::UpdateKeys;
use gpu_kernels::{Buffer, Gpu, Gradients, Outcome, Pace, ParametersMut, UPDATES_AT_ONCE};

use super::{device_scalars, report};
use crate::scalars::{BlockScalars, Scalars};
use crate::{CudaAdamW, Error, OnNonfinite, QueuedAdamW, Report};

impl CudaAdamW {
    /// Sets the updates from number `first` on, one for each set of rates.
    pub(super) fn set_numbered<R: AsRef<[f64]>>(
        &mut self,
        first: u64,
        learning_rates: &[R],
    ) -> Result<(), Error> {
        let numbered = || {
            let rates = learning_rates.iter().map(AsRef::as_ref).enumerate();
            rates.map(|(position, rates)| (first + position as u64, rates))
        };
        numbered().try_for_each(|(update, rates)| self.layout.check_update(update, rates))?;
        let layout = &self.layout;
        let updates = numbered().map(|(update, rates)| {
            let groups = layout.groups.iter().zip(rates).map(move |(group, &rate)| {
                let blocks = BlockScalars::at(group, update, update);
                device_scalars(Scalars::at(group, update, rate), blocks)
            });
            (update, UpdateKeys::new(layout.options.seed, update), groups)
        });
        self.fused.set_updates(updates)?;
        self.update = first + learning_rates.len() as u64 - 1;
        self.is_update_set = true;
        Ok(())
    }

    /// The loss, where options ask for a look at it.
    pub(super) fn watched<'l>(&self, loss: &'l Buffer<f64>) -> Option<&'l Buffer<f64>> {
        Some(loss).filter(|_| self.layout.options.on_nonfinite != OnNonfinite::Stop)
    }
}

impl QueuedAdamW for CudaAdamW {
    type Stream = Gpu;
    /// bf16, rounded to nearest, ties to even.
    type Copy = Buffer<u16>;

    fn updates_at_once(&self) -> usize {
        UPDATES_AT_ONCE
    }

    fn can_be_beside(&self) -> bool {
        self.fused.can_be_beside()
    }

    fn set_copy(&mut self, copy: Buffer<u16>) -> Result<(), Error> {
        Ok(self.fused.set_copies(Some(copy))?)
    }

    fn set_updates(&mut self, first: u64, learning_rates: &[Vec<f64>]) -> Result<(), Error> {
        self.set_numbered(first, learning_rates)
    }

    fn select(&mut self, position: usize) {
        self.fused.select(position);
    }

    fn begin_step(
        &mut self,
        parameters: &mut Buffer<f32>,
        gradients: &Buffer<f32>,
        loss: &Buffer<f64>,
    ) -> Result<(), Error> {
        self.check_flat(parameters, gradients)?;
        self.layout.check_alone()?;
        let loss = self.watched(loss);
        let (parameters, gradients) = (ParametersMut::F32(parameters), Gradients::F32(gradients));
        self.fused.begin_step(gradients, parameters, loss)?;
        self.has_stepped = true;
        Ok(())
    }

    fn update_tensors(
        &mut self,
        stream: &Gpu,
        parameters: &mut Buffer<f32>,
        gradients: &Buffer<f32>,
        tensors: Range<usize>,
        is_beside: bool,
    ) -> Result<(), Error> {
        let pace = if is_beside { Pace::Beside } else { Pace::Alone };
        let (parameters, gradients) = (ParametersMut::F32(parameters), Gradients::F32(gradients));
        Ok(self.fused.update_tensors(stream, parameters, gradients, (tensors, pace))?)
    }

    fn queue_reports(&mut self) -> Result<(), Error> {
        self.check_stepped()?;
        Ok(self.fused.queue_outcomes()?)
    }

    fn take_reports(&mut self, waits: bool) -> Result<Option<Vec<Report>>, Error> {
        let outcomes = self.fused.take_outcomes(waits)?;
        let of = |outcomes: Vec<Outcome>| {
            outcomes.iter().map(|outcome| report::of(&self.layout, outcome)).collect()
        };
        Ok(outcomes.map(of))
    }
}
