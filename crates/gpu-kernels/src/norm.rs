//! The launch of the gradient norm, `cuda/norm.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::launch::{checked_blocks, launch};
use crate::module::Kernel;
use crate::programs::{self, CHUNK_ELEMENTS, NORM_THREADS};
use crate::table::{Bases, Tensor};
use crate::{Buffer, Error, Gpu};

/// The norm of the gradients of one model, by the pinned sum tree.
pub(crate) struct GradientNorm {
    kernel: Kernel,
    finish: Kernel,
    /// Four words of each chunk: its tensor, its place and its length there, and nothing.
    chunks: Buffer<u32>,
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
    chunks: u64,
    biases: u64,
    gradient_maxima: u64,
    chunk_sums: u64,
    loss: u64,
    control: u64,
    clip_norm: f64,
    tensor_count: u32,
    sums: u32,
    places: u64,
    whole_places: u64,
    maxima: u64,
    nonfinite: u64,
    place_count: u64,
}

/// Where a launch leaves what it finds of parts of tensors, among that of all parts.
pub(crate) struct Places {
    /// The first place of each tensor's chunks.
    pub(crate) own: Buffer<u32>,
    /// The first place of each whole tensor's chunks.
    pub(crate) whole: Buffer<u32>,
    /// The chunks of all whole tensors.
    pub(crate) count: usize,
    /// Sums of chunks, perhaps largest gradients of chunks, and how much is not finite.
    pub(crate) numbers: Buffer<f64>,
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
        let elements = u64::from(CHUNK_ELEMENTS);
        let counts = lengths.iter().map(|length| length.div_ceil(elements));
        let chunks = checked_blocks(counts.sum())?;
        let rows = lengths.iter().enumerate().flat_map(|(tensor, &length)| {
            (0..length.div_ceil(elements)).map(move |chunk| {
                let rest = (length - chunk * elements).min(elements);
                [tensor as u32, chunk as u32, rest as u32, 0]
            })
        });
        let rows: Vec<u32> = rows.flatten().collect();
        let module = gpu.best_module(&programs::norm())?;
        Ok(GradientNorm {
            kernel: module.kernel("gradient_norm")?,
            finish: module.kernel("finish_norm")?,
            chunks: gpu.upload(&rows)?,
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
        places: Option<&mut Places>,
    ) -> Result<(), Error> {
        let chunks = self.chunk_sums.len() as u32;
        let model = (table, biases, gradient_maxima, control);
        let argument = self.argument(bases, model, loss, places);
        // SAFETY: 1. `Norm` is laid out as in norm.cu, which was compiled for these threads. 2. and 3.
        // The caller's, for the gradients; the other memory is of this norm and of its model, whose
        // steps are on one stream.
        unsafe { launch(gpu, &self.kernel, chunks, NORM_THREADS, &argument) }
    }

    /// Queues what is left to do once `places` hold what all parts add up to.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn queue_finish(
        &self,
        gpu: &Gpu,
        model: (&Buffer<Tensor>, &mut Buffer<i32>, &mut Buffer<u32>, &mut Buffer<u32>),
        places: &mut Places,
    ) -> Result<(), Error> {
        let (table, biases, gradient_maxima, control) = model;
        let model = (table, &*biases, gradient_maxima, control);
        let argument = self.argument(Bases::default(), model, None, Some(places));
        // SAFETY: 1. As above. 2. and 3. Gradients are not looked at; the memory is of this norm and of its
        // model, and biases are borrowed mutably.
        unsafe { launch(gpu, &self.finish, 1, NORM_THREADS, &argument) }
    }

    fn argument(
        &self,
        bases: Bases,
        (table, biases, gradient_maxima, control): (
            &Buffer<Tensor>,
            &Buffer<i32>,
            &mut Buffer<u32>,
            &mut Buffer<u32>,
        ),
        loss: Option<&Buffer<f64>>,
        places: Option<&mut Places>,
    ) -> Norm {
        let places = places.map(|places| {
            let (first, count) = (places.numbers.address(), places.count as u64);
            let at = |number: u64| first + number * size_of::<f64>() as u64;
            let last = places.numbers.len() as u64 - 1;
            let maxima = if last > count { at(count) } else { 0 };
            let tables = [places.own.address(), places.whole.address()];
            (tables, [first, maxima, at(last)], count)
        });
        let ([own, whole], [sums, maxima, nonfinite], count) =
            places.unwrap_or(([0; 2], [self.chunk_sums.address(), 0, 0], 0));
        Norm {
            bases,
            tensors: table.address(),
            chunks: self.chunks.address(),
            biases: biases.address(),
            gradient_maxima: gradient_maxima.address(),
            chunk_sums: sums,
            loss: loss.map_or(0, Buffer::address),
            control: control.address(),
            clip_norm: self.clip_norm,
            tensor_count: table.len() as u32,
            sums: u32::from(self.sums),
            places: own,
            whole_places: whole,
            maxima,
            nonfinite,
            place_count: count,
        }
    }

    /// Moves to another stream of the device, as a buffer does.
    pub(crate) fn set_stream(&mut self, gpu: &Gpu) {
        self.chunks.set_stream(gpu);
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
