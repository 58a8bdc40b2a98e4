//! What a caller holds: a network on a device, its batch going in, its losses and gradients coming
//! out. The sequence of operations is `network`'s; memory is planned by `activations`.
//!
//! Each pass is a recorded step: what a caller changes between steps (tokens, targets, loss scale,
//! parameter values) is read from buffers, so a device may replay the step. A device that does so
//! demands the same parameter and gradient buffers at every call.

use std::ops::Range;

use crate::activations::{DeviceMemory, Shapes, allocate, plan_operations};
use crate::network::Network;
use crate::ops::{ChainShapes, GatherShape, Operations, Store};
use crate::{Batch, Config, Error, IGNORED, Layout, Purpose};

/// A network on a device, with the memory of one pass.
///
/// Parameters and gradients are the caller's: flat buffers as [`Layout`] describes them.
///
/// ```
/// use model::ops::Device;
/// use model::{Batch, Config, Cpu, Dimensions, Gpt, Layout, Purpose};
///
/// # fn main() -> Result<(), model::Error> {
/// let config =
///     Config::new(Dimensions { vocabulary: 9, context: 4, channels: 6, layers: 2, heads: 3 })?;
/// let layout = Layout::new(config);
/// let parameters = layout.initial(1);
/// let mut gradients = vec![0.0; layout.parameters()];
///
/// let batch = Batch { rows: 2, time: 4 };
/// let mut gpt = Gpt::new(Cpu::<f32>::new(), config, batch, Purpose::Training)?;
/// gpt.upload(&[0, 1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 4, 5, 6, 7, 8], 1.0 / 8.0)?;
/// gpt.forward_backward(&parameters, &mut gradients, false)?;
/// let loss = gpt.loss()?;
/// assert_eq!(loss.tokens, 8);
/// assert!((loss.mean() - 9f64.ln()).abs() < 0.1);
/// # Ok(())
/// # }
/// ```
pub struct Gpt<D: Operations> {
    device: D,
    layout: Layout,
    network: Network,
    purpose: Purpose,
    memory: DeviceMemory<D>,
    recordings: Recordings<D>,
    /// Summed losses on their way to the host.
    sums: D::Sums,
    /// Targets of the last upload that are not ignored.
    counted_targets: u64,
    /// What the losses of a pass are multiplied with.
    loss_scale: f32,
    /// Whether the device's copy of the parameters is up to date before a pass.
    trusts_copy: bool,
}

/// The summed loss of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSum {
    /// Sum of the token losses, in nats.
    pub nats: f64,
    /// Tokens that have a target.
    pub tokens: u64,
}

impl LossSum {
    /// Nats per token; NaN without tokens.
    pub fn mean(self) -> f64 {
        self.nats / self.tokens as f64
    }
}

/// One recording for each sequence of operations.
struct Recordings<D: Operations> {
    forward: D::Recording,
    overwrite: D::Recording,
    accumulate: D::Recording,
}

