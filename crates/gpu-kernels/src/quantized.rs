//! Block-wise 8-bit AdamW over bf16 parameters and gradients, codes and absmaxes in and out. Launches
//! `cuda/quantized.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use std::sync::Arc;

use formats::Maps;

use crate::buffer::{check_device, check_length};
use crate::launch::launch_with_shared;
use crate::maps::EvenTables;
use crate::module::{Kernel, Module};
use crate::programs::{self, QUANTIZED_EIGHT, QUANTIZED_THREADS};
use crate::{Buffer, Error, Gpu};

/// What an update multiplies by; the same as a [`Group`](crate::Group)'s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizedScalars {
    /// `beta1`
    pub beta1: f32,
    /// `1 - beta1`
    pub one_minus_beta1: f32,
    /// `beta2`
    pub beta2: f32,
    /// `1 - beta2`
    pub one_minus_beta2: f32,
    /// `eps`
    pub eps: f32,
    /// `1 - lr * weight_decay`
    pub decay: f32,
    /// `lr / (1 - beta1^t)`
    pub step: f32,
    /// `1 / sqrt(1 - beta2^t)`
    pub rms_scale: f32,
}

/// One moment in 8-bit codes.
#[derive(Debug)]
pub struct QuantizedMoment<'a> {
    /// A code for every parameter.
    pub codes: &'a mut Buffer<u8>,
    /// The largest magnitude of every block, the last of which may be shorter.
    pub absmax: &'a mut Buffer<f32>,
}

/// The kernel for blocks of one size, with its maps.
pub struct QuantizedKernel {
    gpu: Gpu,
    update: Kernel,
    maps: Buffer<u32>,
    maps_are_fine: bool,
    block: u32,
    /// Of the tables of a block of threads.
    shared_bytes: u32,
}

/// What the kernel is given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Quantized {
    parameters: u64,
    gradients: u64,
    m_codes: u64,
    v_codes: u64,
    m_absmax: u64,
    v_absmax: u64,
    maps: u64,
    length: u64,
    maps_are_fine: u32,
    padding: u32,
    scalars: [f32; 8],
}

impl QuantizedKernel {
    /// The kernel on a device, for blocks of a power of two from 64 to 4096 elements.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    ///
    /// # Panics
    ///
    /// If a block is not that.
    pub fn new(gpu: &Gpu, maps: &Maps, block: u32) -> Result<QuantizedKernel, Error> {
        assert!(block.is_power_of_two() && (64..=4096).contains(&block), "blocks of {block}");
        let tables = EvenTables::of(gpu.facts().shared_bytes_of_block);
        let module: Arc<Module> = gpu.best_module(&programs::quantized(block, tables))?;
        let (words, maps_are_fine) = tables.fill(maps);
        let maps = gpu.upload(&words)?;
        let update = module.kernel("quantized_update")?;
        let shared_bytes = tables.bytes();
        update.allow_shared(gpu, shared_bytes)?;
        Ok(QuantizedKernel { gpu: gpu.clone(), update, maps, maps_are_fine, block, shared_bytes })
    }

    /// Queues one update of bf16 parameters.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and what the driver refuses.
    pub fn step(
        &self,
        parameters: &mut Buffer<u16>,
        gradients: &Buffer<u16>,
        first: QuantizedMoment<'_>,
        second: QuantizedMoment<'_>,
        scalars: QuantizedScalars,
    ) -> Result<(), Error> {
        let elements = parameters.len();
        check_length("gradients", elements, gradients.len())?;
        check_device("parameters", &self.gpu, parameters.gpu())?;
        check_device("gradients", &self.gpu, gradients.gpu())?;
        for QuantizedMoment { codes, absmax } in [&first, &second] {
            check_length("codes of a moment", elements, codes.len())?;
            check_length("absmaxes", elements.div_ceil(self.block as usize), absmax.len())?;
            check_device("codes of a moment", &self.gpu, codes.gpu())?;
            check_device("absmaxes", &self.gpu, absmax.gpu())?;
        }
        let (length, tile) = (elements as u64, u64::from(QUANTIZED_THREADS * QUANTIZED_EIGHT));
        // A multiprocessor has room for one block, which takes tiles in turn.
        let blocks = length.div_ceil(tile).min(u64::from(self.gpu.facts().multiprocessors)) as u32;
        let s = scalars;
        let argument = Quantized {
            parameters: parameters.address(),
            gradients: gradients.address(),
            m_codes: first.codes.address(),
            v_codes: second.codes.address(),
            m_absmax: first.absmax.address(),
            v_absmax: second.absmax.address(),
            maps: self.maps.address(),
            length,
            maps_are_fine: u32::from(self.maps_are_fine),
            padding: 0,
            scalars: [
                s.beta1,
                s.one_minus_beta1,
                s.beta2,
                s.one_minus_beta2,
                s.eps,
                s.decay,
                s.step,
                s.rms_scale,
            ],
        };
        let tasks = (blocks, QUANTIZED_THREADS, self.shared_bytes);
        // SAFETY: 1. `Quantized` is laid out as in quantized.cu, which was compiled for these threads, blocks
        // of this size and this much shared memory. 2. All buffers are as long as `length` or its blocks say, as was checked above, and begin
        // at borders of 256 bytes, as allocations do. 3. What the kernel writes is borrowed mutably.
        unsafe { launch_with_shared(&self.gpu, &self.update, tasks, &argument) }
    }
}
