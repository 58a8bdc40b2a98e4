//! Updates on made-up tokens: a sanity check, and the speed of a training step by part.
//!
//! Both need no data: the tokens are counter-hashed, so every run sees the same ones.

use std::time::{Duration, Instant};

use formats::RandomStream;
use model::Cpu;
use optimizer::{AdamW as _, CpuAdamW};
use serde::Serialize;
use tape::tokenizer::Tokenizer;

use crate::config::{Config, Source};
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::settings::Settings;
use crate::summary::peak_bytes;
use crate::{run, setup};

/// What one update on made-up tokens did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Smoke {
    /// Name of the device.
    pub device: &'static str,
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
    pub device: &'static str,
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
    let device = Device::choose(&config.run.device)?;
    run::in_pool(config.run.threads, || {
        let mut trial = Trial::new(&config)?;
        let tokens = trial.tokens();
        let before = trial.gradients()? / tokens as f64;
        trial.engine.step(1, &[config.schedule.peak; 2])?;
        let after = trial.gradients()? / tokens as f64;
        let report = trial.engine.optimizer_mut().report()?;
        let uniform_loss_nats = (trial.vocabulary as f64).ln();
        Ok(Smoke {
            device: device.name(),
            parameters: trial.engine.gpt().layout().parameters() as u64,
            state_format: config.optimizer.format.to_string(),
            state_bytes: trial.engine.optimizer().state_bytes(),
            tokens,
            loss_before_nats: before,
            loss_after_nats: after,
            uniform_loss_nats,
            gradient_norm: report.gradient_norm,
            nonfinite: report.nonfinite,
            good: report.nonfinite == 0 && before.is_finite() && after < before,
        })
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
    assert!(updates > 0, "nothing to measure");
    let config = Config::new(settings)?;
    let device = Device::choose(&config.run.device)?;
    run::in_pool(config.run.threads, || {
        let ceiling_gflops = model::product_ceiling_gflops();
        let mut trial = Trial::new(&config)?;
        for update in 0..warm_up {
            trial.update(update as u64 + 1, config.schedule.peak)?;
        }
        trial.engine.gpt().device().take_part_times();
        let mut times = Vec::new();
        let mut stepping = Duration::ZERO;
        for update in warm_up..warm_up + updates {
            let begun = Instant::now();
            stepping += trial.update(update as u64 + 1, config.schedule.peak)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        let network = trial.engine.gpt().device().take_part_times();
        let mut parts: Vec<(&'static str, Duration)> = network.named().into();
        parts.push(("optimizer", stepping));
        let timed: Duration = parts.iter().map(|&(_, time)| time).sum();
        let all = Duration::from_secs_f64(times.iter().sum());
        parts.push(("other", all.saturating_sub(timed)));

        times.sort_by(f64::total_cmp);
        let median_s = times[times.len() / 2];
        let tokens = trial.tokens();
        let flops = trial.engine.gpt().config().training_flops_per_token(config.model.context);
        let model_tflops = flops * tokens as f64 / median_s / 1e12;
        Ok(Speed {
            device: device.name(),
            model: trial.describe(),
            precision: "fp32",
            state_format: config.optimizer.format.to_string(),
            batch: config.run.batch * config.run.accumulation,
            context: config.model.context,
            ms_per_update: median_s * 1e3,
            tokens_per_s: tokens as f64 / median_s,
            model_tflops,
            share_of_peak: model_tflops / (ceiling_gflops / 1e3),
            peak_tflops: ceiling_gflops / 1e3,
            peak_bytes: peak_bytes(),
            launches: 0,
            host_us_per_update: 0.0,
            parts: parts
                .into_iter()
                .map(|(name, time)| PartTime {
                    name,
                    ms: time.as_secs_f64() * 1e3 / updates as f64,
                })
                .collect(),
        })
    })
}

/// An engine and the made-up tokens of one update.
struct Trial {
    engine: Engine<Cpu<f32>, CpuAdamW>,
    tape: Vec<u32>,
    vocabulary: usize,
}

impl Trial {
    fn new(config: &Config) -> Result<Self, Error> {
        let tokenizer = match config.data.source {
            Source::Stories { vocabulary, .. } => vocabulary + 1,
            Source::Tapes { .. } => Tokenizer::bundled().vocabulary() as usize,
        };
        let network = setup::network(&config.model, tokenizer)?;
        let seed = config.run.seed;
        let engine = setup::engine(config, network, Cpu::new(), CpuAdamW::new, |layout| {
            Ok(layout.initial(seed))
        })?;
        let vocabulary = network.vocabulary();
        let count = config.run.batch * config.run.accumulation * config.model.context + 1;
        let words = RandomStream::new(seed, 0, 0, 0);
        let tape = (0..count as u32).map(|index| words.word(index) % vocabulary as u32).collect();
        Ok(Self { engine, tape, vocabulary })
    }

    fn tokens(&self) -> u64 {
        self.tape.len() as u64 - 1
    }

    /// Summed loss; the gradients are left in the engine.
    fn gradients(&mut self) -> Result<f64, Error> {
        let range = 0..self.tokens();
        self.engine.gradients(&self.tape, range)
    }

    /// One update; the time of the optimizer's part.
    fn update(&mut self, update: u64, learning_rate: f64) -> Result<Duration, Error> {
        self.gradients()?;
        let begun = Instant::now();
        self.engine.step(update, &[learning_rate; 2])?;
        Ok(begun.elapsed())
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
