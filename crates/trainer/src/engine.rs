//! One update and one validation, over any device.
//!
//! The engine joins the network and the optimizer: both work on the same flat buffers, which is all that
//! they know of each other. It knows nothing of files, schedules or events.

use std::ops::Range;

use model::Gpt;
use model::ops::Operations;
use optimizer::{AdamW, Report};
use tape::reader::Tape;

use crate::batch::{Batch, pieces};
use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};

/// A network, its optimizer and the buffers between them.
pub struct Engine<D: Operations, O> {
    gpt: Gpt<D>,
    optimizer: O,
    parameters: D::Floats,
    gradients: D::Floats,
    batch: Batch,
}

/// What one update found.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Summed next-token loss in nats.
    pub nats: f64,
    /// What the optimizer reports.
    pub report: Report,
}

impl<D: Operations, O: AdamW<Buffer = D::Floats>> Engine<D, O> {
    /// Joins a network with an optimizer.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(gpt: Gpt<D>, optimizer: O, initial: &[f32]) -> Result<Self, Error> {
        let batch = Batch::new(gpt.batch());
        let mut parameters = gpt.device().floats(initial.len())?;
        gpt.device().upload(&mut parameters, initial)?;
        let gradients = gpt.device().floats(initial.len())?;
        Ok(Self { gpt, optimizer, parameters, gradients, batch })
    }

    /// Makes update number `update` from the inputs at `range` of `tape`.
    ///
    /// # Errors
    ///
    /// What the device or the optimizer refuses.
    pub fn update(
        &mut self,
        update: u64,
        learning_rates: &[f64],
        tape: &[u32],
        range: Range<u64>,
    ) -> Result<Outcome, Error> {
        let nats = self.gradients(tape, range)?;
        Ok(Outcome { nats, report: self.step(update, learning_rates)? })
    }

    /// Computes the gradients of the mean loss of the inputs at `range` of `tape`; returns the summed
    /// loss in nats.
    ///
    /// The range is cut into micro-batches. Every target counts the same wherever the cuts fall: each
    /// micro-batch adds the gradient of its summed loss divided by the number of targets of the whole
    /// range.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn gradients(&mut self, tape: &[u32], range: Range<u64>) -> Result<f64, Error> {
        let scale = (1.0 / (range.end - range.start) as f64) as f32;
        let mut nats = 0.0;
        for (index, piece) in pieces(range, self.batch.size()).enumerate() {
            self.batch.fill(tape, piece);
            self.gpt.upload(&self.batch.tokens, &self.batch.targets, scale)?;
            self.gpt.forward_backward(&self.parameters, &mut self.gradients, index > 0)?;
            nats += self.gpt.loss()?.nats;
        }
        Ok(nats)
    }

    /// Clips and applies the gradients, once.
    ///
    /// # Errors
    ///
    /// What the optimizer refuses.
    pub fn step(&mut self, update: u64, learning_rates: &[f64]) -> Result<Report, Error> {
        self.optimizer.set_update(update, learning_rates)?;
        self.optimizer.step(&mut self.parameters, &self.gradients)?;
        Ok(self.optimizer.report()?)
    }

    /// Scores the network on a tape; see [`evaluate`](crate::evaluate::evaluate).
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn evaluate(
        &mut self,
        tape: &Tape,
        windows: Option<u64>,
        go_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Evaluation>, Error> {
        evaluate(&mut self.gpt, &self.parameters, tape, windows, go_on)
    }

    /// The network.
    #[must_use]
    pub fn gpt(&self) -> &Gpt<D> {
        &self.gpt
    }

    /// The optimizer.
    #[must_use]
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The optimizer, to load a state into it.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// The parameters, on the device.
    #[must_use]
    pub fn parameters(&self) -> &D::Floats {
        &self.parameters
    }

    /// A copy of the parameters on the host.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn download(&self) -> Result<Vec<f32>, Error> {
        let mut parameters = vec![0.0; self.gpt.layout().parameters()];
        self.gpt.device().download(&self.parameters, &mut parameters)?;
        Ok(parameters)
    }
}
