//! The training loop: updates, validations and checkpoints in their order, and an orderly stop.
//!
//! A session may be asked to stop at any moment, by a flag that a signal handler sets. It then ends with a
//! complete checkpoint from which `--resume` goes on to the same bits. A validation that was interrupted is
//! made again at the resume.
//!
//! At any number of updates, the order is: validation if one is due, then checkpoint if one is due. At the end
//! of the run the whole validation tape is scored once more, if the validations before took only a part of it.
//!
//! Updates are queued ahead of what they found, so that a device is never kept waiting; before anything that
//! looks at the parameters, everything that was queued is taken. A checkpoint is copied, and then written
//! while training goes on, unless the processor is what trains.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu_kernels::UPDATES_AT_ONCE;
use model::ops::Operations;
use optimizer::OnNonfinite;

use crate::budget::Budget;
use crate::checkpoint::{Checkpoint, Checkpoints, Keep};
use crate::config::Config;
use crate::corpus::Corpus;
use crate::engine::{Engine, Outcome};
use crate::error::Error;
use crate::evaluate::{Evaluation, bits_per_byte};
use crate::events::{Event, Observer, Update, Validation};
use crate::feed::{Feed, Updates};
use crate::manifest::{FORMAT_VERSION, Manifest, Progress, Score, Shape};
use crate::metrics::Metrics;
use crate::shadow::Shadows;
use crate::stage::Staged;
use crate::updater::Updater;
use crate::writer::{Copied, Writer, Written};

/// Parts of a session that are made before it.
pub struct Parts<'a> {
    /// What was asked for.
    pub config: &'a Config,
    /// What is learned from.
    pub corpus: &'a Corpus,
    /// How long.
    pub budget: Budget,
    /// What each update learns from.
    pub feed: Feed,
    /// Name of the device.
    pub device: &'a str,
    /// The shape of the network.
    pub shape: Shape,
    /// What a resumed run must share.
    pub identity: BTreeMap<String, String>,
    /// Where checkpoints go.
    pub checkpoints: Checkpoints,
    /// Whether training goes on while a checkpoint is written.
    pub writes_aside: bool,
    /// What is fed the gradients beside the run.
    pub shadows: Option<Shadows>,
    /// Where events go.
    pub metrics: Metrics,
    /// Who else listens.
    pub observer: &'a mut dyn Observer,
    /// Set when the run shall stop.
    pub stop: &'a AtomicBool,
    /// Seconds of training time before this session.
    pub elapsed_before_s: f64,
}

/// A run in progress.
pub struct Session<'a, D: Operations, O> {
    parts: Parts<'a>,
    engine: Engine<D, O>,
    progress: Progress,
    whole: Option<Evaluation>,
    /// The update of the last checkpoint that was begun.
    written: Option<u64>,
    writer: Writer,
    queued: VecDeque<Queued>,
    begun: Instant,
    /// When the last outcome was taken.
    taken: Instant,
    updating: Duration,
    tokens_done: u64,
}

/// An update that was queued, and what is known of it before.
#[derive(Clone, Copy, Debug)]
struct Queued {
    begun: Instant,
    /// Position of its first input in the tape.
    cursor: u64,
    tokens: u64,
    bytes: Option<u64>,
    learning_rate: f64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All updates, the last validation and the last checkpoint are done.
    Finished,
    /// It was asked to stop; the checkpoint is complete.
    Stopped,
}

impl<'a, D: Operations, O: Updater<D> + Send> Session<'a, D, O> {
    /// A session that begins at update 0.
    #[must_use]
    pub fn new(parts: Parts<'a>, engine: Engine<D, O>) -> Self {
        let writer = Writer::new(parts.checkpoints.clone());
        let now = Instant::now();
        Self {
            parts,
            engine,
            progress: Progress::default(),
            whole: None,
            written: None,
            writer,
            queued: VecDeque::new(),
            begun: now,
            taken: now,
            updating: Duration::ZERO,
            tokens_done: 0,
        }
    }

