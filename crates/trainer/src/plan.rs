//! What a run would do, without doing it: parameters, memory, updates, time.

use model::ops::Operations;
use model::{Batch, Cpu, Purpose};
use serde::Serialize;

use crate::budget::Budget;
use crate::config::Config;
use crate::corpus::Corpus;
use crate::device::Device;
use crate::error::Error;
use crate::events::Event;
use crate::feed::Feed;
use crate::settings::Settings;
use crate::{run, setup};

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
    /// Memory by kind.
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

/// Memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What it holds.
    pub name: String,
    /// How much.
    pub bytes: u64,
}

/// Plans the run that `settings` ask for. Text that the program makes itself is made in a temporary folder;
/// nothing else is written.
///
/// # Errors
///
/// As for a run, up to its first update.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    let config = Config::new(settings)?;
    let device = Device::choose(&config.run.device, config.run.precision)?;
    let folder = tempfile::tempdir().map_err(Error::io("create", &std::env::temp_dir()))?;
    run::in_pool(config.run.threads, || {
        let corpus = Corpus::open(&config.data, folder.path(), &mut |_: &Event| {})?;
        let feed = Feed::new(&config, &corpus)?;
        let budget = Budget::new(&config, &corpus, &feed)?;
        let vocabulary = corpus.tokenizer.vocabulary() as usize;
        let network = setup::network(&config.model, vocabulary)?;
        let planned = Planned { config: &config, device: &device, network, budget };
        match &device {
            Device::Cpu => planned.on(&Cpu::<f32>::new(), model::product_ceiling_gflops(), None),
            Device::Cuda(cuda) => {
                let ceiling_gflops = cuda.product_ceiling_tflops()? * 1e3;
                planned.on(cuda, ceiling_gflops, Some(cuda.gpu().free_bytes()?))
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
}

impl Planned<'_> {
    fn on<D: Operations>(
        &self,
        device: &D,
        ceiling_gflops: f64,
        free_bytes: Option<u64>,
    ) -> Result<Plan, Error> {
        let &Planned { config, network, ref budget, .. } = self;
        let batch = setup::batch(config);
        let plan = self.memory(device, batch.rows)?;
        let layout = model::Layout::new(network);
        let format = config.optimizer.format;
        let state: u64 =
            layout.slots().iter().map(|slot| format.state_bytes(slot.length as u64)).sum();
        let parameters = layout.parameters() as u64;
        let memory = |name: &str, bytes| Memory { name: name.to_owned(), bytes };
        let all = plan.total_bytes() + state;
        let bytes = vec![
            memory("parameters", plan.parameter_bytes),
            memory("gradients", plan.gradient_bytes),
            memory("optimizer state", state),
            memory("activations and workspaces", plan.buffer_bytes()),
            memory("all together", all),
        ];
        // Everything but the fixed part grows with the sequences in a micro-batch.
        let one_more = self.memory(device, batch.rows + 1)?.total_bytes() - plan.total_bytes();
        let largest_batch = free_bytes.map(|free| {
            let rows = batch.rows as i64 + (free as i64 - all as i64) / one_more.max(1) as i64;
            rows.max(0) as u64
        });
        let flops = network.training_flops_per_token(config.model.context);
        Ok(Plan {
            device: self.device.name(),
            precision: self.device.precision().name(),
            parameters,
            state_format: format.to_string(),
            state_bytes_per_parameter: state as f64 / parameters as f64,
            bytes,
            free_bytes,
            largest_batch,
            updates: budget.updates(),
            update_tokens: budget.update_tokens,
            tokens: budget.tokens,
            tape_tokens: budget.tape_tokens,
            updates_allowed: budget.updates_allowed(),
            flops_per_update: flops * budget.update_tokens as f64,
            ceiling_gflops,
            assumed_share: ASSUMED_SHARE,
            estimated_s: flops * budget.tokens as f64 / (ceiling_gflops * 1e9 * ASSUMED_SHARE),
        })
    }

    /// The memory of a pass over `rows` sequences.
    fn memory<D: Operations>(&self, device: &D, rows: usize) -> Result<model::Plan, Error> {
        let batch = Batch { rows, time: self.config.model.context };
        Ok(model::Plan::new(device, self.network, batch, Purpose::Training)?)
    }
}
