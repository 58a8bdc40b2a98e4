//! One update and one validation, over any device.
//!
//! The engine joins the network and the optimizer: both work on the same flat buffers, which is all that
//! they know of each other. It knows nothing of files, schedules or events.
//!
//! A whole update is one recording: the micro-batches, the sum of their losses, and the optimizer's step. It
//! is queued without waiting; what it found is taken later, in order. On the CPU, where a recording is the
//! closure itself, it is there at once.

use std::collections::HashMap;

use model::Gpt;
use model::ops::Operations;
use optimizer::{AdamW, Report};
use tape::reader::Tape;

use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};
use crate::pool::RangeShape;
use crate::stage::{Source, Stage, Staged};

/// A network, its optimizer and the buffers between them.
pub struct Engine<D: Operations, O> {
    gpt: Gpt<D>,
    optimizer: O,
    parameters: D::Floats,
    gradients: D::Floats,
    stage: Stage<D>,
    /// By the number of micro-batches.
    updates: HashMap<usize, D::Recording>,
}

/// What one update found.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Summed next-token loss in nats.
    pub nats: f64,
    /// What the optimizer reports.
    pub report: Report,
}

impl<D: Operations, O: AdamW<Buffer = D::Floats, Scalar = D::Scalar> + Send> Engine<D, O> {
    /// Joins a network with an optimizer, for updates of up to `micro_batches` micro-batches whose rows lie in
    /// ranges of `shape`.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(
        gpt: Gpt<D>,
        optimizer: O,
        initial: &[f32],
        micro_batches: usize,
        shape: RangeShape,
    ) -> Result<Self, Error> {
        let device = gpt.device();
        let mut parameters = device.floats(initial.len())?;
        device.upload(&mut parameters, initial)?;
        device.reserve_parameters(&parameters)?;
        let gradients = device.floats(initial.len())?;
        let model::Batch { rows, time } = gpt.batch();
        let stage = Stage::new(device, shape, rows * micro_batches, time)?;
        Ok(Self { gpt, optimizer, parameters, gradients, stage, updates: HashMap::new() })
    }

    /// Queues update number `update` from its rows in `source`; [`Engine::take_outcome`] tells later what it
    /// found.
    ///
    /// The rows are cut into micro-batches. Every target counts the same wherever the cuts fall: each
    /// micro-batch adds the gradient of its summed loss divided by the number of all their targets.
    ///
    /// # Errors
    ///
    /// What the source, the device or the optimizer refuses.
    ///
    /// # Panics
    ///
    /// When they take more micro-batches than the engine was made for.
    pub fn update(
        &mut self,
        update: u64,
        learning_rates: &[f64],
        source: &mut dyn Source,
    ) -> Result<Staged, Error> {
        let staged = self.stage(update - 1, source)?;
        let count = self.micro_batches(staged.rows);
        self.optimizer.set_update(update, learning_rates)?;
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, stage, updates, .. } = self;
        device.record(updates.entry(count).or_default(), || {
            accumulate(gpt, parameters, gradients, stage, count)?;
            Ok::<_, Error>(optimizer.step_watching(parameters, gradients, gpt.total())?)
        })?;
        self.gpt.queue_total_loss()?;
        self.optimizer.queue_report()?;
        Ok(staged)
    }

    /// What the oldest update found that nobody asked about yet. `None` if there is none, or if it is still
    /// under way and nobody `waits` for it.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    pub fn take_outcome(&mut self, waits: bool) -> Result<Option<Outcome>, Error> {
        // The report is queued after the loss, so that the loss is there if the report is.
        let Some(report) = self.optimizer.take_report(waits)? else { return Ok(None) };
        let nats = self.gpt.take_total_loss(true)?;
        let nats = nats.expect("each report has a loss before it");
        Ok(Some(Outcome { nats, report }))
    }

    /// Computes the gradients of the mean loss of update number `update`, as [`Engine::update`] would, and waits
    /// for them; also returns the summed loss in nats.
    ///
    /// # Errors
    ///
    /// What the source or the device refuses.
    ///
    /// # Panics
    ///
    /// As [`Engine::update`].
    pub fn gradients(
        &mut self,
        update: u64,
        source: &mut dyn Source,
    ) -> Result<(Staged, f64), Error> {
        let staged = self.stage(update - 1, source)?;
        let count = self.micro_batches(staged.rows);
        let Self { gpt, parameters, gradients, stage, .. } = self;
        accumulate(gpt, parameters, gradients, stage, count)?;
        gpt.queue_total_loss()?;
        let nats = gpt.take_total_loss(true)?;
        Ok((staged, nats.expect("a total was queued")))
    }

    /// Clips and applies the gradients, once, and waits for it.
    ///
    /// # Errors
    ///
    /// What the optimizer refuses.
    pub fn step(&mut self, update: u64, learning_rates: &[f64]) -> Result<Report, Error> {
        self.queue_step(update, learning_rates)?;
        Ok(self.optimizer.report()?)
    }

    /// Clips and applies the gradients, once, without waiting for it.
    ///
    /// # Errors
    ///
    /// What the optimizer refuses.
    pub fn queue_step(&mut self, update: u64, learning_rates: &[f64]) -> Result<(), Error> {
        self.optimizer.set_update(update, learning_rates)?;
        Ok(self.optimizer.step(&mut self.parameters, &self.gradients)?)
    }

    /// Records updates anew when they come.
    pub fn forget_recordings(&mut self) {
        self.updates.clear();
    }

    /// Operations that a full update launches on a device; 0 where it is not recorded.
    #[must_use]
    pub fn launches(&self) -> u64 {
        let device = self.gpt.device();
        self.updates.values().map(|recording| device.launches(recording)).max().unwrap_or(0)
    }

    /// Brings the tokens of the update after `done` others to the device, unless they are there.
    fn stage(&mut self, done: u64, source: &mut dyn Source) -> Result<Staged, Error> {
        let staged = self.stage.next(&self.gpt, source, done)?;
        self.gpt.set_loss_scale((1.0 / staged.tokens as f64) as f32)?;
        Ok(staged)
    }

    /// Micro-batches of so many rows.
    fn micro_batches(&self, rows: usize) -> usize {
        rows.div_ceil(self.gpt.batch().rows)
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
        self.copied(&self.parameters)
    }

    /// A copy of the gradients on the host, as the last [`Engine::gradients`] left them.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn download_gradients(&self) -> Result<Vec<f32>, Error> {
        self.copied(&self.gradients)
    }

    fn copied(&self, floats: &D::Floats) -> Result<Vec<f32>, Error> {
        let mut copy = vec![0.0; self.gpt.layout().parameters()];
        self.gpt.device().download(floats, &mut copy)?;
        Ok(copy)
    }
}

/// The gradients and the loss of `count` micro-batches together.
fn accumulate<D: Operations>(
    gpt: &mut Gpt<D>,
    parameters: &D::Floats,
    gradients: &mut D::Floats,
    stage: &mut Stage<D>,
    count: usize,
) -> Result<(), Error> {
    let (rows, update_rows) = (gpt.batch().rows, stage.update_rows());
    for position in 0..count {
        let (ids, schedule) = stage.parts();
        let is_last = position + 1 == count;
        gpt.gather(ids, schedule, [position * rows, update_rows], is_last)?;
        gpt.forward_backward(parameters, gradients, position > 0)?;
        gpt.total_loss(position > 0)?;
    }
    Ok(())
}
