//! Updates on made-up tokens: a sanity check, and the speed of a training step by part.
//!
//! Both need no data: the tokens are counter-hashed, so every run sees the same ones.

use std::collections::VecDeque;
use std::iter;
use std::time::{Duration, Instant};

use formats::RandomStream;
use gpu_kernels::UPDATES_AT_ONCE;
use model::ops::Operations;
use model::{Cpu, Cuda, Layout, PartTimes};
use optimizer::{CpuAdamW, CudaAdamW, Group, Options, TensorSpec};
use serde::Serialize;
use tape::tokenizer::Tokenizer;

use crate::config::{Config, Source};
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::pool::{RangeKey, RangeShape};
use crate::settings::Settings;
use crate::stage::{self, Row, Source as _};
use crate::summary::peak_bytes;
use crate::updater::Updater;
use crate::world::World;
use crate::{agree, among, run, setup};

/// Sets of updates that are queued before the result of the first is asked for.
const AHEAD: usize = 3;

/// Updates whose parts are timed.
const PROFILED: u64 = 10;

/// What one update on made-up tokens did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Smoke {
    /// Name of the device.
    pub device: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Name of the state format.
    pub state_format: String,
    /// Bytes of optimizer state.
    pub state_bytes: u64,
    /// Tokens of the update.
    pub tokens: u64,
    /// Mean loss before the update, in nats a token; near the logarithm of the vocabulary.
    pub loss_before_nats: f64,
    /// Mean loss on the same tokens after the update.
    pub loss_after_nats: f64,
    /// `ln(vocabulary)`, the loss of a model that knows nothing.
    pub uniform_loss_nats: f64,
    /// Global gradient norm.
    pub gradient_norm: f64,
    /// Elements that were not finite.
    pub nonfinite: u64,
    /// Whether all is as it should be: everything finite and the loss lower than before.
    pub good: bool,
}

/// The speed of a training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Name of the device.
    pub device: String,
    /// The shape of the network.
    pub model: String,
    /// Precision of matrix products.
    pub precision: &'static str,
    /// Name of the state format.
    pub state_format: String,
    /// Sequences in an update.
    pub batch: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Median time of an update, in milliseconds.
    pub ms_per_update: f64,
    /// Training tokens a second at that time.
    pub tokens_per_s: f64,
    /// Floating-point operations of the model a second, in TFLOP/s.
    pub model_tflops: f64,
    /// The same over the measured rate of large matrix products.
    pub share_of_peak: f64,
    /// Measured rate of large matrix products, in TFLOP/s.
    pub peak_tflops: f64,
    /// Largest resident memory of the process, where the system tells.
    pub peak_bytes: Option<u64>,
    /// Kernel launches an update; none on a CPU.
    pub launches: u64,
    /// Time that the host adds to an update, in microseconds; none on a CPU, which is the host.
    pub host_us_per_update: f64,
    /// Mean time by part, in milliseconds.
    pub parts: Vec<PartTime>,
    /// Processes that shared the update.
    pub ranks: usize,
    /// Tokens a second over those that all ranks together have when each works alone at its share, before and, on devices,
    /// after; of several ranks.
    pub scaling: Option<f64>,
    /// Median time that each rank worked at its own share of an update, before it waited for the others, in
    /// milliseconds; of several ranks.
    pub rank_ms: Vec<f64>,
}

/// The time of one part of an update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartTime {
    /// Which part.
    pub name: &'static str,
    /// Its mean time, in milliseconds.
    pub ms: f64,
}

/// Makes one update on made-up tokens with the model and optimizer of `settings`.
///
/// # Errors
///
/// Settings that make no sense, and what the device refuses.
pub fn smoke(settings: &Settings) -> Result<Smoke, Error> {
    let config = Config::new(settings)?;
    let device = Device::choose(&config.run.device, config.run.precision)?;
    run::in_pool(config.run.threads, || match &device {
        Device::Cpu => smoke_on(&config, &device, Cpu::new(), CpuAdamW::new),
        Device::Cuda(cuda) => smoke_on(&config, &device, cuda.clone(), setup::cuda_optimizer(cuda)),
    })
}

