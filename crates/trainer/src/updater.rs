//! The optimizer as the engine wants it, whole or of a part of the parameters.

use model::ops::Operations;
use optimizer::{QueuedAdamW, SharedAdamW};

use crate::error::Error;
use crate::shards::Shards;

/// An optimizer that works where a device keeps its values.
pub trait Updater<D: Operations>:
    SharedAdamW<Buffer = D::Floats, Scalar = D::Scalar, Sums = D::Numbers>
    + QueuedAdamW<Copy = D::Copy, Later = D::LaterUpdate>
{
}

impl<D: Operations, O> Updater<D> for O where
    O: SharedAdamW<Buffer = D::Floats, Scalar = D::Scalar, Sums = D::Numbers>
        + QueuedAdamW<Copy = D::Copy, Later = D::LaterUpdate>
{
}

/// The part of a rank, where the optimizer's state is divided over ranks.
pub struct Divided<D: Operations> {
    /// The parts of all.
    pub shards: Shards,
    rank: usize,
    parameters: D::Floats,
    gradients: D::Floats,
}

impl<D: Operations> Divided<D> {
    /// The part of rank `rank` of these buffers.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn new(
        device: &D,
        shards: Shards,
        rank: usize,
        parameters: &D::Floats,
        gradients: &D::Floats,
    ) -> Result<Self, Error> {
        let own = shards.of(rank);
        let parameters = device.part(parameters, own.clone())?;
        let gradients = device.part(gradients, own)?;
        Ok(Self { shards, rank, parameters, gradients })
    }

    /// The ranges of all ranks, each with its rank; empty ones left out.
    #[must_use]
    pub fn owners(&self) -> Vec<(usize, std::ops::Range<usize>)> {
        let end = self.shards.ranges().last().map_or(0, |last| last.end);
        self.shards.within(&(0..end))
    }

    /// One step of the own part of `[parameters, gradients]`; `add` adds up numbers over ranks where the device does not.
    ///
    /// # Errors
    ///
    /// What the optimizer and the device refuse, and ranks that are gone.
    pub fn step<O: Updater<D>>(
        &mut self,
        device: &D,
        optimizer: &mut O,
        [parameters, gradients]: [&mut D::Floats; 2],
        total: &D::Scalar,
        mut add: impl FnMut(&mut [f64]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let own = self.shards.of(self.rank);
        device.take_part(gradients, own.clone(), &mut self.gradients);
        device.take_part(parameters, own.clone(), &mut self.parameters);
        let sum = |numbers: &mut D::Numbers| device.add_numbers(numbers, &mut add);
        optimizer.step_shared(&mut self.parameters, &self.gradients, Some(total), sum)?;
        device.put_part(parameters, own, &self.parameters);
        Ok(())
    }
}
