//! Updates that begin on the device, for libraries that record steps and replay them by themselves: no copy from
//! the host goes before a step, and every replay is another update.
//!
//! The scalars have the bits of those that the host works out.

use gpu_kernels::{Gpu, LearningRate, Rule};

use crate::{CudaAdamW, Error};

impl CudaAdamW {
    /// Loads the kernel of [`begin_update`](Self::begin_update), which a recording could not.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn prepare_begin_update(&mut self) -> Result<(), Error> {
        Ok(self.fused.prepare_next_update()?)
    }

    /// Queues the begin of the update after the last one, at these learning rates; a step follows it. Both may
    /// be recorded together. A rate in memory is taken as it is: whether it can be used, nobody checks.
    ///
    /// # Errors
    ///
    /// If the rates are not as many as the groups or one cannot be used, and what the device refuses.
    pub fn begin_update(&mut self, rates: &[LearningRate]) -> Result<(), Error> {
        let update = self.update + 1;
        let value = |rate: &LearningRate| match *rate {
            LearningRate::Value(value) => value,
            LearningRate::InMemory(_) => 0.0,
        };
        self.layout.check_update(update, &rates.iter().map(value).collect::<Vec<f64>>())?;
        let rules = self.layout.groups.iter().zip(rates).map(|(group, &learning_rate)| Rule {
            betas: group.betas,
            eps: group.eps,
            weight_decay: group.weight_decay,
            learning_rate,
        });
        self.fused.queue_next_update(&rules.collect::<Vec<Rule>>())?;
        self.update = update;
        self.is_update_set = true;
        Ok(())
    }

    /// Queues later work on another stream of the same device, such as [`Gpu::on_stream`]. Whoever changes
    /// streams orders the work of both.
    ///
    /// # Errors
    ///
    /// If the stream is one of another device.
    pub fn set_stream(&mut self, gpu: &Gpu) -> Result<(), Error> {
        Ok(self.fused.set_stream(gpu)?)
    }
}
