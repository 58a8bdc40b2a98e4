//! What a run would do, without doing it: parameters, memory, updates, time.

use model::Cpu;
use model::ops::Operations;
use serde::Serialize;

use crate::budget::Budget;
use crate::config::Config;
use crate::corpus::Corpus;
use crate::device::Device;
use crate::error::Error;
use crate::events::Event;
use crate::feed::Feed;
use crate::memory::{Memory, Needs};
use crate::pool::RangeShape;
use crate::settings::Settings;
use crate::world::{Share, World};
use crate::{agree, run, setup};

/// The share of the matrix-product ceiling that a training step is taken to reach.
const ASSUMED_SHARE: f64 = 0.6;

/// What a run would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the device.
    pub device: String,
    /// Precision of matrix products.
    pub precision: &'static str,
    /// Parameters of the model.
    pub parameters: u64,
    /// Name of the state format.
    pub state_format: String,
    /// Bytes of optimizer state over parameters, exact.
    pub state_bytes_per_parameter: f64,
    /// Processes that share the run.
    pub ranks: usize,
    /// Bytes of optimizer state of each.
    pub rank_state_bytes: Vec<u64>,
    /// Memory of this one by kind.
    pub bytes: Vec<Memory>,
    /// Free memory of a device with memory of its own.
    pub free_bytes: Option<u64>,
    /// Sequences in the largest micro-batch that would fit there.
    pub largest_batch: Option<u64>,
    /// Updates of the run.
    pub updates: u64,
    /// Tokens of a full update.
    pub update_tokens: u64,
    /// Training tokens of the run.
    pub tokens: u64,
    /// Training tokens of the tape.
    pub tape_tokens: u64,
    /// Updates that the tape allows.
    pub updates_allowed: u64,
    /// Floating-point operations of the model in a full update.
    pub flops_per_update: f64,
    /// Measured rate of large matrix products here, in GFLOP/s.
    pub ceiling_gflops: f64,
    /// The share of that rate that the estimate assumes.
    pub assumed_share: f64,
    /// Estimated seconds of all updates.
    pub estimated_s: f64,
}

/// Plans the run that `settings` ask for. Text that the program makes itself is made in a temporary folder;
/// nothing else is written.
///
/// # Errors
///
/// As for a run, up to its first update.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    plan_with(settings, &World::alone())
}

/// As [`plan`], for a rank among others, which is not heard or told anything.
///
/// # Errors
///
/// As for [`plan`].
pub fn plan_with(settings: &Settings, world: &World) -> Result<Plan, Error> {
    let config = Config::new(settings)?;
    agree::enough_for_all(world, &config)?;
    let (name, precision) = (&config.run.device, config.run.precision);
    let device = Device::choose_local(name, precision, world.local())?;
    let share = world.share();
    let folder = tempfile::tempdir().map_err(Error::io("create", &std::env::temp_dir()))?;
    run::in_pool(run::threads(&config, world), || {
        let corpus = Corpus::open(&config.data, folder.path(), &mut |_: &Event| {})?;
        let feed = Feed::new(&config, &corpus)?;
        let budget = Budget::new(&config, &corpus, &feed)?;
        let vocabulary = corpus.tokenizer.vocabulary() as usize;
        let network = setup::network(&config.model, vocabulary)?;
        let shape = feed.shape(&budget);
        let planned = Planned { config: &config, device: &device, network, budget, shape, share };
        match &device {
            Device::Cpu => planned.on(&Cpu::<f32>::new(), model::product_ceiling_gflops()),
            Device::Cuda(cuda) => {
                let ceiling_gflops = cuda.product_ceiling_tflops()? * 1e3;
                planned.on(cuda, ceiling_gflops)
            }
        }
    })
}

/// A run to be planned.
struct Planned<'a> {
    config: &'a Config,
    device: &'a Device,
    network: model::Config,
    budget: Budget,
    shape: RangeShape,
    share: Share,
}

impl Planned<'_> {
    fn on<D: Operations>(&self, device: &D, ceiling_gflops: f64) -> Result<Plan, Error> {
        let &Planned { config, network, ref budget, shape, share, .. } = self;
        let needs = Needs::new(device, config, network, shape, share)?;
        let layout = model::Layout::new(network);
        let format = config.optimizer.format;
        let parameters = layout.parameters() as u64;
        let state: u64 =
            layout.slots().iter().map(|slot| format.state_bytes(slot.length as u64)).sum();
        let rank_state_bytes = match setup::shards_of(config, &layout, share) {
            Some(shards) => shards.state_bytes(&layout, format),
            None => vec![state; share.world_size],
        };
        let all = Memory { name: "all together".to_owned(), bytes: needs.total_bytes() };
        let bytes = needs.kinds.into_iter().chain([needs.tapes, all]).collect();
        let ranks = share.world_size as f64;
        let flops = network.training_flops_per_token(config.model.context);
        Ok(Plan {
            device: self.device.name(),
            precision: self.device.precision().name(),
            parameters,
            state_format: format.to_string(),
            state_bytes_per_parameter: state as f64 / parameters as f64,
            ranks: share.world_size,
            rank_state_bytes,
            bytes,
            free_bytes: needs.free_bytes,
            largest_batch: needs.largest_batch,
            updates: budget.updates(),
            update_tokens: budget.update_tokens,
            tokens: budget.tokens,
            tape_tokens: budget.tape_tokens,
            updates_allowed: budget.updates_allowed(),
            flops_per_update: flops * budget.update_tokens as f64,
            ceiling_gflops,
            assumed_share: ASSUMED_SHARE,
            estimated_s: flops * budget.tokens as f64
                / (ceiling_gflops * 1e9 * ASSUMED_SHARE * ranks),
        })
    }
}
