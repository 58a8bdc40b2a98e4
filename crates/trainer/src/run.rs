//! One run from its settings to its summary.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpu_kernels::Made;
use model::ops::Operations;
use model::{Cpu, Decoder, Layout};
use optimizer::{CpuAdamW, Group, Options, TensorSpec};

use tape::aside::write_file;

use crate::agree;
use crate::among;
use crate::budget::Budget;
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::config::{self, Config, Source};
use crate::corpus::Corpus;
use crate::curves;
use crate::device::Device;
use crate::error::Error;
use crate::events::{Event, Observer};
use crate::feed::Feed;
use crate::folder::RunFolder;
use crate::metrics::{self, Metrics};
use crate::sample::{Sampling, check_prompt, sample};
use crate::session::{End, Parts, Session};
use crate::settings::Settings;
use crate::setup;
use crate::shadow::Shadows;
use crate::summary::{Summary, peak_bytes};
use crate::tensorboard::TensorBoard;
use crate::updater::Updater;
use crate::world::World;

/// Time between looks at what was made for a device.
const READYING_INTERVAL: Duration = Duration::from_millis(20);

/// What a run is asked for.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its settings.
    pub settings: &'a Settings,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether to go on with the run that is there.
    pub resume: bool,
    /// Set, by a signal handler say, when the run shall stop.
    pub stop: &'a AtomicBool,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// It reached its end.
    Finished(Box<Summary>),
    /// It was asked to stop; a complete checkpoint is there.
    Stopped {
        /// Updates done.
        update: u64,
    },
}

/// Runs what `request` asks for and tells `observer` what happens.
///
/// # Errors
///
/// Settings that make no sense, data that does not suffice, a folder in use, a checkpoint of another run, a
/// device that is missing, a value that is not finite, a full disk. What was written before stays whole.
pub fn run(request: &Request<'_>, observer: &mut dyn Observer) -> Result<Ending, Error> {
    let config = Config::new(request.settings)?;
    let device = Device::choose(&config.run.device, config.run.precision)?;
    run_on(request, &device, observer)
}

/// As [`run`], on a device that was chosen already, whatever the settings say of that.
///
/// # Errors
///
/// As for [`run`].
pub fn run_on(
    request: &Request<'_>,
    device: &Device,
    observer: &mut dyn Observer,
) -> Result<Ending, Error> {
    run_shared(request, device, &World::alone(), observer)
}

/// As [`run`], with other ranks, on the device of this one. Rank 0 writes the folder, which the others need not see
/// if they have tapes of their own, and its observer is told; all return when all are done.
///
/// # Errors
///
/// As for [`run`], ranks that were asked for something else, and ranks that are gone. All ranks hear of an error of one.
pub fn run_with(
    request: &Request<'_>,
    world: &World,
    observer: &mut dyn Observer,
) -> Result<Ending, Error> {
    let mut shared = || {
        let config = Config::new(request.settings)?;
        let (name, precision) = (&config.run.device, config.run.precision);
        let device = Device::choose_local(name, precision, world.local())?;
        let ending = run_shared(request, &device, world, observer)?;
        world.leave()?;
        Ok(ending)
    };
    // What broke work off is the reason of whatever went wrong then.
    let outcome = shared().map_err(|error| world.fault().map_or(error, Error::Ranks));
    outcome.inspect_err(|error: &Error| world.abort(&error.to_string()))
}

fn run_shared(
    request: &Request<'_>,
    device: &Device,
    world: &World,
    observer: &mut dyn Observer,
) -> Result<Ending, Error> {
    let config = Config::new(request.settings)?;
    agree::on_settings(world, request.settings, device)?;
    agree::enough_for_all(world, &config)?;
    let folder = match (world.is_first(), request.resume) {
        (false, _) => RunFolder::visit(&request.folder),
        (true, true) => RunFolder::reopen(&request.folder)?,
        (true, false) => RunFolder::create(&request.folder)?,
    };
    if let Device::Cuda(cuda) = device {
        among::join(cuda, world)?;
    }
    let mut nobody = |_: &Event| {};
    let observer = if world.is_first() { observer } else { &mut nobody };
    in_pool(threads(&config, world), || {
        let run = Run { request, config: &config, folder: &folder, device, world };
        match device {
            Device::Cpu => run.with(Cpu::new(), CpuAdamW::new, observer),
            Device::Cuda(cuda) => run.with(cuda.clone(), setup::cuda_optimizer(cuda), observer),
        }
    })
}

/// Threads of this rank: the cores of a host are shared by its ranks, unless settings say otherwise.
pub fn threads(config: &Config, world: &World) -> usize {
    match world.local().world_size {
        Some(ranks) if config.run.threads == 0 && ranks > 1 => {
            thread::available_parallelism().map_or(1, |cores| (cores.get() / ranks).max(1))
        }
        _ => config.run.threads,
    }
}

/// Runs `work` on a pool of `threads` threads; 0 takes all cores.
pub fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("the system can start threads").install(work)
}

