//! Steps in pieces: updates of tensors that are queued by somebody else, when there is room beside other work.
//!
//! All of it together has the bits of one step.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use std::ops::Range;

use crate::adamw::{Gradients, ParametersMut};
use crate::buffer::Held;
use crate::launch::launch;
use crate::layout::is_in_blocks;
use crate::module::Kernel;
use crate::{Buffer, Error, FusedAdamW, Gpu};

/// The update of some tensors, which is left to be queued. It keeps the memory of all that it reads and writes.
pub struct LaterUpdate {
    kernel: Kernel,
    argument: Vec<u8>,
    blocks: u32,
    threads: u32,
    /// Addresses of the parameters, and of their copies.
    written: [Range<u64>; 2],
    _held: Vec<Held>,
}

impl LaterUpdate {
    /// The addresses of the parameters that it writes, and of their copies.
    #[must_use]
    pub fn written(&self) -> [Range<u64>; 2] {
        self.written.clone()
    }

    /// Queues it on the stream of `gpu`. Whoever does so has it begin after the step that left it, and be done before
    /// anything else that reads or writes parameters, gradients or moments of these tensors.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn queue(&self, gpu: &Gpu) -> Result<(), Error> {
        if self.blocks == 0 {
            return Ok(());
        }
        // SAFETY: 1. to 3. As in `FusedAdamW::queue_blocks`, where the argument is from; what it touches is held, and the
        // order is the caller's.
        unsafe { launch(gpu, &self.kernel, self.blocks, self.threads, &*self.argument) }
    }
}

impl FusedAdamW {
    /// Queues a step but for the update of some tensors: `pieces` follow each other up to the last tensor, and each comes back
    /// to be queued later; none where the formats or the options want all at once, and then the step is whole. Part of a recording.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step_watching`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::step_watching`], and if pieces do not follow each other to the end.
    pub fn step_but(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
        pieces: &[Range<usize>],
    ) -> Result<Vec<LaterUpdate>, Error> {
        let is_whole = self.layout.kinds.iter().copied().any(is_in_blocks);
        let (ParametersMut::F32(buffer), Some(first)) = (&parameters, pieces.first()) else {
            self.step_watching(parameters, gradients, loss)?;
            return Ok(Vec::new());
        };
        if is_whole || !self.checks_nothing() {
            self.step_watching(parameters, gradients, loss)?;
            return Ok(Vec::new());
        }
        let ends = pieces.iter().map(|piece| piece.end);
        let starts = pieces[1..].iter().map(|piece| piece.start).chain([self.table.len()]);
        assert!(ends.eq(starts), "pieces follow each other up to the last tensor");
        let held = self.held(buffer, gradients);
        let bases = self.check_and_measure(parameters, gradients, loss)?;
        let blocks = self.layout.first_blocks();
        let block = |tensor: usize| blocks.get(tensor).map_or(self.layout.blocks as u32, |&b| b);
        let ranges: Vec<_> = pieces.iter().map(|p| block(p.start)..block(p.end)).collect();
        self.queue_blocks(bases, 0, 0..block(first.start), true)?;
        let mut later = Vec::new();
        for (piece, blocks) in pieces.iter().zip(ranges) {
            let step = self.step_of(bases, 0, blocks.start);
            let elements = self.layout.elements_of(piece.clone());
            let within = |base: u64, bytes: u64| match base {
                0 => 0..0,
                base => base + elements.start * bytes..base + elements.end * bytes,
            };
            later.push(LaterUpdate {
                written: [within(bases.parameters, 4), within(step.copies, 2)],
                argument: self.argument.with_step(step).to_vec(),
                kernel: self.update_kernel().clone(),
                blocks: blocks.end - blocks.start,
                threads: self.options.shape.threads,
                _held: held.clone(),
            });
        }
        Ok(later)
    }

    /// All memory of an update.
    fn held(&self, parameters: &Buffer<f32>, gradients: Gradients<'_>) -> Vec<Held> {
        let gradients = match gradients {
            Gradients::F32(buffer) => buffer.held(),
            Gradients::Bf16(buffer) => buffer.held(),
        };
        let own = [self.state.held(), self.control.held(), self.gradient_maxima.held()];
        let tables = [self.table.held(), self.first_blocks.held(), self.biases.held()];
        let others = [self.maps.held(), self.gate.held(), parameters.held(), gradients];
        let copies = self.copies.iter().map(Buffer::held);
        own.into_iter().chain(tables).chain(others).chain(copies).collect()
    }
}
