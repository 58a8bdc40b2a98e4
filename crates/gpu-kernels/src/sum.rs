//! The sum of losses in f64 by one tree, left on the device. Launches `cuda/sum.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::buffer::check_length;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network::{self, SUM_RUN_LEVELS, SUM_THREADS};
use crate::{Buffer, Error, Gpu};

/// Adds up losses.
pub struct TreeSum {
    kernel: Kernel,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    sum: u64,
    numbers: u64,
    length: u32,
    run: u32,
    adds: u32,
}

impl TreeSum {
    /// The kernel on a device.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<TreeSum, Error> {
        Ok(TreeSum { kernel: gpu.module(&network::sum())?.kernel("tree_sum")? })
    }

    /// Stores in `sum`, one number, that of the first `length` numbers: by halves, the lower one as
    /// long as the largest power of two that leaves something above it.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::TooLarge`] for more than 2^21 numbers, and what the driver
    /// refuses.
    pub fn queue(
        &self,
        gpu: &Gpu,
        sum: &mut Buffer<f64>,
        numbers: &Buffer<f32>,
        length: usize,
        adds: bool,
    ) -> Result<(), Error> {
        check_length("numbers", length, numbers.len().min(length))?;
        check_length("a sum", 1, sum.len().min(1))?;
        let run = length.div_ceil(SUM_THREADS as usize).next_power_of_two();
        if run > 1 << SUM_RUN_LEVELS {
            return Err(Error::TooLarge { what: "the losses of a pass", limit: "a sum of 2^21" });
        }
        let argument = Numbers {
            sum: sum.address(),
            numbers: numbers.address(),
            length: length as u32,
            run: run as u32,
            adds: u32::from(adds),
        };
        // SAFETY: 1. `Numbers` is laid out as `TreeSum` in sum.cu, which was compiled for these threads.
        // 2. Both are as long as was checked. 3. `sum` was borrowed mutably.
        unsafe { launch(gpu, &self.kernel, 1, SUM_THREADS, &argument) }
    }
}
