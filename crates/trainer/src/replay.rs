//! One update of a run made again from the last checkpoint before it, or from the start, to see where its
//! gradients went wrong.
//!
//! Nothing is written. The updates between the checkpoint and the one in question are made as the run made
//! them, on any device; on another device than the run's they agree with it up to rounding.

use std::path::Path;

use model::ops::Operations;
use model::{Cpu, Layout, Slot};
use optimizer::{CpuAdamW, Group, Options, TensorSpec};
use serde::Serialize;

use crate::budget::Budget;
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::config::Config;
use crate::corpus::Corpus;
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::events::Event;
use crate::feed::{Feed, Updates};
use crate::folder::RunFolder;
use crate::run::in_pool;
use crate::settings::Settings;
use crate::setup;
use crate::stage::Staged;
use crate::updater::Updater;
use crate::world::World;

/// What an update looked like from inside.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// The update, counted from 1.
    pub update: u64,
    /// The update of the checkpoint from which it was reached; 0 if that was the start of the run.
    pub checkpoint_update: u64,
    /// Position of its first token in the tape.
    pub cursor: u64,
    /// Its tokens.
    pub tokens: u64,
    /// Its mean loss, in nats a token.
    pub loss_nats: f64,
    /// Every tensor, in the order of the network.
    pub tensors: Vec<TensorNorms>,
}

/// One tensor at an update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorNorms {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub elements: u64,
    /// The norm of its parameters before the update, over finite elements.
    pub parameter_norm: f64,
    /// The norm of its gradient, over finite elements.
    pub gradient_norm: f64,
    /// The largest magnitude in its gradient, over finite elements.
    pub gradient_max: f32,
    /// Elements of its gradient that are not finite.
    pub nonfinite_gradients: u64,
    /// Parameters that are not finite.
    pub nonfinite_parameters: u64,
}

/// Makes update number `update` of the run in `run_folder` again, without applying it.
///
/// # Errors
///
/// Settings that make no sense, an update that the run does not have, a folder in use, data or a checkpoint
/// that is not that of the run, and what the device refuses.
pub fn replay(settings: &Settings, run_folder: &Path, update: u64) -> Result<Replay, Error> {
    let config = Config::new(settings)?;
    let device = Device::choose(&config.run.device, config.run.precision)?;
    let folder = RunFolder::reopen(run_folder)?;
    in_pool(config.run.threads, || {
        let again = Again { config: &config, folder: &folder, update };
        match &device {
            Device::Cpu => again.on(Cpu::new(), CpuAdamW::new),
            Device::Cuda(cuda) => again.on(cuda.clone(), setup::cuda_optimizer(cuda)),
        }
    })
}

struct Again<'a> {
    config: &'a Config,
    folder: &'a RunFolder,
    update: u64,
}

impl Again<'_> {
    fn on<D: Operations, O: Updater<D> + Send>(
        &self,
        device: D,
        new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>,
    ) -> Result<Replay, Error> {
        let &Again { config, folder, update } = self;
        let corpus = Corpus::open(&config.data, &folder.data(), &mut |_: &Event| {})?;
        let network = setup::network(&config.model, corpus.tokenizer.vocabulary() as usize)?;
        let mut feed = Feed::new(config, &corpus)?;
        let budget = Budget::new(config, &corpus, &feed)?;
        let checkpoint = self.checkpoint(&budget)?;
        let initial = |layout: &Layout| match &checkpoint {
            Some(checkpoint) => checkpoint.parameters(layout),
            None => setup::initial(config, layout),
        };
        let shape = feed.shape(&budget);
        let mut engine =
            setup::engine(config, network, device, new_optimizer, initial, shape, World::alone())?;
        let mut source = Updates { feed: &mut feed, budget: &budget };
        let mut done = 0;
        if let Some(checkpoint) = &checkpoint {
            engine.optimizer_mut().load(&checkpoint.optimizer()?)?;
            done = checkpoint.manifest.progress.update;
        }
        for done in done..update - 1 {
            let rate = budget.learning_rate(&config.schedule, done);
            engine.update(done + 1, &[rate; 2], &mut source)?;
            engine.take_outcomes(true)?;
        }
        let (Staged { tokens, .. }, nats) = engine.gradients(update, &mut source)?;
        Ok(Replay {
            update,
            checkpoint_update: done,
            cursor: budget.range(update - 1).start,
            tokens,
            loss_nats: nats / tokens as f64,
            tensors: tensors(&engine)?,
        })
    }

    /// The last checkpoint before the update, if there is one.
    fn checkpoint(&self, budget: &Budget) -> Result<Option<Checkpoint>, Error> {
        let all = budget.updates();
        if !(1..=all).contains(&self.update) {
            return Err(Error::WrongValue {
                key: "update".into(),
                place: self.folder.path().display().to_string(),
                expected: format!("from 1 to the {all} of the run"),
                found: self.update.to_string(),
            });
        }
        Checkpoints::open(&self.folder.checkpoints())?.before(self.update)
    }
}

fn tensors<D: Operations, O: Updater<D> + Send>(
    engine: &Engine<D, O>,
) -> Result<Vec<TensorNorms>, Error> {
    let (parameters, gradients) = (engine.download()?, engine.download_gradients()?);
    let norms = |slot: &Slot| {
        let (parameters, gradients) = (&parameters[slot.range()], &gradients[slot.range()]);
        TensorNorms {
            name: slot.name.clone(),
            elements: slot.length as u64,
            parameter_norm: norm(parameters),
            gradient_norm: norm(gradients),
            gradient_max: finite(gradients).fold(0.0, |max: f32, g| max.max(g.abs())),
            nonfinite_gradients: (slot.length - finite(gradients).count()) as u64,
            nonfinite_parameters: (slot.length - finite(parameters).count()) as u64,
        }
    };
    Ok(engine.gpt().layout().slots().iter().map(norms).collect())
}

fn finite(elements: &[f32]) -> impl Iterator<Item = f32> {
    elements.iter().copied().filter(|element| element.is_finite())
}

fn norm(elements: &[f32]) -> f64 {
    finite(elements).map(|element| f64::from(element) * f64::from(element)).sum::<f64>().sqrt()
}
