//! From checked sections to the network and the optimizer that they ask for.

use formats::RandomStream;
use model::ops::Operations;
use model::{Batch, Cuda, Dimensions, Gpt, Layout, Slot};
use optimizer::{CudaAdamW, Group, Options, TensorSpec};

use crate::checkpoint::Checkpoint;
use crate::config::{Config, ModelSection};
use crate::engine::{Engine, Sharing};
use crate::error::Error;
use crate::evaluate::scoring_batch;
use crate::manifest::Shape;
use crate::memory::Needs;
use crate::pool::RangeShape;
use crate::shards::Shards;
use crate::updater::Updater;
use crate::world::{Share, World};

/// The network of a model section, with the vocabulary of the tokenizer where none is given.
///
/// # Errors
///
/// A vocabulary that the tokenizer does not fit in, and a shape that no network has.
pub fn network(
    section: &ModelSection,
    tokenizer_vocabulary: usize,
) -> Result<model::Config, Error> {
    let vocabulary = section.vocabulary.unwrap_or(tokenizer_vocabulary);
    if vocabulary < tokenizer_vocabulary {
        return Err(Error::WrongValue {
            key: "model.vocabulary".into(),
            place: "model".into(),
            expected: format!("at least {tokenizer_vocabulary}, the tokenizer's"),
            found: vocabulary.to_string(),
        });
    }
    let &ModelSection { context, channels, layers, heads, .. } = section;
    Ok(model::Config::new(Dimensions { vocabulary, context, channels, layers, heads })?)
}

/// The shape of a micro-batch.
#[must_use]
pub fn batch(config: &Config) -> Batch {
    Batch { rows: config.run.batch, time: config.model.context }
}

/// The tensors of a layout in its order, and their two groups: matrices are decayed, vectors are not.
#[must_use]
pub fn tensors_and_groups(config: &Config, layout: &Layout) -> (Vec<TensorSpec>, [Group; 2]) {
    let section = &config.optimizer;
    let group = |weight_decay| Group {
        learning_rate: config.schedule.peak,
        betas: section.betas,
        eps: section.eps,
        weight_decay,
        format: section.format,
        bias: section.bias,
    };
    let tensor =
        |slot: &Slot| TensorSpec::new(&*slot.name, slot.length, usize::from(!slot.role.decays()));
    let tensors = layout.slots().iter().map(tensor).collect();
    (tensors, [group(section.weight_decay), group(0.0)])
}

/// The parameters that a new run starts from: those of another model of the same shape, or drawn ones, each
/// times `1 + run.perturbation * u` with a hashed `u` from -1 to 1 of its own.
///
/// # Errors
///
/// A path without a checkpoint, a damaged one, and a model of another shape.
pub fn initial(config: &Config, layout: &Layout) -> Result<Vec<f32>, Error> {
    let mut parameters = unperturbed(config, layout)?;
    let (size, seed) = (config.run.perturbation, config.run.seed);
    if size > 0.0 {
        // Apart from the words that drew the parameters, which are those of update 0 and low tensor numbers.
        let words = RandomStream::new(seed, 0, u32::MAX, 0);
        for (index, parameter) in parameters.iter_mut().enumerate() {
            let unit = f64::from(words.word(index as u32)) / f64::from(u32::MAX) * 2.0 - 1.0;
            *parameter = (f64::from(*parameter) * (1.0 + size * unit)) as f32;
        }
    }
    Ok(parameters)
}

fn unperturbed(config: &Config, layout: &Layout) -> Result<Vec<f32>, Error> {
    let Some(path) = &config.run.initial else {
        return Ok(layout.initial(config.run.seed));
    };
    let checkpoint = Checkpoint::find(path)?;
    let (found, expected) = (checkpoint.manifest.model, Shape::from(layout.config()));
    if found != expected {
        return Err(Error::CheckpointMismatch {
            checkpoint: checkpoint.directory.clone(),
            key: "model".into(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }
    checkpoint.parameters(layout)
}

/// An engine on `device`; `new_optimizer` makes the optimizer of the same device, and `initial` the
/// parameters. What it learns from lies in ranges of `shape`, and is shared with the ranks of `world`.
///
/// # Errors
///
/// What the device refuses, hyperparameters that make no sense, and errors of `initial`.
pub fn engine<D, O>(
    config: &Config,
    network: model::Config,
    device: D,
    new_optimizer: impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<O, optimizer::Error>,
    initial: impl FnOnce(&Layout) -> Result<Vec<f32>, Error>,
    shape: RangeShape,
    world: World,
) -> Result<Engine<D, O>, Error>
where
    D: Operations,
    O: Updater<D> + Send,
{
    let share = world.share();
    Needs::new(&device, config, network, shape, share)?.must_fit(config.run.batch)?;
    let gpt = Gpt::new(device, network, batch(config), config.run.purpose)?;
    let (tensors, groups) = tensors_and_groups(config, gpt.layout());
    let options = Options {
        clip_norm: config.optimizer.clip_norm,
        on_nonfinite: config.optimizer.on_nonfinite,
        seed: config.run.seed,
    };
    let shards = shards_of(config, gpt.layout(), share);
    let tensors = match &shards {
        Some(shards) => shards.tensors(gpt.layout(), &tensors, share.rank),
        None => tensors,
    };
    let optimizer = new_optimizer(&tensors, &groups, options)?;
    let initial = initial(gpt.layout())?;
    let scoring = scoring_batch(gpt.device(), gpt.batch(), config.run.validation_windows);
    let sharing = Sharing { world, reduction: config.run.reduction, shards };
    let count = config.run.accumulation;
    let mut engine = Engine::new(gpt, optimizer, &initial, count, shape, sharing)?;
    engine.score_in(scoring);
    Ok(engine)
}

/// Who has which part of the optimizer's state, where several ranks divide it.
#[must_use]
pub fn shards_of(config: &Config, layout: &Layout, share: Share) -> Option<Shards> {
    let divides = config.run.sharded && share.world_size > 1;
    divides.then(|| Shards::new(layout, share.world_size))
}

/// Makes the optimizer of a CUDA device.
pub fn cuda_optimizer(
    cuda: &Cuda,
) -> impl FnOnce(&[TensorSpec], &[Group], Options) -> Result<CudaAdamW, optimizer::Error> {
    |tensors, groups, options| CudaAdamW::new(cuda.gpu(), tensors, groups, options)
}