fn smoke_on<D: Operations, O: Updater<D> + Send>(
    config: &Config,
    device: &Device,
    on: D,
    new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>,
) -> Result<Smoke, Error> {
    let mut trial = Trial::new(config, on, new_optimizer, &World::alone())?;
    let tokens = trial.tokens();
    let before = trial.gradients(1)? / tokens as f64;
    let report = trial.engine.step(1, &[config.schedule.peak; 2])?;
    let after = trial.gradients(2)? / tokens as f64;
    Ok(Smoke {
        device: device.name(),
        parameters: trial.engine.gpt().layout().parameters() as u64,
        state_format: config.optimizer.format.to_string(),
        state_bytes: trial.engine.optimizer().state_bytes(),
        tokens,
        loss_before_nats: before,
        loss_after_nats: after,
        uniform_loss_nats: (trial.vocabulary as f64).ln(),
        gradient_norm: report.gradient_norm,
        nonfinite: report.nonfinite,
        good: report.nonfinite == 0 && before.is_finite() && after < before,
    })
}

/// Times `updates` updates after `warm_up` others, with the model and optimizer of `settings`.
///
/// # Errors
///
/// Settings that make no sense, and what the device refuses.
///
/// # Panics
///
/// When `updates` is 0.
pub fn bench(settings: &Settings, warm_up: usize, updates: usize) -> Result<Speed, Error> {
    bench_with(settings, warm_up, updates, &World::alone())
}

/// As [`bench()`], with other ranks: first each alone at its share of an update, all at the same time, and then all
/// together.
///
/// # Errors
///
/// As for [`bench()`], and ranks that are gone.
///
/// # Panics
///
/// When `updates` is 0.
pub fn bench_with(
    settings: &Settings,
    warm_up: usize,
    updates: usize,
    world: &World,
) -> Result<Speed, Error> {
    assert!(updates > 0, "nothing to measure");
    let config = Config::new(settings)?;
    agree::enough_for_all(world, &config)?;
    let (name, precision) = (&config.run.device, config.run.precision);
    let device = Device::choose_local(name, precision, world.local())?;
    agree::on_settings(world, settings, &device)?;
    let threads = run::threads(&config, world);
    let mut own = config.clone();
    own.run.accumulation = world.share().part_of(config.run.accumulation).len();
    let own = Measured { config: &own, device: &device, warm_up, updates };
    let all = Measured { config: &config, ..own };
    run::in_pool(threads, || {
        let busy = world.busy();
        let alone = match &device {
            Device::Cpu => own.on_cpu()?,
            Device::Cuda(cuda) => own.on_gpu(cuda)?,
        };
        drop(busy);
        if world.is_alone() {
            return Ok(alone);
        }
        match &device {
            Device::Cpu => all.together(alone, Cpu::<f32>::new(), CpuAdamW::new, world),
            Device::Cuda(cuda) => {
                among::join(cuda, world)?;
                let before = (alone.ms_per_update, alone.tokens_per_s);
                let optimizer = setup::cuda_optimizer(cuda);
                let found = all.together(alone, cuda.clone(), optimizer, world)?;
                cuda.set_ranks(None)?;
                found.between(before, own.alone_again(cuda, world)?, world)
            }
        }
    })
}

impl Speed {
    /// What ranks reach together, held against the middle of what each has alone before and after, in milliseconds: devices
    /// get slower as they get warm.
    fn between(
        mut self,
        (before, rate): (f64, f64),
        after: f64,
        world: &World,
    ) -> Result<Self, Error> {
        let middle = f64::midpoint(before, after);
        let each = world.numbers(&[rate * before / middle])?;
        let alone: f64 = each.iter().map(|own| own[0]).sum();
        self.scaling = Some(self.tokens_per_s / alone);
        if let Some(part) = self.parts.iter_mut().find(|part| part.name == RANKS) {
            part.ms = (self.ms_per_update - middle).max(0.0);
        }
        Ok(self)
    }
}

/// The part of an update that ranks add.
const RANKS: &str = "ranks";

/// What is measured.
struct Measured<'a> {
    config: &'a Config,
    device: &'a Device,
    warm_up: usize,
    updates: usize,
}

