//! How far a pass on a device is from the same pass in f64, on a model in the middle of its training.
//!
//! Weights that were just drawn say little: their logits are all near zero. So the weights here are those of
//! a short run.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use gpu_kernels::Precision;
use model::ops::Operations;
use model::{Batch, Cpu, Gpt, Purpose};
use serde::Serialize;
use tape::stories::Stories;

use crate::device::Device;
use crate::error::Error;
use crate::events::Event;
use crate::restored::Restored;
use crate::run::{Ending, Request, run_on};
use crate::settings::Settings;

/// The short run.
const RUN: &str = include_str!("parity.toml");

/// The story that is scored; no run trains on it.
const STORY_SEED: u64 = 1 << 40;

/// Relative distances of a pass from the same in f64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distances {
    /// Of the summed loss.
    pub loss: f64,
    /// Of all logits together, by their Euclidean norm.
    pub logits: f64,
    /// Of all gradients together, likewise.
    pub gradients: f64,
}

impl Distances {
    /// What is promised of a precision.
    ///
    /// A sum of n products errs by about sqrt(n) times the rounding of its factors, which is 2^-24 in fp32, 2^-11
    /// in tf32 and 2^-9 in bf16, and a few dozen such sums follow one another. Errors of single logits mostly cancel
    /// in the loss.
    #[must_use]
    pub fn bounds(precision: Precision) -> Self {
        let [loss, logits, gradients] = match precision {
            Precision::Fp32 => [1e-5, 1e-4, 1e-4],
            Precision::Tf32 => [1e-3, 1e-2, 2e-2],
            Precision::Bf16 => [2e-3, 2e-2, 5e-2],
        };
        Self { loss, logits, gradients }
    }

    /// Whether none is beyond its bound, or no number.
    #[must_use]
    pub fn are_within(&self, bounds: &Self) -> bool {
        self.loss < bounds.loss && self.logits < bounds.logits && self.gradients < bounds.gradients
    }

    /// Each with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 3] {
        [("loss", self.loss), ("logits", self.logits), ("gradients", self.gradients)]
    }
}

/// A small model after a short run on the processor, and a window of text that it never saw.
#[derive(Debug)]
pub struct Trained {
    model: Restored,
    window: Vec<u32>,
}

impl Trained {
    /// Makes the run, in a temporary folder.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn new() -> Result<Self, Error> {
        let temporary = tempfile::tempdir().map_err(Error::io("create", &std::env::temp_dir()))?;
        let mut settings = Settings::new();
        settings.add_file(RUN, Path::new("parity.toml"))?;
        let stop = AtomicBool::new(false);
        let folder = temporary.path().join("run");
        let request =
            Request { settings: &settings, folder: folder.clone(), resume: false, stop: &stop };
        let Ending::Finished(_) = run_on(&request, &Device::Cpu, &mut |_: &Event| {})? else {
            unreachable!("nobody asks it to stop")
        };
        let model = Restored::open(&folder)?;
        let length = model.network().context() + 1;
        let mut window = Vec::new();
        for story in Stories::new(STORY_SEED) {
            window.extend(model.tokenizer.encode(&story));
            if window.len() >= length {
                break;
            }
        }
        window.truncate(length);
        Ok(Self { model, window })
    }

    /// The distances of a pass on `device` from the same in f64 on the processor.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn distances(&self, device: &Device) -> Result<Distances, Error> {
        let expected = self.pass(Cpu::<f64>::new())?;
        let found = match device {
            Device::Cpu => self.pass(Cpu::<f32>::new())?,
            Device::Cuda(cuda) => self.pass(cuda.clone())?,
        };
        Ok(Distances {
            loss: (found.nats / expected.nats - 1.0).abs(),
            logits: distance(&found.logits, &expected.logits),
            gradients: distance(&found.gradients, &expected.gradients),
        })
    }

    fn pass<D: Operations>(&self, device: D) -> Result<Pass, Error> {
        let Self { model, window } = self;
        let (tokens, targets) = (&window[..window.len() - 1], &window[1..]);
        let batch = Batch { rows: 1, time: tokens.len() };
        let mut host = model.parameters().to_vec();
        let mut parameters = device.floats(host.len())?;
        device.upload(&mut parameters, &host)?;
        let mut gradients = device.floats(host.len())?;
        let mut gpt = Gpt::new(device, model.network(), batch, Purpose::Training)?;
        gpt.upload(tokens, targets, 1.0 / tokens.len() as f32)?;
        gpt.forward_backward(&parameters, &mut gradients, false)?;
        gpt.device().download(&gradients, &mut host)?;
        Ok(Pass {
            nats: gpt.loss()?.nats,
            logits: gpt.logits(&parameters, 0..tokens.len())?,
            gradients: host,
        })
    }
}

/// What comes out of a pass.
struct Pass {
    nats: f64,
    logits: Vec<f32>,
    gradients: Vec<f32>,
}

/// The norm of the difference over that of what was expected.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    let whole: f64 = expected.iter().map(|&e| square(f64::from(e))).sum();
    (error / whole).sqrt()
}
