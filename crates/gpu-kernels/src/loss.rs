//! Cross-entropy over logits. Launches `cuda/loss.cu`; where the logits come from, and what becomes
//! of their gradient, is `head`'s.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use std::ops::Range;

use crate::buffer::check_length;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network;
use crate::{Buffer, Error, Gpu, Precision};

/// Cross-entropy over rows of one vocabulary.
pub(crate) struct CrossEntropy {
    forward: Kernel,
    forward_backward: Kernel,
    threads: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    losses: u64,
    logits: u64,
    targets: u64,
    scale: u64,
}

impl CrossEntropy {
    /// The kernels for a vocabulary.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        precision: Precision,
        vocabulary: usize,
    ) -> Result<CrossEntropy, Error> {
        let (program, threads) = network::loss(vocabulary, precision.activation_bytes());
        let module = gpu.module(&program)?;
        Ok(CrossEntropy {
            forward: module.kernel("loss_forward")?,
            forward_backward: module.kernel("loss_forward_backward")?,
            threads,
        })
    }

    /// Overwrites the losses of `rows`, whose logits lie at `logits`; with a scale also those logits,
    /// with their gradient.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    ///
    /// # Safety
    ///
    /// Duties 2 and 3 of [`launch`], for the logits.
    pub(crate) unsafe fn queue(
        &self,
        gpu: &Gpu,
        losses: &mut Buffer<f32>,
        logits: u64,
        targets: &Buffer<u32>,
        scale: Option<&Buffer<f32>>,
        rows: Range<usize>,
    ) -> Result<(), Error> {
        check_length("losses", rows.end, losses.len().min(rows.end))?;
        check_length("targets", rows.end, targets.len().min(rows.end))?;
        let argument = Rows {
            losses: losses.address() + 4 * rows.start as u64,
            logits,
            targets: targets.address() + 4 * rows.start as u64,
            scale: scale.map_or(0, Buffer::address),
        };
        let kernel = if scale.is_some() { &self.forward_backward } else { &self.forward };
        // SAFETY: 1. `Rows` is laid out as `Loss` in loss.cu, which was compiled for these threads. 2.
        // and 3. Checked above, or the caller's.
        unsafe { launch(gpu, kernel, rows.len() as u32, self.threads, &argument) }
    }
}
