//! Cross-entropy over logits. Launches `cuda/loss.cu`, or `cuda/loss_ring.cu` on devices whose copy engine can bring rows
//! ahead of time; where the logits come from, and what becomes
//! of their gradient, is `head`'s.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use std::ops::Range;

use crate::buffer::check_length;
use crate::launch::launch_with_shared;
use crate::module::Kernel;
use crate::programs::WARP_LANES;
use crate::programs::network::{self, LossRing};
use crate::{Buffer, Error, Gpu, Precision};

/// Cross-entropy over rows of one vocabulary.
pub(crate) struct CrossEntropy {
    forward: Kernel,
    forward_backward: Kernel,
    threads: u32,
    /// Where rows come ahead of time.
    ring: Option<LossRing>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    losses: u64,
    logits: u64,
    targets: u64,
    scale: u64,
    rows: u32,
}

/// The compute capability with such a copy engine.
const RING_CAPABILITY: (u32, u32) = (9, 0);

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
        let bytes = precision.activation_bytes();
        if let Some(in_ring) = CrossEntropy::in_ring(gpu, vocabulary, bytes) {
            return Ok(in_ring);
        }
        let (program, threads) = network::loss(vocabulary, bytes);
        let module = gpu.module(&program)?;
        Ok(CrossEntropy {
            forward: module.kernel("loss_forward")?,
            forward_backward: module.kernel("loss_forward_backward")?,
            threads,
            ring: None,
        })
    }

    /// Over rows that come ahead of time, where a device has what that takes.
    fn in_ring(gpu: &Gpu, vocabulary: usize, activation_bytes: usize) -> Option<CrossEntropy> {
        let facts = gpu.facts();
        let shared_bytes = facts.shared_bytes_of_block;
        let ring = LossRing::new(vocabulary, activation_bytes, shared_bytes)
            .filter(|_| facts.compute_capability == RING_CAPABILITY)?;
        let module = gpu.module(&network::loss_ring(vocabulary, activation_bytes, ring)).ok()?;
        let kernel = |name| {
            let kernel = module.kernel(name).ok()?;
            kernel.allow_shared(gpu, ring.shared_bytes).ok()?;
            Some(kernel)
        };
        Some(CrossEntropy {
            forward: kernel("loss_ring_forward")?,
            forward_backward: kernel("loss_ring_forward_backward")?,
            threads: ring.threads + WARP_LANES,
            ring: Some(ring),
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
    /// Duties 2 and 3 of [`launch`](crate::launch::launch), for the logits.
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
            rows: rows.len() as u32,
        };
        let (mut blocks, mut shared_bytes) = (rows.len() as u32, 0);
        if let Some(ring) = self.ring {
            blocks = blocks.min(ring.blocks * gpu.facts().multiprocessors);
            shared_bytes = ring.shared_bytes;
        }
        let kernel = if scale.is_some() { &self.forward_backward } else { &self.forward };
        // SAFETY: 1. `Rows` is laid out as `Loss` in loss_row.cuh, and the kernel was compiled for these threads and
        // as much shared memory. 2. and 3. Checked above, or the caller's.
        unsafe { launch_with_shared(gpu, kernel, (blocks, self.threads, shared_bytes), &argument) }
    }
}
