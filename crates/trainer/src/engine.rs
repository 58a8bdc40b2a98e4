//! One update and one validation, over any device.
//!
//! The engine joins the network and the optimizer: both work on the same flat buffers, which is all that
//! they know of each other. It knows nothing of files, schedules or events.
//!
//! A whole update is one recording: the micro-batches, the sum of their losses, and the optimizer's step; short
//! ones are recorded several together, see [`together`](crate::together). They are queued without waiting; what they found is
//! taken later, in order. On the CPU, where a recording is the closure itself, it is there at once.
//!
//! An update that ranks share is one recording too where their devices add up by themselves, and so is one whose
//! micro-batches are added as a tree there. Elsewhere it goes through the host: gradients are copied there, become one, and
//! are copied back.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use model::ops::{FloatsLater, Operations};
use model::{Batch, Gpt, Purpose};
use optimizer::Report;
use ranks::{Node, TreeSum};
use tape::reader::Tape;

use crate::config::Reduction;
use crate::device_tree::DeviceTree;
use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};
use crate::passes::{accumulate, apply, gather, pass, update};
use crate::pool::RangeShape;
use crate::shards::Shards;
use crate::stage::{Source, Stage, Staged};
use crate::together::updates_at_once;
use crate::updater::{Divided, Updater};
use crate::world::{World, plus};

/// A network, its optimizer and the buffers between them.
pub struct Engine<D: Operations, O> {
    gpt: Gpt<D>,
    /// What windows are scored in, if not in batches of updates, and the network for that once it was needed.
    scoring: (Option<Batch>, Option<Gpt<D>>),
    optimizer: O,
    parameters: D::Floats,
    gradients: D::Floats,
    stage: Stage<D>,
    /// By the number of micro-batches, and of updates.
    updates: HashMap<[usize; 2], D::Recording>,
    world: World,
    reduction: Reduction,
    /// Gradients on their way between ranks.
    host: Vec<f32>,
    /// The times of ranks, of shared updates whose outcome nobody took yet.
    rank_ms: VecDeque<Vec<f64>>,
    /// The own part, where the optimizer's state is divided over ranks.
    divided: Option<Divided<D>>,
    /// Where the device adds up micro-batches as a tree.
    tree: Option<DeviceTree<D>>,
    /// Updates whose outcome nobody took yet.
    pending: usize,
}

/// How updates are shared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// With whom.
    pub world: World,
    /// In which order gradients are added.
    pub reduction: Reduction,
    /// Who has which part of the optimizer's state, where that is divided; the optimizer is one of the own part.
    pub shards: Option<Shards>,
}

impl<D: Operations, O> Drop for Engine<D, O> {
    /// Buffers are freed when their work is done, and recordings go before what they were recorded with: neither may wait
    /// for another rank.
    fn drop(&mut self) {
        self.gpt.device().leave_ranks();
        self.updates.clear();
    }
}

/// What one update found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Summed next-token loss in nats.
    pub nats: f64,
    /// What the optimizer reports.
    pub report: Report,
    /// The time that each rank computed, in milliseconds; of shared updates.
    pub rank_ms: Vec<f64>,
}

