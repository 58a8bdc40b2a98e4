//! [`quantized_adamw_step`](crate::quantized_adamw_step) on a device: the same bits.

use formats::Maps;
use gpu_kernels::{Buffer, Gpu, QuantizedKernel, QuantizedScalars};

use crate::quantized::check_block;
use crate::scalars::Scalars;
use crate::{Error, Group};

pub use gpu_kernels::QuantizedMoment as CudaQuantizedMoment;

/// Block-wise 8-bit AdamW over bf16 parameters and gradients in device memory, with the maps and the blocks
/// that it is made for.
pub struct CudaQuantizedAdamW {
    kernel: QuantizedKernel,
}

impl CudaQuantizedAdamW {
    /// For blocks of `block` elements, with [`Maps::plain`] or any others.
    ///
    /// # Errors
    ///
    /// If the block is not a power of two from 64 to 4096, and what the compiler or the driver
    /// refuses.
    pub fn new(gpu: &Gpu, maps: &Maps, block: usize) -> Result<CudaQuantizedAdamW, Error> {
        check_block(block)?;
        Ok(CudaQuantizedAdamW { kernel: QuantizedKernel::new(gpu, maps, block as u32)? })
    }

    /// Queues one update, as [`quantized_adamw_step`](crate::quantized_adamw_step) would do it.
    ///
    /// # Errors
    ///
    /// If a hyperparameter is out of range, `update` is 0, or a buffer has not one element for each
    /// parameter or for each block; and what the driver refuses.
    pub fn step(
        &self,
        parameters: &mut Buffer<u16>,
        gradients: &Buffer<u16>,
        first: CudaQuantizedMoment<'_>,
        second: CudaQuantizedMoment<'_>,
        group: &Group,
        update: u64,
    ) -> Result<(), Error> {
        group.check_update(update)?;
        let s = Scalars::at(group, update, group.learning_rate);
        let scalars = QuantizedScalars {
            beta1: s.beta1,
            one_minus_beta1: s.one_minus_beta1,
            beta2: s.beta2,
            one_minus_beta2: s.one_minus_beta2,
            eps: s.eps,
            decay: s.decay,
            step: s.step,
            rms_scale: s.rms_scale,
        };
        Ok(self.kernel.step(parameters, gradients, first, second, scalars)?)
    }
}
