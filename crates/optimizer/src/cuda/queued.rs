//! Updates queued several at a time on a device.

use std::ops::Range;

use formats::counter_hash::UpdateKeys;
use gpu_kernels::{Buffer, Gradients, LaterUpdate, Outcome, ParametersMut, UPDATES_AT_ONCE};

use super::{device_scalars, report, saved_array};
use crate::queued::SavedLater;
use crate::saved::{SavedState, section_name};
use crate::scalars::{BlockScalars, Scalars};
use crate::{CudaAdamW, Error, QueuedAdamW, Report};

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
}

impl QueuedAdamW for CudaAdamW {
    /// bf16, rounded to nearest, ties to even.
    type Copy = Buffer<u16>;
    type Later = LaterUpdate;

    fn updates_at_once(&self) -> usize {
        UPDATES_AT_ONCE
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

    fn step_but(
        &mut self,
        parameters: &mut Buffer<f32>,
        gradients: &Buffer<f32>,
        loss: &Buffer<f64>,
        pieces: &[Range<usize>],
    ) -> Result<Vec<LaterUpdate>, Error> {
        let loss = self.watched(parameters, gradients, loss)?;
        let (parameters, gradients) = (ParametersMut::F32(parameters), Gradients::F32(gradients));
        let later = self.fused.step_but(parameters, gradients, loss, pieces)?;
        self.has_stepped = true;
        Ok(later)
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

    fn save_later(&mut self) -> Result<SavedLater, Error> {
        // What is read at once comes first: it would wait for the copy.
        let metadata = self.metadata()?;
        let words = self.fused.queue_state()?;
        let mut places = Vec::new();
        for (position, spec) in self.layout.tensors.iter().enumerate() {
            let of_tensor = self.layout.arrays_of(position).enumerate().map(|(number, section)| {
                let place = self.fused.place_of_state(position, number);
                (section_name(&spec.name, section.name), section, place)
            });
            places.extend(of_tensor);
        }
        Ok(Box::new(move || {
            let words = words.read()?;
            let array = |(name, section, place)| saved_array(name, section, &words[place]);
            Ok(SavedState { arrays: places.into_iter().map(array).collect(), metadata })
        }))
    }
}