    /// Goes back to where a checkpoint of the same run stood. The engine must hold its parameters already.
    ///
    /// # Errors
    ///
    /// An optimizer state that does not fit.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.engine.optimizer_mut().load(&checkpoint.optimizer()?)?;
        self.progress = checkpoint.manifest.progress.clone();
        self.written = Some(self.progress.update);
        Ok(())
    }

    /// Trains to the end of the run, or until asked to stop.
    ///
    /// # Errors
    ///
    /// A value that is not finite, and whatever a device or the file system refuses. The last checkpoint is
    /// then whole.
    pub fn train(&mut self) -> Result<End, Error> {
        self.started()?;
        let last = self.parts.budget.updates();
        loop {
            if self.stops() {
                return self.stop();
            }
            let update = self.progress.update + self.queued.len() as u64;
            if self.is_pause_due(update, last) {
                self.take_outcomes(true)?;
                if self.validation_due(last) && !self.validate()? {
                    return self.stop();
                }
                if self.checkpoint_due(last) {
                    self.checkpoint()?;
                }
                if self.progress.update == last {
                    self.take_checkpoint(true)?;
                    return if self.validate_whole()? { Ok(End::Finished) } else { self.stop() };
                }
            }
            self.whole = None;
            self.queue_updates(update, last)?;
            self.feed_shadows(update + 1)?;
            self.take_outcomes(false)?;
            self.take_checkpoint(false)?;
        }
    }

    /// Whether it was asked to stop; of ranks, whether all know of it.
    fn stops(&self) -> bool {
        self.engine.world().stops(self.parts.stop.load(Ordering::Relaxed))
    }

    /// What was reached so far.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine<D, O> {
        &self.engine
    }

    /// The validation at the end of the run, over the whole tape.
    #[must_use]
    pub fn final_score(&self) -> Option<Evaluation> {
        self.whole
    }

    /// Seconds of training time, earlier sessions included.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.parts.elapsed_before_s + self.begun.elapsed().as_secs_f64()
    }

    /// Training tokens a second over the updates of this session; zero when it made none.
    #[must_use]
    pub fn tokens_per_s(&self) -> f64 {
        if self.tokens_done == 0 {
            0.0
        } else {
            self.tokens_done as f64 / self.updating.as_secs_f64()
        }
    }

    /// Tells an event to the metrics file and to the observer.
    ///
    /// # Errors
    ///
    /// A metrics file that cannot be written.
    pub fn tell(&mut self, event: &Event) -> Result<(), Error> {
        self.parts.metrics.append(event)?;
        self.parts.observer.observe(event);
        Ok(())
    }

    fn started(&mut self) -> Result<(), Error> {
        let (layout, format) = (self.engine.gpt().layout(), self.parts.config.optimizer.format);
        let shards = self.engine.shards();
        let rank_state_bytes =
            shards.map_or_else(Vec::new, |shards| shards.state_bytes(layout, format));
        self.tell(&Event::Started {
            update: self.progress.update,
            updates_total: self.parts.budget.updates(),
            parameters: self.engine.gpt().layout().parameters() as u64,
            tokens_total: self.parts.budget.tokens,
            state_format: self.parts.config.optimizer.format.to_string(),
            device: self.parts.device.to_owned(),
            threads: rayon::current_num_threads(),
            rank_state_bytes,
            ranks: self.engine.world().share().world_size,
        })
    }

    /// Queues some updates after `done` others: no more than may follow each other without a look at parameters or
    /// gradients.
    fn queue_updates(&mut self, done: u64, last: u64) -> Result<(), Error> {
        let begun = Instant::now();
        let most = if self.parts.shadows.is_some() { 1 } else { self.updates_to_pause(done, last) };
        let Parts { budget, feed, config, .. } = &mut self.parts;
        let rates = (done..done + most).map(|done| budget.learning_rate(&config.schedule, done));
        let rates: Vec<Vec<f64>> = rates.map(|rate| vec![rate; 2]).collect();
        let source = &mut Updates { feed, budget };
        let staged = self.engine.updates(done + 1, &rates, source)?;
        for (done, (Staged { tokens, bytes, .. }, rates)) in (done..).zip(staged.iter().zip(rates))
        {
            let (cursor, learning_rate) = (self.parts.budget.range(done).start, rates[0]);
            let (tokens, bytes) = (*tokens, *bytes);
            self.queued.push_back(Queued { begun, cursor, tokens, bytes, learning_rate });
        }
        Ok(())
    }

    /// Updates after `done` others before something is due, as far as that matters.
    fn updates_to_pause(&self, done: u64, last: u64) -> u64 {
        let most = done + UPDATES_AT_ONCE as u64;
        let pause = (done + 1..most).find(|&update| self.is_pause_due(update, last));
        pause.unwrap_or(most) - done
    }

    /// Gives shadows the gradients of an update that was just queued. That waits for it.
    fn feed_shadows(&mut self, update: u64) -> Result<(), Error> {
        if !self.parts.shadows.as_ref().is_some_and(|shadows| shadows.wants(update)) {
            return Ok(());
        }
        self.take_outcomes(true)?;
        let gradients = self.engine.download_gradients()?;
        match &mut self.parts.shadows {
            Some(shadows) => shadows.feed(update, &gradients),
            None => Ok(()),
        }
    }

    /// Takes what the queued updates found, as far as it is there, or all of it.
    fn take_outcomes(&mut self, waits: bool) -> Result<(), Error> {
        while let Some(&Queued { begun, .. }) = self.queued.front() {
            let outcomes = self.engine.take_outcomes(waits)?;
            if outcomes.is_empty() {
                break;
            }
            // Those that were queued at once share the time until the last of them.
            let now = Instant::now();
            let spent = (now - begun.max(self.taken)) / outcomes.len() as u32;
            self.taken = now;
            for outcome in outcomes {
                let queued = self.queued.pop_front().expect("an outcome is of a queued update");
                self.updated(queued, outcome, spent)?;
            }
        }
        Ok(())
    }

    /// Counts an update in, which took so long, and tells of it.
    fn updated(&mut self, queued: Queued, outcome: Outcome, spent: Duration) -> Result<(), Error> {
        let Queued { cursor, tokens, bytes, learning_rate, .. } = queued;
        let loss_nats = outcome.nats / tokens as f64;
        self.must_be_finite(&outcome, loss_nats, cursor)?;

        self.updating += spent;
        self.tokens_done += tokens;
        let progress = &mut self.progress;
        progress.update += 1;
        progress.tokens += tokens;
        progress.source_bytes += bytes.unwrap_or(0);
        progress.nonfinite += outcome.report.nonfinite;
        progress.saturated_m += outcome.report.saturated_m;
        progress.saturated_r += outcome.report.saturated_r;
        if loss_nats.is_finite() {
            progress.train_loss_nats = loss_nats;
        }
        let event = Event::Update(Update {
            update: progress.update,
            tokens: progress.tokens,
            epoch: self.parts.budget.epoch(progress.tokens),
            source_bytes: bytes.map(|_| progress.source_bytes),
            loss_nats,
            bpb: bytes
                .and_then(|bytes| bits_per_byte(outcome.nats, bytes))
                .filter(|bpb| bpb.is_finite()),
            learning_rate,
            gradient_norm: outcome.report.gradient_norm,
            nonfinite: outcome.report.nonfinite,
            saturated_m: outcome.report.saturated_m,
            saturated_r: outcome.report.saturated_r,
            skipped: outcome.report.skipped,
            ms: spent.as_secs_f64() * 1e3,
            rank_wait_ms: wait_ms(&outcome.rank_ms),
            rank_ms: outcome.rank_ms,
            tokens_per_s: tokens as f64 / spent.as_secs_f64(),
            elapsed_s: self.elapsed_s(),
        });
        if self.progress.update.is_multiple_of(self.parts.config.run.log_every) {
            self.parts.metrics.append(&event)?;
        }
        self.parts.observer.observe(&event);
        Ok(())
    }

    /// Only where updates are dropped one by one may one hold values that are not finite.
    fn must_be_finite(&self, outcome: &Outcome, loss_nats: f64, cursor: u64) -> Result<(), Error> {
        let update = self.progress.update + 1;
        let skips = self.parts.config.optimizer.on_nonfinite == OnNonfinite::Skip;
        if skips && outcome.report.skipped {
            return Ok(());
        }
        if let Some(first) = outcome.report.first_nonfinite {
            return Err(Error::NonFinite {
                update,
                count: outcome.report.nonfinite,
                tensor: self.engine.gpt().layout().slots()[first.tensor].name.clone(),
                index: first.index as u64,
                cursor,
            });
        }
        if !loss_nats.is_finite() {
            return Err(Error::NonFiniteLoss { update, nats: loss_nats, cursor });
        }
        Ok(())
    }

    /// Whether anything is due after `update` updates that looks at the parameters.
    fn is_pause_due(&self, update: u64, last: u64) -> bool {
        let run = &self.parts.config.run;
        let is_due = |every: Option<u64>| every.is_some_and(|every| update.is_multiple_of(every));
        update == last || is_due(run.validate_every) || is_due(run.checkpoint_every)
    }

    fn validation_due(&self, last: u64) -> bool {
        let update = self.progress.update;
        let done = self.progress.validated.is_some_and(|score| score.update == update);
        let every = self.parts.config.run.validate_every;
        !done && (update == last || every.is_some_and(|every| update.is_multiple_of(every)))
    }

    /// Validates; false when it was asked to stop meanwhile.
    fn validate(&mut self) -> Result<bool, Error> {
        let windows = self.parts.config.run.validation_windows;
        let Some(found) = self.evaluate(windows)? else { return Ok(false) };
        let update = self.progress.update;
        self.remember(Score { update, loss_nats: found.loss_nats(), bpb: found.bpb() });
        let event = Event::Validation(self.validation(&found));
        self.tell(&event)?;
        self.whole = Some(found).filter(|found| found.whole);
        // A checkpoint that was written before, at a stop, does not know of this yet.
        self.written = self.written.filter(|&written| written != update);
        Ok(true)
    }

    /// Scores the end of the run on the whole tape, unless that was just done; false when it was asked to
    /// stop meanwhile.
    fn validate_whole(&mut self) -> Result<bool, Error> {
        if self.whole.is_none() {
            self.whole = self.evaluate(None)?;
        }
        let Some(found) = self.whole else { return Ok(false) };
        let event = Event::FinalValidation(self.validation(&found));
        self.tell(&event)?;
        Ok(true)
    }

    fn evaluate(&mut self, windows: Option<u64>) -> Result<Option<Evaluation>, Error> {
        let Parts { corpus, observer, stop, .. } = &mut self.parts;
        let score = self.engine.evaluate(&corpus.validation, windows, &mut |windows, total| {
            observer.observe(&Event::Validating { windows, windows_total: total });
            !stop.load(Ordering::Relaxed)
        })?;
        match score {
            Some(found) if !found.nats.is_finite() => Err(Error::NonFiniteLoss {
                update: self.progress.update,
                nats: found.loss_nats(),
                cursor: self.progress.tokens,
            }),
            score => Ok(score),
        }
    }

    fn validation(&self, found: &Evaluation) -> Validation {
        Validation {
            update: self.progress.update,
            tokens: self.progress.tokens,
            loss_nats: found.loss_nats(),
            perplexity: found.perplexity(),
            bpb: found.bpb(),
            validation_tokens: found.tokens,
            whole: found.whole,
            elapsed_s: self.elapsed_s(),
        }
    }

    fn remember(&mut self, score: Score) {
        let progress = &mut self.progress;
        progress.validated = Some(score);
        progress.first.get_or_insert(score);
        if progress.best.is_none_or(|best| score.loss_nats < best.loss_nats) {
            progress.best = Some(score);
        }
    }

    fn checkpoint_due(&self, last: u64) -> bool {
        let update = self.progress.update;
        let run = &self.parts.config.run;
        let every = run.checkpoint_every.is_some_and(|every| update.is_multiple_of(every));
        let best = run.keep_best && self.progress.best.is_some_and(|best| best.update == update);
        self.written != Some(update) && update > 0 && (update == last || every || best)
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        self.take_checkpoint(true)?;
        self.written = Some(self.progress.update);
        let world = self.engine.world().clone();
        let is_divided = self.engine.shards().is_some();
        if !world.is_first() && !is_divided {
            return Ok(());
        }
        let _busy = world.busy();
        let copied = Copied {
            manifest: Manifest {
                format_version: FORMAT_VERSION,
                model: self.parts.shape,
                progress: self.progress.clone(),
                identity: self.parts.identity.clone(),
                optimizer: BTreeMap::new(),
                files: BTreeMap::new(),
                checksum: String::new(),
            },
            layout: self.engine.gpt().layout().clone(),
            // What it reads at once comes first.
            optimizer: self.engine.optimizer_mut().save_later()?,
            parameters: self.engine.download_later()?,
            tokenizer: self.parts.corpus.tokenizer.json().to_vec(),
        };
        let run = &self.parts.config.run;
        let keep = Keep { last: run.keep_last, best: run.keep_best };
        if !is_divided {
            self.writer.begin(copied, keep);
            return self.take_checkpoint(!self.parts.writes_aside);
        }
        let update = self.progress.update;
        let checkpoints = &self.parts.checkpoints;
        match copied.write(|snapshot| checkpoints.write_divided(&snapshot, keep, &world))? {
            Some(path) => self.tell(&Event::Checkpoint { update, path }),
            None => Ok(()),
        }
    }

    /// Tells of the checkpoint that was begun, once it is complete.
    fn take_checkpoint(&mut self, waits: bool) -> Result<(), Error> {
        let _busy = waits.then(|| self.engine.world().busy());
        match self.writer.take(waits)? {
            Some(Written { update, path }) => self.tell(&Event::Checkpoint { update, path }),
            None => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<End, Error> {
        self.take_outcomes(true)?;
        if self.written != Some(self.progress.update) {
            self.checkpoint()?;
        }
        self.take_checkpoint(true)?;
        self.tell(&Event::Stopped { update: self.progress.update })?;
        Ok(End::Stopped)
    }
}

/// How long the fastest of several ranks waited for the slowest.
fn wait_ms(rank_ms: &[f64]) -> Option<f64> {
    let slowest = rank_ms.iter().copied().reduce(f64::max)?;
    let fastest = rank_ms.iter().copied().reduce(f64::min)?;
    Some(slowest - fastest)
}
