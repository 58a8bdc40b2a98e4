//! Sums in an order that the caller chooses, for gradients that are added as a tree. Launches `cuda/plus.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::check_length;
use crate::launch::{launch, striding_blocks};
use crate::module::Kernel;
use crate::programs::network::{self, THREADS};
use crate::{Buffer, Error, Gpu};

/// Adds where it is told to.
pub struct Plus {
    plus: Kernel,
    in_order: Kernel,
}

/// Two arrays, or an array and where its sum goes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    sum: u64,
    other: u64,
    length: u64,
}

impl Plus {
    /// The kernels on a device.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<Plus, Error> {
        let module = gpu.module(&network::plus())?;
        Ok(Plus { plus: module.kernel("plus")?, in_order: module.kernel("in_order")? })
    }

    /// Queues `sum[i] = sum[i] + other[i]`, each rounded once.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn queue(
        &self,
        gpu: &Gpu,
        sum: &mut Buffer<f32>,
        other: &Buffer<f32>,
    ) -> Result<(), Error> {
        check_length("what is added", sum.len(), other.len())?;
        if sum.is_empty() {
            return Ok(());
        }
        let length = sum.len() as u64;
        let argument = Argument { sum: sum.address(), other: other.address(), length };
        let blocks = striding_blocks(gpu, sum.len().div_ceil(4), THREADS);
        // SAFETY: 1. `Argument` is laid out as `Plus` in plus.cu, which was compiled for these threads. 2. Both are as long
        // as was checked. 3. `sum` was borrowed mutably.
        unsafe { launch(gpu, &self.plus, blocks, THREADS, &argument) }
    }

    /// Queues `sum = 0 + numbers[0] + numbers[1] + ...`, from the left, for a few numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn queue_in_order(
        &self,
        gpu: &Gpu,
        sum: &mut Buffer<f64>,
        numbers: &Buffer<f64>,
    ) -> Result<(), Error> {
        check_length("a sum", 1, sum.len())?;
        let (sum, other) = (sum.address(), numbers.address());
        let argument = Argument { sum, other, length: numbers.len() as u64 };
        // SAFETY: 1. `Argument` is laid out as `InOrder` in plus.cu, which takes one thread. 2. Both are as long as it says.
        // 3. `sum` was borrowed mutably.
        unsafe { launch(gpu, &self.in_order, 1, 1, &argument) }
    }
}