impl<D: Operations> Gpt<D> {
    /// Plans all memory of a pass over `batch` and takes it from the device.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyBatch`], [`Error::WindowTooLong`], [`Error::TooLarge`] or
    /// [`Error::OutOfMemory`].
    pub fn new(device: D, config: Config, batch: Batch, purpose: Purpose) -> Result<Self, Error> {
        let shapes = Shapes::new(config, batch)?;
        plan_operations(&device, &shapes, purpose)?;
        let memory = allocate(&device, &shapes, purpose)?;
        let layout = Layout::new(config);
        let (ranges, pieces) = (layout.ranges(), layout.finished_pieces());
        let network = Network { shapes, ranges, pieces, owners: Vec::new() };
        let recordings = Recordings {
            forward: D::Recording::default(),
            overwrite: D::Recording::default(),
            accumulate: D::Recording::default(),
        };
        let sums = device.sums()?;
        Ok(Self {
            device,
            layout,
            network,
            purpose,
            memory,
            recordings,
            sums,
            counted_targets: 0,
            loss_scale: 0.0,
            trusts_copy: false,
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The shape of the network.
    pub fn config(&self) -> Config {
        self.network.shapes.config
    }

    /// The shapes of chains, if both passes go from chain to chain.
    pub(crate) fn shapes_of_chains(&self) -> Option<ChainShapes> {
        let keeps_all = self.memory.keeps_all(self.config().layers());
        keeps_all.then(|| self.network.shapes.chain())
    }

    /// The windows of a pass.
    pub fn batch(&self) -> Batch {
        self.network.shapes.batch
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Brings the next batch: B * T token ids and as many targets, window by window. A target of
    /// [`IGNORED`] adds nothing to loss or gradients.
    ///
    /// Gradients are those of `loss_scale * sum(token losses)`. With 1 / (targets of the whole
    /// update), gradients accumulated over any number of batches are those of the mean loss.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] or [`Error::TokenOutOfRange`]; the batch of before is then still in place.
    pub fn upload(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        loss_scale: f32,
    ) -> Result<(), Error> {
        self.check_batch(tokens, targets)?;
        self.device.upload_tokens(&mut self.memory.tokens, 0, tokens)?;
        self.device.upload_tokens(&mut self.memory.targets, 0, targets)?;
        self.set_loss_scale(loss_scale)?;
        self.counted_targets = targets.iter().filter(|&&id| id != IGNORED).count() as u64;
        Ok(())
    }

    /// Whether these are tokens and targets of a batch.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] or [`Error::TokenOutOfRange`].
    pub fn check_batch(&self, tokens: &[u32], targets: &[u32]) -> Result<(), Error> {
        let expected = self.batch().tokens();
        for (what, ids) in [("tokens", tokens), ("targets", targets)] {
            if ids.len() != expected {
                return Err(Error::Length { what, expected, found: ids.len() });
            }
        }
        self.check_all("token", tokens, |_| false)?;
        self.check_all("target", targets, |id| id == IGNORED)
    }

    /// Whether these are tokens of the vocabulary.
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`].
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        self.check_all("token", ids, |_| false)
    }

    fn check_all(
        &self,
        what: &'static str,
        ids: &[u32],
        is_allowed: impl Fn(u32) -> bool,
    ) -> Result<(), Error> {
        let vocabulary = self.config().vocabulary();
        let is_wrong = |id: u32| id as usize >= vocabulary && !is_allowed(id);
        match ids.iter().position(|&id| is_wrong(id)) {
            Some(position) => {
                Err(Error::TokenOutOfRange { what, position, found: ids[position], vocabulary })
            }
            None => Ok(()),
        }
    }

    /// Sets what the losses of the next passes are multiplied with, see [`Gpt::upload`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn set_loss_scale(&mut self, loss_scale: f32) -> Result<(), Error> {
        if self.loss_scale.to_bits() != loss_scale.to_bits() {
            self.device.upload(&mut self.memory.loss_scale, &[loss_scale])?;
            self.loss_scale = loss_scale;
        }
        Ok(())
    }

    /// Takes over B rows of an update, from `first_row` of `update_rows` on, out of `ids`, as `schedule` has
    /// them, see [`Device::gather`](crate::ops::Device::gather); `is_last` moves on to the next update. The
    /// ids must be such as [`Gpt::check_ids`] accepts. Can be recorded, unlike [`Gpt::upload`].
    ///
    /// # Errors
    ///
    /// [`Error::Length`] for a schedule that is too short, and those of the device.
    pub fn gather(
        &mut self,
        ids: &D::Tokens,
        schedule: &mut D::Tokens,
        [first_row, update_rows]: [usize; 2],
        is_last: bool,
    ) -> Result<(), Error> {
        let Batch { rows, time } = self.batch();
        let shape = GatherShape { rows, time, first_row, update_rows, advances: is_last };
        let batch = [&mut self.memory.tokens, &mut self.memory.targets];
        self.device.gather(batch, ids, schedule, shape)
    }

    /// Computes the token losses of the uploaded batch.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] for a buffer of another length than the layout's, and those of the device.
    pub fn forward(&mut self, parameters: &D::Floats) -> Result<(), Error> {
        self.layout.check_length("parameters", self.device.length(parameters))?;
        let Self { device, network, memory, recordings, trusts_copy, .. } = self;
        device.reserve_parameters(parameters)?;
        device.record(&mut recordings.forward, || {
            network.prepare(&*device, parameters, *trusts_copy)?;
            network.forward(&*device, memory, parameters)?;
            network.loss(&*device, memory, parameters)?;
            device.finish_pass()
        })
    }

    /// Computes the token losses of the uploaded batch and their gradients, which replace those in
    /// `gradients`, or with `accumulate` are added to them; and likewise the total of the losses.
    ///
    /// # Errors
    ///
    /// [`Error::EvaluationOnly`], [`Error::Length`] for a buffer of another length than the
    /// layout's, and those of the device.
    pub fn forward_backward(
        &mut self,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        accumulate: bool,
    ) -> Result<(), Error> {
        self.check_training(parameters, gradients)?;
        let Self { device, network, memory, recordings, sums, trusts_copy, .. } = self;
        let (recording, store) = match accumulate {
            false => (&mut recordings.overwrite, Store::Overwrite),
            true => (&mut recordings.accumulate, Store::Add),
        };
        device.reserve_parameters(parameters)?;
        device.record(recording, || {
            network.prepare(&*device, parameters, *trusts_copy)?;
            pass(&*device, network, (memory, sums), parameters, gradients, (store, false))?;
            device.finish_pass()
        })
    }

    /// [`Gpt::forward_backward`] in two halves, for what may be queued beside the end of it, such as [`Gpt::gather`] of the
    /// next batch: [`Gpt::finish_pass`] is the second one. Part of a recording of the caller's.
    ///
    /// # Errors
    ///
    /// As for [`Gpt::forward_backward`].
    pub fn begin_forward_backward(
        &mut self,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        accumulate: bool,
    ) -> Result<(), Error> {
        self.queue_pass(parameters, gradients, accumulate, false)
    }

    /// A pass up to what the device has to finish, whose sums over ranks begin in it with `exchanges`.
    fn queue_pass(
        &mut self,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        accumulate: bool,
        exchanges: bool,
    ) -> Result<(), Error> {
        self.check_training(parameters, gradients)?;
        let store = if accumulate { Store::Add } else { Store::Overwrite };
        let Self { device, network, memory, sums, trusts_copy, .. } = self;
        network.prepare(&*device, parameters, *trusts_copy)?;
        pass(&*device, network, (memory, sums), parameters, gradients, (store, exchanges))
    }

    /// Has whatever follows see all that a pass leaves.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn finish_pass(&self) -> Result<(), Error> {
        self.device.finish_pass()
    }

    /// That there is a backward pass, and that these are buffers of the layout.
    fn check_training(&self, parameters: &D::Floats, gradients: &D::Floats) -> Result<(), Error> {
        if !self.purpose.is_training() {
            return Err(Error::EvaluationOnly);
        }
        self.layout.check_length("parameters", self.device.length(parameters))?;
        self.layout.check_length("gradients", self.device.length(gradients))
    }

    /// Has [`Gpt::forward_backward_shared`] leave the sums of gradients on the ranks that own them only: one range of the
    /// flat buffer for each rank.
    pub fn set_owners(&mut self, owners: &[Range<usize>]) {
        self.network.owners = owners.to_vec();
    }

    /// [`Gpt::forward_backward`] where ranks add up their gradients on their devices, piece by piece as they are
    /// finished, and the sums of their losses; `accumulate` says whether earlier passes of this rank are in `gradients`
    /// and in its total already. Part of a recording of the caller's.
    ///
    /// # Errors
    ///
    /// As for [`Gpt::forward_backward`].
    pub fn forward_backward_shared(
        &mut self,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        accumulate: bool,
    ) -> Result<(), Error> {
        self.queue_pass(parameters, gradients, accumulate, true)?;
        self.device.finish_pass()?;
        self.device.stop_watch()?;
        self.device.finish_exchange()
    }

    /// The part of a rank without a batch in what [`Gpt::forward_backward_shared`] adds up.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn share_nothing(&mut self, gradients: &mut D::Floats) -> Result<(), Error> {
        let Self { device, network, sums, .. } = self;
        device.clear(gradients, sums)?;
        device.stop_watch()?;
        device.exchange_total(sums)?;
        for (_, piece) in &network.pieces {
            network.exchange_piece(&*device, gradients, piece)?;
        }
        device.finish_exchange()
    }

    /// The summed loss of the last pass, in `f64` by one fixed tree.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn loss(&self) -> Result<LossSum, Error> {
        let nats = self.device.sum(&self.memory.losses, self.batch().tokens())?;
        Ok(LossSum { nats, tokens: self.counted_targets })
    }

    /// Makes room for the losses of so many micro-batches one by one, and makes them zero; can be recorded where there is room
    /// already.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn clear_totals(&mut self, count: usize) -> Result<(), Error> {
        self.device.clear_totals(&mut self.sums, count)
    }

    /// Keeps the summed loss of the last pass as that of micro-batch `number` of an update; can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn total_loss_of(&mut self, number: usize) -> Result<(), Error> {
        let length = self.batch().tokens();
        self.device.total_of(&mut self.sums, &self.memory.losses, length, number)
    }

    /// Makes the losses of all micro-batches, also those of other ranks, the total, added in their order; can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn total_loss_in_order(&mut self) -> Result<(), Error> {
        self.device.total_in_order(&mut self.sums)
    }

    /// Makes `nats` the total: what this pass and others, made elsewhere, lost together.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn set_total_loss(&mut self, nats: f64) -> Result<(), Error> {
        self.device.set_total(&mut self.sums, nats)
    }

    /// The total of [`Gpt::forward_backward`], in nats, on the device.
    pub fn total(&self) -> &D::Scalar {
        self.device.scalar(&self.sums)
    }

    /// Has the total be that of the update at a position, of several that are queued together; the first one without it.
    ///
    /// # Panics
    ///
    /// If the device has no room for as many.
    pub fn select_total(&mut self, position: usize) {
        self.device.select_total(&mut self.sums, position);
    }

    /// Queues the totals up to the selected position for the host, without waiting for them.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn queue_total_losses(&mut self) -> Result<(), Error> {
        self.device.queue_totals(&mut self.sums)
    }

    /// The oldest queued totals that were not taken yet, in nats. `None` if there are none, or if they are
    /// still on their way and nobody `waits` for them.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    pub fn take_total_losses(&mut self, waits: bool) -> Result<Option<Vec<f64>>, Error> {
        self.device.take_totals(&mut self.sums, waits)
    }

    /// Has passes rely on the copy that a device keeps of parameters, see
    /// [`Device::parameter_copy`](crate::ops::Device::parameter_copy): from now on whoever changes them changes it too.
    pub fn trust_copy(&mut self) {
        self.trusts_copy = true;
    }

    /// Whether they do.
    #[must_use]
    pub fn trusts_copy(&self) -> bool {
        self.trusts_copy
    }

    /// Copies the loss of each token of the last pass, in nats, 0 where the target was ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] unless `losses` has B * T elements, and those of the device.
    pub fn token_losses(&self, losses: &mut [f32]) -> Result<(), Error> {
        let expected = self.batch().tokens();
        if losses.len() != expected {
            return Err(Error::Length { what: "token losses", expected, found: losses.len() });
        }
        self.device.download(&self.memory.losses, losses)
    }

    /// The logits of some rows of the last pass, `[rows, V]`; row b * T + t is token t of window b.
    /// This allocates; a step does not need it.
    ///
    /// # Errors
    ///
    /// [`Error::RowsOutOfRange`], [`Error::Length`], and those of the device.
    pub fn logits(&self, parameters: &D::Floats, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let Network { shapes, ranges, .. } = &self.network;
        self.layout.check_length("parameters", self.device.length(parameters))?;
        let all_rows = shapes.batch.tokens();
        if rows.start > rows.end || rows.end > all_rows {
            let Range { start, end } = rows;
            return Err(Error::RowsOutOfRange { start, end, rows: all_rows });
        }
        let elements = rows.len() * shapes.loss.vocabulary;
        let mut logits = self.device.floats(elements)?;
        self.device.reserve_parameters(parameters)?;
        let prepared = std::slice::from_ref(&ranges.table);
        self.device.prepare_parameters(parameters, prepared)?;
        let table = self.device.view(parameters, ranges.table.clone());
        self.device.logits(&mut logits, &self.memory.final_normed, table, rows, shapes.loss)?;
        self.device.finish_pass()?;
        let mut host = vec![0.0; elements];
        self.device.download(&logits, &mut host)?;
        Ok(host)
    }
}

/// A forward and a backward pass, with the sum of the losses beside it, up to what the device has to finish.
fn pass<D: Operations>(
    device: &D,
    network: &Network,
    (memory, sums): (&mut DeviceMemory<D>, &mut D::Sums),
    parameters: &D::Floats,
    gradients: &mut D::Floats,
    (store, exchanges): (Store, bool),
) -> Result<(), Error> {
    network.order(device, memory)?;
    network.forward(device, memory, parameters)?;
    network.loss_backward(device, memory, parameters, gradients, store)?;
    let tokens = network.shapes.batch.tokens();
    device.total(sums, &memory.losses, tokens, store)?;
    if exchanges {
        device.exchange_total(sums)?;
    }
    network.backward(device, memory, parameters, gradients, (store, exchanges))
}