/// Makes something on a device and tells, meanwhile, what has to be made for the device first.
fn readied<T: Send>(
    device: &Device,
    observer: &mut dyn Observer,
    make: impl FnOnce() -> T + Send,
) -> T {
    let Device::Cuda(cuda) = device else { return make() };
    let mut told = cuda.gpu().made();
    thread::scope(|scope| {
        let making = scope.spawn(make);
        while !making.is_finished() {
            thread::sleep(READYING_INTERVAL);
            let made = cuda.gpu().made();
            if made != told {
                let Made { kernels, products } = made;
                observer.observe(&Event::Readying { kernels, products });
                told = made;
            }
        }
        making.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

struct Run<'a> {
    request: &'a Request<'a>,
    config: &'a Config,
    folder: &'a RunFolder,
    device: &'a Device,
    world: &'a World,
}

impl Run<'_> {
    /// The run on a device, with the maker of its optimizer.
    fn with<D: Operations, O: Updater<D> + Send>(
        &self,
        on: D,
        new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>
        + Send,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Error> {
        let (config, world) = (self.config, self.world);
        let busy = world.busy();
        let corpus = self.corpus(observer)?;
        let network = setup::network(&config.model, corpus.tokenizer.vocabulary() as usize)?;
        let feed = Feed::new(config, &corpus)?;
        let budget = Budget::new(config, &corpus, &feed)?;
        let identity = self.identity(&corpus, network);
        agree::on_data(world, &identity, &budget)?;
        let checkpoints = match world.is_first() {
            true => Checkpoints::open(&self.folder.checkpoints())?,
            false => Checkpoints::elsewhere(),
        };
        let checkpoint = self.checkpoint(&checkpoints)?;
        if let Some(checkpoint) = &checkpoint {
            checkpoint.must_match(&identity)?;
        }
        let initial = |layout: &Layout| match &checkpoint {
            Some(checkpoint) => checkpoint.parameters(layout),
            None => setup::initial(config, layout),
        };
        if let Some(wanted) = &config.run.sample {
            check_prompt(&wanted.prompt, &corpus.tokenizer, network.context())?;
        }
        let shape = feed.shape(&budget);
        let make =
            || setup::engine(config, network, on, new_optimizer, initial, shape, world.clone());
        let engine = readied(self.device, observer, make)?;
        agree::on_parameters(world, &engine.download()?)?;

        let update =
            checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.manifest.progress.update);
        let (metrics, elapsed_before_s) = self.metrics(update)?;
        let shadows = self.shadows(engine.gpt().layout(), update)?;
        let device = self.device.name();
        let mut session = Session::new(
            Parts {
                config,
                device: &device,
                corpus: &corpus,
                budget,
                feed,
                shape: network.into(),
                identity: identity.clone(),
                checkpoints,
                writes_aside: !matches!(self.device, Device::Cpu),
                shadows,
                metrics,
                observer,
                stop: self.request.stop,
                elapsed_before_s,
            },
            engine,
        );
        if let Some(checkpoint) = &checkpoint {
            session.resume(checkpoint)?;
        }
        drop((checkpoint, busy));
        self.finish(session, &corpus, &identity)
    }

    /// The data: made by one rank after the other, since those of a host share a folder; if it is there, rank 0 sees it
    /// first.
    fn corpus(&self, observer: &mut dyn Observer) -> Result<Corpus, Error> {
        let (share, folder) = (self.world.share(), self.folder.data());
        let turns = match self.config.data.source {
            Source::Stories { .. } => share.world_size,
            Source::Tapes { .. } => share.world_size.min(2),
        };
        let mut corpus = None;
        for turn in 0..turns {
            if share.rank.min(turns - 1) == turn {
                corpus = Some(Corpus::open(&self.config.data, &folder, observer)?);
            }
            self.world.barrier()?;
        }
        Ok(corpus.expect("every rank has a turn"))
    }

    /// The checkpoint to go on from, which rank 0 reads.
    fn checkpoint(&self, checkpoints: &Checkpoints) -> Result<Option<Checkpoint>, Error> {
        if !self.request.resume {
            return Ok(None);
        }
        if self.world.is_alone() {
            return checkpoints.latest();
        }
        let own = if self.world.is_first() { checkpoints.latest()? } else { None };
        let bytes = own.as_ref().map_or_else(Vec::new, Checkpoint::to_bytes);
        let bytes = self.world.bytes_of_first(bytes)?;
        Ok(own.or_else(|| Checkpoint::from_bytes(&bytes)))
    }

    /// The effective configuration and the metrics file, which rank 0 writes, and the seconds of training before.
    fn metrics(&self, update: u64) -> Result<(Metrics, f64), Error> {
        if !self.world.is_first() {
            return Ok((Metrics::nowhere(), 0.0));
        }
        write_file(&self.folder.config(), self.request.settings.to_toml().as_bytes())?;
        let mut metrics = Metrics::open(&self.folder.metrics(), update)?;
        let before = metrics::read(&self.folder.metrics())?;
        if self.config.run.tensorboard {
            metrics.mirror(TensorBoard::create(&self.folder.tensorboard(), &before)?);
        }
        Ok((metrics, metrics::elapsed_s(&before)))
    }

    /// What is fed the gradients beside the run, on rank 0.
    fn shadows(&self, layout: &Layout, update: u64) -> Result<Option<Shadows>, Error> {
        if !self.world.is_first() {
            return Ok(None);
        }
        Shadows::open(self.config, layout, &self.folder.shadow(), update)
    }

    fn finish<D: Operations, O: Updater<D> + Send>(
        &self,
        mut session: Session<'_, D, O>,
        corpus: &Corpus,
        identity: &BTreeMap<String, String>,
    ) -> Result<Ending, Error> {
        let end = session.train()?;
        let update = session.progress().update;
        let _busy = self.world.busy();
        if !self.world.is_first() {
            return Ok(match end {
                End::Stopped => Ending::Stopped { update },
                End::Finished => Ending::Finished(Box::new(self.summary(&session, None))),
            });
        }
        let text = if end == End::Finished { self.sample(&mut session, corpus)? } else { None };
        let finished = end == End::Finished && !self.request.stop.load(Ordering::Relaxed);
        if finished {
            let elapsed_s = session.elapsed_s();
            session.tell(&Event::Finished { update, elapsed_s })?;
        }
        let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy();
        let title = format!("{name}: {}", self.config.optimizer.format);
        let events = metrics::read(&self.folder.metrics())?;
        curves::draw(self.folder, &events, &title)?;
        if !finished {
            return Ok(Ending::Stopped { update });
        }
        let identity = identity.clone();
        let mut summary = Summary { identity, ..self.summary(&session, text) };
        if summary.tokens_per_s == 0.0 {
            // All updates were made before; their speed is that of then.
            summary.tokens_per_s = metrics::tokens_per_s(&events);
        }
        summary.write(&self.folder.summary())?;
        Ok(Ending::Finished(Box::new(summary)))
    }

    /// Samples what the configuration asks for; the text ends early when the run is asked to stop.
    fn sample<D: Operations, O: Updater<D> + Send>(
        &self,
        session: &mut Session<'_, D, O>,
        corpus: &Corpus,
    ) -> Result<Option<String>, Error> {
        let Some(wanted) = &self.config.run.sample else { return Ok(None) };
        let sampling = Sampling {
            tokens: wanted.tokens,
            temperature: wanted.temperature,
            top_k: 0,
            seed: self.config.run.seed,
        };
        let gpt = session.engine().gpt();
        let mut decoder = Decoder::new(gpt.device().clone(), gpt.config())?;
        let mut text = wanted.prompt.clone();
        let stop = self.request.stop;
        let mut take = |piece: &str| {
            text.push_str(piece);
            !stop.load(Ordering::Relaxed)
        };
        let parameters = session.engine().parameters();
        let prompt = &wanted.prompt;
        sample(&mut decoder, parameters, &corpus.tokenizer, prompt, &sampling, &mut take)?;
        session.tell(&Event::Sample { text: text.clone() })?;
        Ok(Some(text))
    }

    fn summary<D: Operations, O: Updater<D> + Send>(
        &self,
        session: &Session<'_, D, O>,
        sample: Option<String>,
    ) -> Summary {
        let progress = session.progress();
        let engine = session.engine();
        let score = session.final_score().expect("a finished run was scored");
        let layout = engine.gpt().layout();
        let parameters = layout.parameters() as u64;
        let state_bytes = match engine.shards() {
            Some(shards) => shards.state_bytes(layout, self.config.optimizer.format).iter().sum(),
            None => engine.optimizer().state_bytes(),
        };
        Summary {
            updates: progress.update,
            tokens: progress.tokens,
            source_bytes: progress.source_bytes,
            parameters,
            train_loss_nats: progress.train_loss_nats,
            validation_loss_nats: score.loss_nats(),
            validation_perplexity: score.perplexity(),
            validation_bpb: score.bpb(),
            validation_tokens: score.tokens,
            first_validation: progress.first,
            best_validation: progress.best,
            tokens_per_s: session.tokens_per_s(),
            state_format: self.config.optimizer.format.to_string(),
            state_bytes_per_parameter: state_bytes as f64 / parameters as f64,
            nonfinite: progress.nonfinite,
            saturated_m: progress.saturated_m,
            saturated_r: progress.saturated_r,
            device: self.device.name(),
            threads: rayon::current_num_threads(),
            precision: self.device.precision().name().to_owned(),
            seed: self.config.run.seed,
            wall_s: session.elapsed_s(),
            peak_bytes: peak_bytes(),
            version: env!("CARGO_PKG_VERSION").into(),
            sample,
            identity: BTreeMap::new(),
        }
    }

    /// What a run that goes on from here must share: settings that decide the bits, the shape, the data.
    fn identity(&self, corpus: &Corpus, network: model::Config) -> BTreeMap<String, String> {
        let mut identity: BTreeMap<String, String> =
            config::identity(self.request.settings).into_iter().collect();
        identity.insert("run.precision".into(), self.device.precision().name().to_owned());
        identity.insert("model.vocabulary".into(), network.vocabulary().to_string());
        identity.extend(corpus.identity());
        identity
    }
}