impl<D: Operations, O: Updater<D> + Send> Engine<D, O> {
    /// Joins a network with an optimizer, for updates of up to `micro_batches` micro-batches whose rows lie in
    /// ranges of `shape`, each shared as `sharing` says.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(
        mut gpt: Gpt<D>,
        mut optimizer: O,
        initial: &[f32],
        micro_batches: usize,
        shape: RangeShape,
        Sharing { world, reduction, shards }: Sharing,
    ) -> Result<Self, Error> {
        let device = gpt.device();
        let mut parameters = device.floats(initial.len())?;
        device.upload(&mut parameters, initial)?;
        device.reserve_parameters(&parameters)?;
        let gradients = device.floats(initial.len())?;
        let rank = world.share().rank;
        let divided =
            shards.map(|shards| Divided::new(device, shards, rank, &parameters, &gradients));
        let divided = divided.transpose()?;
        let device = gpt.device();
        let stage = Stage::new(device, shape, gpt.batch(), micro_batches, world.share())?;
        let owners = divided.as_ref().map_or(&[][..], |divided| divided.shards.ranges());
        gpt.set_owners(owners);
        let device = gpt.device();
        let is_tree = reduction == Reduction::Fixed && device.adds_in_order();
        let tree = (is_tree && (world.is_alone() || device.has_ranks())).then(|| {
            let parts =
                if owners.is_empty() { world.equal_parts(initial.len()) } else { owners.to_vec() };
            DeviceTree::new(device, micro_batches, parts, world.share())
        });
        let tree = tree.transpose()?;
        if tree.is_some() {
            gpt.clear_totals(micro_batches)?;
        }
        if divided.is_none()
            && let Some(copy) = gpt.device().parameter_copy(&parameters)
        {
            // From here on every step keeps it up to date.
            gpt.device()
                .prepare_parameters(&parameters, std::slice::from_ref(&(0..initial.len())))?;
            gpt.device().finish_pass()?;
            optimizer.set_copy(copy)?;
            gpt.trust_copy();
        }
        Ok(Self {
            gpt,
            scoring: (None, None),
            optimizer,
            parameters,
            gradients,
            stage,
            updates: HashMap::new(),
            world,
            reduction,
            host: Vec::new(),
            rank_ms: VecDeque::new(),
            divided,
            tree,
            pending: 0,
        })
    }

    /// Queues update number `update` from its rows in `source`; [`Engine::take_outcomes`] tells later what it
    /// found.
    ///
    /// # Errors
    ///
    /// As [`Engine::updates`].
    ///
    /// # Panics
    ///
    /// As [`Engine::updates`].
    pub fn update(
        &mut self,
        update: u64,
        learning_rates: &[f64],
        source: &mut dyn Source,
    ) -> Result<Staged, Error> {
        Ok(self.updates(update, &[learning_rates.to_vec()], source)?[0])
    }

    /// Queues updates from number `first` on, one for each of the `learning_rates` or only some of them: as many as
    /// are best queued at once. What is returned says which, and [`Engine::take_outcomes`] tells later what they found.
    ///
    /// The rows of an update are cut into micro-batches. Every target counts the same wherever the cuts fall: each
    /// micro-batch adds the gradient of its summed loss divided by the number of all targets of its update.
    ///
    /// # Errors
    ///
    /// What the source, the device or the optimizer refuses.
    ///
    /// # Panics
    ///
    /// When there is no learning rate, and when an update takes more micro-batches than the engine was made for.
    pub fn updates(
        &mut self,
        first: u64,
        learning_rates: &[Vec<f64>],
        source: &mut dyn Source,
    ) -> Result<Vec<Staged>, Error> {
        let own = self.stage(first - 1, source)?;
        let count = self.micro_batches(own.rows);
        let updates = self.updates_at_once(count, own, learning_rates.len());
        let mut staged = vec![own];
        for done in (first..).take(updates - 1) {
            staged.push(self.stage.next(&self.gpt, source, done)?);
        }
        self.optimizer.set_updates(first, &learning_rates[..updates])?;
        self.gpt.select_total(updates - 1);
        match self.way() {
            Way::Host => self.update_shared(count)?,
            Way::Devices => self.update_among_devices(count)?,
            Way::Tree => self.update_as_tree(count)?,
            Way::Alone => self.update_alone(count, updates)?,
        }
        self.gpt.queue_total_losses()?;
        self.optimizer.queue_reports()?;
        self.pending += updates;
        Ok(staged)
    }

    /// Updates that are queued together with one that was just staged, which counts, of `most` that may be.
    fn updates_at_once(&self, micro_batches: usize, own: Staged, most: usize) -> usize {
        if !matches!(self.way(), Way::Alone) {
            return 1;
        }
        let together = updates_at_once(micro_batches, own.tokens, self.optimizer.updates_at_once());
        together.min(most).min(1 + self.stage.alike(own))
    }

    fn way(&self) -> Way {
        if self.tree.is_some() {
            Way::Tree
        } else if self.reduction == Reduction::Fixed {
            Way::Host
        } else if self.gpt.device().has_ranks() {
            Way::Devices
        } else if self.world.is_alone() {
            Way::Alone
        } else {
            Way::Host
        }
    }

    /// Updates of `count` micro-batches each.
    fn update_alone(&mut self, count: usize, updates: usize) -> Result<(), Error> {
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, stage, updates: recordings, .. } = self;
        device.record(recordings.entry([count, updates]).or_default(), || {
            gather(gpt, stage, 0, count == 1)?;
            for position in 0..updates {
                optimizer.select(position);
                gpt.select_total(position);
                let is_last = position + 1 == updates;
                update(gpt, optimizer, [parameters, gradients], stage, (count, is_last))?;
            }
            Ok::<_, Error>(())
        })
    }

    /// An update of `count` micro-batches whose gradients devices add up themselves, the last pass of each rank beside
    /// that. What hosts tell each other of it they do when its outcome is taken.
    fn update_among_devices(&mut self, count: usize) -> Result<(), Error> {
        let own = self.world.share().part_of(count).len();
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, stage, updates, divided, .. } = self;
        device.record(updates.entry([own, 1]).or_default(), || {
            device.start_watch()?;
            match own {
                0 => gpt.share_nothing(gradients)?,
                _ => {
                    gather(gpt, stage, 0, own == 1)?;
                    accumulate(gpt, parameters, gradients, stage, own)?;
                    gpt.forward_backward_shared(parameters, gradients, own > 1)?;
                }
            }
            apply(&device, optimizer, [parameters, gradients], gpt.total(), divided.as_mut())
        })?;
        self.world.beat();
        Ok(device.queue_watch()?)
    }

    /// An update of `count` micro-batches whose gradients devices add up as a tree.
    fn update_as_tree(&mut self, count: usize) -> Result<(), Error> {
        let own = self.world.share().part_of(count);
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, stage, updates, divided, tree, .. } =
            self;
        let tree = tree.as_mut().expect("updates are made so where there is one");
        device.record(updates.entry([count, 1]).or_default(), || {
            device.start_watch()?;
            gpt.clear_totals(count)?;
            tree.sum(&device, gradients, count, divided.is_none(), |number, sum| {
                let (position, is_last) = (number - own.start, number + 1 == own.end);
                pass(gpt, stage, parameters, sum, (position, is_last, false))?;
                Ok(gpt.total_loss_of(number)?)
            })?;
            gpt.total_loss_in_order()?;
            apply(&device, optimizer, [parameters, gradients], gpt.total(), divided.as_mut())
        })?;
        self.world.beat();
        Ok(device.queue_watch()?)
    }

    /// An update of `count` micro-batches through the host, with those of other ranks.
    fn update_shared(&mut self, count: usize) -> Result<(), Error> {
        let begun = Instant::now();
        let own = self.world.share().part_of(count);
        self.host.resize(self.gpt.layout().parameters(), 0.0);
        let mut tree = TreeSum::default();
        let mut nats = Vec::with_capacity(own.len());
        for leaf in own.clone() {
            let adds = self.reduction == Reduction::Fast && leaf > own.start;
            self.micro_batch(leaf - own.start, leaf + 1 == own.end, adds)?;
            nats.push(self.gpt.loss()?.nats);
            if self.reduction == Reduction::Fixed {
                tree.push(Node { start: leaf, leaves: 1, value: self.download_gradients()? }, plus);
            }
            self.world.beat();
        }
        let own_ms = begun.elapsed().as_secs_f64() * 1e3;
        let divided = self.divided.as_ref();
        let parts = divided.map_or_else(
            || self.world.equal_parts(self.host.len()),
            |divided| divided.shards.ranges().to_vec(),
        );
        if self.reduction == Reduction::Fixed {
            self.world.sum_tree(tree, count, &mut self.host, &parts)?;
        } else {
            if own.is_empty() {
                self.host.fill(0.0);
            } else {
                self.gpt.device().download(&self.gradients, &mut self.host)?;
            }
            self.world.sum_parts(&mut self.host, &parts)?;
        }
        if self.divided.is_none() {
            self.world.share_parts(&mut self.host, &parts)?;
        }
        let together = self.world.finish_update(&nats, own_ms)?;
        self.gpt.device().upload(&mut self.gradients, &self.host)?;
        self.gpt.set_total_loss(together.nats)?;
        let rank_ms = if self.world.is_alone() { Vec::new() } else { together.rank_ms };
        self.rank_ms.push_back(rank_ms);
        let device = self.gpt.device().clone();
        let Self { gpt, optimizer, parameters, gradients, divided, world, host, .. } = self;
        let Some(divided) = divided else {
            return Ok(optimizer.step_watching(parameters, gradients, gpt.total())?);
        };
        let add = |numbers: &mut [f64]| world.sum_numbers(numbers);
        divided.step(&device, optimizer, [parameters, gradients], gpt.total(), add)?;
        device.download(parameters, host)?;
        world.share_parts(host, &parts)?;
        Ok(device.upload(parameters, host)?)
    }

    /// The pass of one micro-batch, at `position` among those of this rank.
    fn micro_batch(&mut self, position: usize, is_last: bool, adds: bool) -> Result<(), Error> {
        let Self { gpt, parameters, gradients, stage, .. } = self;
        pass(gpt, stage, parameters, gradients, (position, is_last, adds))
    }

    /// What the oldest updates found that nobody asked about yet: those that were queued at once. None if there are
    /// none, or if they are still under way and nobody `waits` for them.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    pub fn take_outcomes(&mut self, waits: bool) -> Result<Vec<Outcome>, Error> {
        let is_told = self.gpt.device().has_ranks();
        let waits = match is_told || self.divided.is_some() {
            false => waits,
            // Ranks that tell each other what they found do so after the same updates.
            true if waits || self.pending > AHEAD => self.pending > 0,
            true => return Ok(Vec::new()),
        };
        let waiting = waits.then(|| self.world.waiting());
        // Reports are queued after losses, so that losses are there if reports are.
        let Some(reports) = self.optimizer.take_reports(waits)? else { return Ok(Vec::new()) };
        let losses = self.gpt.take_total_losses(true)?;
        let losses = losses.expect("each report has a loss before it");
        drop(waiting);
        if let Some(fault) = self.world.fault() {
            // What was broken off has found nothing.
            return Err(fault.into());
        }
        self.pending -= reports.len();
        let found = losses.into_iter().zip(reports);
        found.map(|(nats, report)| self.outcome(nats, report)).collect()
    }

    /// What an update found, with what ranks tell each other about it.
    fn outcome(&mut self, nats: f64, report: Report) -> Result<Outcome, Error> {
        let rank_ms = if self.gpt.device().has_ranks() {
            let own_ms = self.gpt.device().take_watch()?.unwrap_or(0.0);
            self.world.finish_update(&[], own_ms)?.rank_ms
        } else {
            self.rank_ms.pop_front().unwrap_or_default()
        };
        let report = if self.divided.is_some() { self.world.whole_report(report)? } else { report };
        Ok(Outcome { nats, report, rank_ms })
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
        gpt.select_total(0);
        gather(gpt, stage, 0, count == 1)?;
        accumulate(gpt, parameters, gradients, stage, count)?;
        gpt.forward_backward(parameters, gradients, count > 1)?;
        self.gpt.queue_total_losses()?;
        let nats = self.gpt.take_total_losses(true)?;
        Ok((staged, nats.expect("a total was queued")[0]))
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

    /// Operations that a full update launches on a device, about where several are recorded together; 0 where it is not
    /// recorded.
    #[must_use]
    pub fn launches(&self) -> u64 {
        let device = self.gpt.device();
        let recordings = self.updates.iter();
        let of_update = recordings
            .map(|([_, updates], recording)| device.launches(recording).div_ceil(*updates as u64));
        of_update.max().unwrap_or(0)
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

    /// Has windows be scored in batches of that shape.
    pub fn score_in(&mut self, batch: Option<Batch>) {
        self.scoring = (batch, None);
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
        let Self { gpt, scoring: (batch, scorer), parameters, world, .. } = self;
        let gpt = match (*batch, scorer) {
            (None, _) => gpt,
            (Some(_), Some(scorer)) => scorer,
            (Some(batch), scorer) => {
                let device = gpt.device().clone();
                let new = Gpt::new(device, gpt.config(), batch, Purpose::Evaluation)?;
                let scorer = scorer.insert(new);
                if gpt.trusts_copy() {
                    scorer.trust_copy();
                }
                scorer
            }
        };
        evaluate(gpt, parameters, tape, windows, world, go_on)
    }

    /// The ranks that share its updates.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
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

    /// Who has which part of the optimizer's state, where that is divided.
    #[must_use]
    pub fn shards(&self) -> Option<&Shards> {
        self.divided.as_ref().map(|divided| &divided.shards)
    }

    /// A copy of the parameters on the host.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn download(&self) -> Result<Vec<f32>, Error> {
        self.copied(&self.parameters)
    }

    /// The same of now, without waiting until it is there.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn download_later(&self) -> Result<FloatsLater, Error> {
        let length = self.gpt.layout().parameters();
        Ok(self.gpt.device().download_later(&self.parameters, length)?)
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

/// Updates that are queued before ranks tell each other what the first of them found.
const AHEAD: usize = 3;

/// How the gradients of an update come together.
enum Way {
    /// There is one rank.
    Alone,
    /// Devices add up.
    Devices,
    /// Devices do, micro-batches as a tree.
    Tree,
    /// Hosts do.
    Host,
}
