//! f32 parameters to and from their halves, whole buffers at a time. Launches `cuda/split.cu`; the
//! codec is [`formats::split`].

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::{check_device, check_length};
use crate::launch::{blocks_of, launch};
use crate::module::Kernel;
use crate::programs::{self, SPLIT_THREADS};
use crate::{Buffer, Error, Gpu};

/// Most blocks of a launch: enough to fill any device, whose threads then stride.
const BLOCKS_MAX: u32 = 4096;

/// The kernels for halves of parameters.
pub struct SplitKernels {
    gpu: Gpu,
    split: Kernel,
    recombine: Kernel,
}

/// What the kernels are given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Halves {
    numbers: u64,
    upper: u64,
    remainders: u64,
    length: u64,
}

impl SplitKernels {
    /// The kernels on a device.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<SplitKernels, Error> {
        let module = gpu.best_module(&programs::split())?;
        let (split, recombine) = (module.kernel("split")?, module.kernel("recombine")?);
        Ok(SplitKernels { gpu: gpu.clone(), split, recombine })
    }

    /// Overwrites both halves with those of `numbers`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and what the driver refuses.
    pub fn split(
        &self,
        numbers: &Buffer<f32>,
        upper: &mut Buffer<u16>,
        remainders: &mut Buffer<u16>,
    ) -> Result<(), Error> {
        self.check(numbers, upper, remainders)?;
        self.queue(&self.split, numbers, upper, remainders)
    }

    /// Overwrites `numbers` with what the halves stand for.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and what the driver refuses.
    pub fn recombine(
        &self,
        upper: &Buffer<u16>,
        remainders: &Buffer<u16>,
        numbers: &mut Buffer<f32>,
    ) -> Result<(), Error> {
        self.check(numbers, upper, remainders)?;
        self.queue(&self.recombine, numbers, upper, remainders)
    }

    fn check(
        &self,
        numbers: &Buffer<f32>,
        upper: &Buffer<u16>,
        remainders: &Buffer<u16>,
    ) -> Result<(), Error> {
        check_length("upper halves", numbers.len(), upper.len())?;
        check_length("remainders", numbers.len(), remainders.len())?;
        check_device("numbers", &self.gpu, numbers.gpu())?;
        check_device("upper halves", &self.gpu, upper.gpu())?;
        check_device("remainders", &self.gpu, remainders.gpu())
    }

    fn queue(
        &self,
        kernel: &Kernel,
        numbers: &Buffer<f32>,
        upper: &Buffer<u16>,
        remainders: &Buffer<u16>,
    ) -> Result<(), Error> {
        let length = numbers.len() as u64;
        let halves = Halves {
            numbers: numbers.address(),
            upper: upper.address(),
            remainders: remainders.address(),
            length,
        };
        let blocks = blocks_of(length, u64::from(SPLIT_THREADS))?.min(BLOCKS_MAX);
        // SAFETY: 1. `Halves` is laid out as in split.cu, which was compiled for these threads. 2. All
        // three are as long as `length`, as `check` found. 3. What a kernel writes was borrowed
        // mutably by its caller above.
        unsafe { launch(&self.gpu, kernel, blocks, SPLIT_THREADS, &halves) }
    }
}
