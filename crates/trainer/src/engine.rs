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

use crate::batch::{Batch, Tokens, pieces};
use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};

/// A network, its optimizer and the buffers between them.
pub struct Engine<D: Operations, O> {
    gpt: Gpt<D>,
    optimizer: O,
    parameters: D::Floats,
    gradients: D::Floats,
    batch: Batch,
    /// The batches of an update on the host, as [`Gpt::load`] wants them, and on the device.
    host_batches: Vec<u32>,
    batches: D::Tokens,
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

impl<D: Operations, O: AdamW<Buffer = D::Floats> + Send> Engine<D, O> {
    /// Joins a network with an optimizer, for updates of up to `micro_batches` micro-batches.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(
        gpt: Gpt<D>,
        optimizer: O,
        initial: &[f32],
        micro_batches: usize,
    ) -> Result<Self, Error> {
        let batch = Batch::new(gpt.batch());
        let device = gpt.device();
        let mut parameters = device.floats(initial.len())?;
        device.upload(&mut parameters, initial)?;
        device.reserve_parameters(&parameters)?;
        let gradients = device.floats(initial.len())?;
        let batches = device.tokens(2 * gpt.batch().tokens() * micro_batches)?;
        Ok(Self {
            gpt,
            optimizer,
            parameters,
            gradients,
            batch,
            host_batches: Vec::new(),
            batches,
            updates: HashMap::new(),
        })
    }

    /// Queues update number `update` from `tokens`; [`Engine::take_outcome`] tells later what it found.
    ///
    /// The tokens are cut into micro-batches. Every target counts the same wherever the cuts fall: each
    /// micro-batch adds the gradient of its summed loss divided by the number of all their targets.
    ///
    /// # Errors
    ///
    /// What the device or the optimizer refuses.
    ///
    /// # Panics
    ///
    /// When they take more micro-batches than the engine was made for.
    pub fn update(
        &mut self,
        update: u64,
        learning_rates: &[f64],
        tokens: &Tokens,
    ) -> Result<(), Error> {
        let count = self.stage(tokens)?;
        self.optimizer.set_update(update, learning_rates)?;
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, batches, updates, .. } = self;
        device.record(updates.entry(count).or_default(), || {
            accumulate(gpt, parameters, gradients, batches, count)?;
            Ok::<_, Error>(optimizer.step(parameters, gradients)?)
        })?;
        self.gpt.queue_total_loss()?;
        Ok(self.optimizer.queue_report()?)
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

    /// Computes the gradients of the mean loss of `tokens`, as an update would, and waits for them; returns
    /// the summed loss in nats.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    ///
    /// # Panics
    ///
    /// As [`Engine::update`].
    pub fn gradients(&mut self, tokens: &Tokens) -> Result<f64, Error> {
        let count = self.stage(tokens)?;
        let Self { gpt, parameters, gradients, batches, .. } = self;
        accumulate(gpt, parameters, gradients, batches, count)?;
        gpt.queue_total_loss()?;
        Ok(gpt.take_total_loss(true)?.expect("a total was queued"))
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

    /// Brings the micro-batches of an update to the device; how many there are.
    fn stage(&mut self, tokens: &Tokens) -> Result<usize, Error> {
        let scale = (1.0 / tokens.valid() as f64) as f32;
        self.host_batches.clear();
        let mut count = 0;
        for piece in pieces(0..tokens.len(), self.batch.size()) {
            self.batch.fill(tokens, piece);
            self.gpt.check_batch(&self.batch.tokens, &self.batch.targets)?;
            self.host_batches.extend_from_slice(&self.batch.tokens);
            self.host_batches.extend_from_slice(&self.batch.targets);
            count += 1;
        }
        self.gpt.device().upload_tokens(&mut self.batches, &self.host_batches)?;
        self.gpt.set_loss_scale(scale)?;
        Ok(count)
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
    batches: &D::Tokens,
    count: usize,
) -> Result<(), Error> {
    for position in 0..count {
        gpt.load(batches, position)?;
        gpt.forward_backward(parameters, gradients, position > 0)?;
        gpt.total_loss(position > 0)?;
    }
    Ok(())
}
