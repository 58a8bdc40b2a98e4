//! The launch of the gradient norm, `cuda/norm.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::launch::{checked_blocks, launch};
use crate::layout::first_blocks;
use crate::module::Kernel;
use crate::programs::{self, CHUNK_ELEMENTS, NORM_THREADS};
use crate::table::{Bases, Tensor};
use crate::{Buffer, Error, Gpu};

/// The norm of the gradients of one model, by the pinned sum tree.
pub(crate) struct GradientNorm {
    kernel: Kernel,
    first_chunks: Buffer<u32>,
    chunk_sums: Buffer<f64>,
    clip_norm: f64,
    /// Whether the norm is wanted, not only the largest gradients.
    sums: bool,
}

/// What `cuda/norm.cu` is given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    bases: Bases,
    tensors: u64,
    first_chunks: u64,
    biases: u64,
    gradient_maxima: u64,
    chunk_sums: u64,
    loss: u64,
    control: u64,
    clip_norm: f64,
    tensor_count: u32,
    sums: u32,
}

impl GradientNorm {
    /// For tensors of these lengths. Without a clip norm the clip scale is 1.
    ///
    /// # Errors
    ///
    /// What the compiler or the device refuses, and [`Error::TooLarge`].
    pub(crate) fn new(
        gpu: &Gpu,
        lengths: &[u64],
        clip_norm: Option<f64>,
        sums: bool,
    ) -> Result<GradientNorm, Error> {
        let counts = || lengths.iter().map(|length| length.div_ceil(u64::from(CHUNK_ELEMENTS)));
        let chunks = checked_blocks(counts().sum())?;
        let module = gpu.best_module(&programs::norm())?;
        Ok(GradientNorm {
            kernel: module.kernel("gradient_norm")?,
            first_chunks: gpu.upload(&first_blocks(counts()))?,
            chunk_sums: gpu.zeros(chunks as usize)?,
            // Nothing is longer than that.
            clip_norm: clip_norm.unwrap_or(f64::INFINITY),
            sums,
        })
    }

    /// Queues the kernel over the gradients below `bases`, of the tensors in `table`, with their
    /// biases and largest gradients, and the control of a step; and over their loss, if it is looked at.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// Duties 2 and 3 of [`launch`], for the gradients: they are where the table says.
    pub(crate) unsafe fn queue(
        &self,
        gpu: &Gpu,
        bases: Bases,
        (table, biases, gradient_maxima, control): (
            &Buffer<Tensor>,
            &Buffer<i32>,
            &mut Buffer<u32>,
            &mut Buffer<u32>,
        ),
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        let argument = Norm {
            bases,
            tensors: table.address(),
            first_chunks: self.first_chunks.address(),
            biases: biases.address(),
            gradient_maxima: gradient_maxima.address(),
            chunk_sums: self.chunk_sums.address(),
            loss: loss.map_or(0, Buffer::address),
            control: control.address(),
            clip_norm: self.clip_norm,
            tensor_count: table.len() as u32,
            sums: u32::from(self.sums),
        };
        let chunks = self.chunk_sums.len() as u32;
        // SAFETY: 1. `Norm` is laid out as in norm.cu, which was compiled for these threads. 2. and 3.
        // The caller's, for the gradients; the other memory is of this norm and of its model, whose
        // steps are on one stream.
        unsafe { launch(gpu, &self.kernel, chunks, NORM_THREADS, &argument) }
    }

    /// Moves to another stream of the device, as a buffer does.
    pub(crate) fn set_stream(&mut self, gpu: &Gpu) {
        self.first_chunks.set_stream(gpu);
        self.chunk_sums.set_stream(gpu);
    }

    /// The square sums of all chunks.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub(crate) fn chunk_sums(&self) -> Result<Vec<f64>, Error> {
        self.chunk_sums.to_vec()
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}
