//! Updates that begin on the device, for libraries that record steps and replay them by themselves: no copy from
//! the host goes before a step, and every replay is another update.
//!
//! The scalars have the bits of those that the host works out.

#![expect(unsafe_code, reason = "addresses of learning rates")]

use gpu_kernels::{Gpu, Rule};

use crate::{CudaAdamW, Error};

/// The learning rate of a group at an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LearningRate {
    /// This one.
    Value(f64),
    /// That at an address in device memory, an f32, whatever it is when the update begins.
    At(u64),
}

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
    /// be recorded together.
    ///
    /// # Errors
    ///
    /// If the rates are not as many as the groups or one cannot be used, and what the device refuses.
    ///
    /// # Safety
    ///
    /// At every address among the rates an f32 lies in memory of the device until the work is done, and until
    /// the last replay of a recording of it is.
    pub unsafe fn begin_update(&mut self, rates: &[LearningRate]) -> Result<(), Error> {
        let update = self.update + 1;
        let value = |rate: &LearningRate| match *rate {
            LearningRate::Value(value) => value,
            LearningRate::At(_) => 0.0,
        };
        self.layout.check_update(update, &rates.iter().map(value).collect::<Vec<f64>>())?;
        let rules = self.layout.groups.iter().zip(rates).map(|(group, rate)| Rule {
            betas: group.betas,
            eps: group.eps,
            weight_decay: group.weight_decay,
            learning_rate: value(rate),
            rate_address: if let LearningRate::At(address) = *rate { address } else { 0 },
        });
        let rules: Vec<Rule> = rules.collect();
        // SAFETY: the caller's.
        unsafe { self.fused.queue_next_update(&rules) }?;
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