/// What was found, before it is put into words and ratios.
struct Found {
    /// Of each update.
    seconds: Vec<f64>,
    peak_tflops: f64,
    peak_bytes: Option<u64>,
    launches: u64,
    host_us_per_update: f64,
    /// Mean seconds of each.
    parts: Vec<(&'static str, f64)>,
}

/// What measured updates took.
struct Times {
    /// Each of them.
    seconds: Vec<f64>,
    /// What the host does for one, in microseconds: the median.
    host_us: f64,
    /// Of each rank, its own share: the medians.
    rank_ms: Vec<f64>,
}

impl Measured<'_> {
    fn on_cpu(&self) -> Result<Speed, Error> {
        let peak_tflops = model::product_ceiling_gflops() / 1e3;
        let mut trial = Trial::new(self.config, Cpu::<f32>::new(), CpuAdamW::new, &World::alone())?;
        for update in 0..self.warm_up {
            trial.update(update as u64 + 1)?;
        }
        let clock = trial.engine.gpt().device().clone();
        clock.take_part_times();
        let mut seconds = Vec::new();
        let mut stepping = Duration::ZERO;
        for update in self.warm_up..self.warm_up + self.updates {
            let begun = Instant::now();
            stepping += trial.update(update as u64 + 1)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        let mean = |time: Duration| time.as_secs_f64() / self.updates as f64;
        let network = clock.take_part_times().named();
        let mut parts = network.map(|(name, time)| (name, mean(time))).to_vec();
        parts.push(("optimizer", mean(stepping)));
        let (launches, host_us_per_update) = (0, 0.0);
        let peak_bytes = peak_bytes();
        let found = Found { seconds, peak_tflops, peak_bytes, launches, host_us_per_update, parts };
        Ok(self.speed(&trial, found))
    }

    fn on_gpu(&self, cuda: &Cuda) -> Result<Speed, Error> {
        let free = cuda.gpu().free_bytes()?;
        let optimizer = setup::cuda_optimizer(cuda);
        let mut trial = Trial::new(self.config, cuda.clone(), optimizer, &World::alone())?;
        let Times { seconds, host_us: host_us_per_update, .. } = self.times(&mut trial, AHEAD)?;
        let launches = trial.engine.launches();
        let peak_bytes = Some(free.saturating_sub(cuda.gpu().free_bytes()?));
        let parts = trial.parts(cuda)?;
        let peak_tflops = cuda.product_ceiling_tflops()?;
        let found = Found { seconds, peak_tflops, peak_bytes, launches, host_us_per_update, parts };
        Ok(self.speed(&trial, found))
    }

    /// The speed of all ranks together, where this one alone has that of `alone`.
    fn together<D: Operations, O: Updater<D> + Send>(
        &self,
        alone: Speed,
        on: D,
        new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>,
        world: &World,
    ) -> Result<Speed, Error> {
        let busy = world.busy();
        let mut trial = Trial::new(self.config, on, new_optimizer, world)?;
        drop(busy);
        world.barrier()?;
        // A processor is done with an update when it is queued.
        let ahead = if matches!(self.device, Device::Cpu) { 0 } else { AHEAD };
        let Times { seconds, host_us: host_us_per_update, rank_ms } =
            self.times(&mut trial, ahead)?;
        let each = world.numbers(&[alone.tokens_per_s, alone.model_tflops])?;
        let sum = |index: usize| each.iter().map(|own| own[index]).sum::<f64>();
        let ms_per_update = median(seconds) * 1e3;
        let tokens_per_s = trial.tokens() as f64 / ms_per_update * 1e3;
        let scaling = tokens_per_s / sum(0);
        let mut parts = alone.parts;
        let ms = (ms_per_update - alone.ms_per_update).max(0.0);
        parts.push(PartTime { name: RANKS, ms });
        let ranks = world.share().world_size;
        Ok(Speed {
            batch: self.config.run.batch * self.config.run.accumulation,
            ms_per_update,
            tokens_per_s,
            model_tflops: sum(1) * scaling,
            share_of_peak: alone.share_of_peak * scaling,
            launches: trial.engine.launches(),
            host_us_per_update,
            parts,
            ranks,
            scaling: Some(scaling),
            rank_ms,
            ..alone
        })
    }

    /// The milliseconds of an update of this rank alone, once more.
    fn alone_again(&self, cuda: &Cuda, world: &World) -> Result<f64, Error> {
        let busy = world.busy();
        let optimizer = setup::cuda_optimizer(cuda);
        let mut trial = Trial::new(self.config, cuda.clone(), optimizer, &World::alone())?;
        let found = self.times(&mut trial, AHEAD)?;
        drop(busy);
        Ok(median(found.seconds) * 1e3)
    }

    /// The times of the measured updates. Sets of them are queued `ahead` of their results, as a run does; each set takes the
    /// time between two results. The last set is a whole one.
    fn times<D: Operations, O: Updater<D> + Send>(
        &self,
        trial: &mut Trial<D, O>,
        ahead: usize,
    ) -> Result<Times, Error> {
        let (mut seconds, mut host) = (Vec::new(), Vec::new());
        let mut rank_ms = vec![Vec::new(); trial.engine.world().share().world_size];
        let (mut warm, mut done) = (0, 0);
        let mut queued = VecDeque::new();
        let mut arrived = Instant::now();
        while seconds.len() < self.updates {
            while queued.len() <= ahead {
                let begun = Instant::now();
                let count = trial.queue(done + 1)?;
                queued.push_back(begun.elapsed().as_secs_f64() / count as f64);
                done += count as u64;
            }
            let outcomes = trial.engine.take_outcomes(true)?;
            let before = std::mem::replace(&mut arrived, Instant::now());
            let host_seconds = queued.pop_front().expect("a result is of what was queued");
            let count = outcomes.len();
            if warm < self.warm_up.max(1) {
                warm += count;
                continue;
            }
            seconds.extend(iter::repeat_n((arrived - before).as_secs_f64() / count as f64, count));
            host.extend(iter::repeat_n(host_seconds, count));
            for outcome in outcomes {
                let each = rank_ms.iter_mut().zip(outcome.rank_ms);
                each.for_each(|(times, ms)| times.push(ms));
            }
        }
        while !trial.engine.take_outcomes(true)?.is_empty() {}
        let rank_ms = rank_ms.into_iter().filter(|times| !times.is_empty()).map(median).collect();
        Ok(Times { seconds, host_us: median(host) * 1e6, rank_ms })
    }

    fn speed<D: Operations, O: Updater<D> + Send>(
        &self,
        trial: &Trial<D, O>,
        found: Found,
    ) -> Speed {
        let (config, seconds) = (self.config, found.seconds);
        let mean_s = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let median_s = median(seconds);
        let mut parts = found.parts;
        let timed: f64 = parts.iter().map(|&(_, seconds)| seconds).sum();
        parts.push(("other", (mean_s - timed).max(0.0)));
        let tokens = trial.tokens() as f64;
        let flops = trial.engine.gpt().config().training_flops_per_token(config.model.context);
        let model_tflops = flops * tokens / median_s / 1e12;
        let part = |(name, seconds)| PartTime { name, ms: seconds * 1e3 };
        Speed {
            device: self.device.name(),
            model: trial.describe(),
            precision: self.device.precision().name(),
            state_format: config.optimizer.format.to_string(),
            batch: config.run.batch * config.run.accumulation,
            context: config.model.context,
            ms_per_update: median_s * 1e3,
            tokens_per_s: tokens / median_s,
            model_tflops,
            share_of_peak: model_tflops / found.peak_tflops,
            peak_tflops: found.peak_tflops,
            peak_bytes: found.peak_bytes,
            launches: found.launches,
            host_us_per_update: found.host_us_per_update,
            parts: parts.into_iter().map(part).collect(),
            ranks: 1,
            scaling: None,
            rank_ms: Vec::new(),
        }
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Tokens that every update has.
struct MadeUp {
    ids: Vec<u32>,
    context: usize,
}

impl MadeUp {
    fn new(config: &Config, vocabulary: usize) -> Self {
        let context = config.model.context;
        let count = config.run.batch * config.run.accumulation * context + 1;
        let words = RandomStream::new(config.run.seed, 0, 0, 0);
        let ids = (0..count as u32).map(|index| words.word(index) % vocabulary as u32).collect();
        Self { ids, context }
    }
}

impl stage::Source for MadeUp {
    fn shape(&self) -> RangeShape {
        RangeShape { ids: self.ids.len() as u64, ranges: 1, update_ranges: 1 }
    }

    fn updates(&self) -> u64 {
        u64::MAX
    }

    fn row_count(&self, _: u64) -> usize {
        (self.ids.len() - 1).div_ceil(self.context)
    }

    fn rows(
        &mut self,
        _: u64,
        take: &mut dyn FnMut(Row<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { ref ids, context: count } = *self;
        let range = RangeKey { tape: 0, start: 0 };
        let mut starts = (0..ids.len() - 1).step_by(count);
        starts.try_for_each(|start| take(Row { range, ids, start, count, bytes: None }))
    }
}

/// An engine and the made-up tokens of one update.
struct Trial<D: Operations, O> {
    engine: Engine<D, O>,
    learning_rate: f64,
    tokens: MadeUp,
    vocabulary: usize,
}

impl<D: Operations, O: Updater<D> + Send> Trial<D, O> {
    fn new(
        config: &Config,
        device: D,
        new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>,
        world: &World,
    ) -> Result<Self, Error> {
        let tokenizer = match config.data.source {
            Source::Stories { vocabulary, .. } => vocabulary + 1,
            Source::Tapes { .. } => Tokenizer::bundled().vocabulary() as usize,
        };
        let network = setup::network(&config.model, tokenizer)?;
        let seed = config.run.seed;
        let initial = |layout: &Layout| Ok(layout.initial(seed));
        let vocabulary = network.vocabulary();
        let tokens = MadeUp::new(config, vocabulary);
        let shape = tokens.shape();
        let world = world.clone();
        let engine = setup::engine(config, network, device, new_optimizer, initial, shape, world)?;
        Ok(Self { engine, learning_rate: config.schedule.peak, tokens, vocabulary })
    }

    fn tokens(&self) -> u64 {
        self.tokens.ids.len() as u64 - 1
    }

    /// Summed loss of update number `update`; the gradients are left in the engine.
    fn gradients(&mut self, update: u64) -> Result<f64, Error> {
        Ok(self.engine.gradients(update, &mut self.tokens)?.1)
    }

    /// One update; the time of the optimizer's part.
    fn update(&mut self, update: u64) -> Result<Duration, Error> {
        self.gradients(update)?;
        let begun = Instant::now();
        self.engine.step(update, &[self.learning_rate; 2])?;
        Ok(begun.elapsed())
    }

    /// Some updates from number `first` on, without waiting for them; returns how many.
    fn queue(&mut self, first: u64) -> Result<usize, Error> {
        let rates = vec![vec![self.learning_rate; 2]; UPDATES_AT_ONCE];
        Ok(self.engine.updates(first, &rates, &mut self.tokens)?.len())
    }

    fn describe(&self) -> String {
        let config = self.engine.gpt().config();
        format!(
            "V {} T {} C {} L {} H {}",
            config.vocabulary(),
            config.context(),
            config.channels(),
            config.layers(),
            config.heads()
        )
    }
}

impl Trial<Cuda, CudaAdamW> {
    /// Mean seconds of each part of an update. Points in time are recorded between the parts, which adds a
    /// little to each, so this is done apart from the measurement of the whole.
    fn parts(&mut self, cuda: &Cuda) -> Result<Vec<(&'static str, f64)>, Error> {
        self.engine.forget_recordings();
        cuda.set_timed(true);
        let mut network = PartTimes::default();
        for update in 0..=PROFILED {
            self.engine.update(update + 1, &[self.learning_rate; 2], &mut self.tokens)?;
            self.engine.take_outcomes(true)?;
            // The first replay is not like the others.
            let times = cuda.take_part_times()?;
            if update > 0 {
                network += times;
            }
        }
        cuda.set_timed(false);
        self.engine.forget_recordings();
        let mut stepping = Vec::new();
        for update in 0..PROFILED {
            let rates = [self.learning_rate; 2];
            let engine = &mut self.engine;
            stepping.push(cuda.gpu().elapsed_ms(|| engine.queue_step(update + 1, &rates))? / 1e3);
        }
        let mean = |(name, time): (_, Duration)| (name, time.as_secs_f64() / PROFILED as f64);
        let mut parts = network.named().map(mean).to_vec();
        parts.push(("optimizer", median(stepping)));
        Ok(parts)
    }
}
