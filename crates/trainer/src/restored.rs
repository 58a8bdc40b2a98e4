//! A model read back from a checkpoint, to score tapes and to write text.

use std::path::Path;

use gpu_kernels::Buffer;
use model::ops::{Device as _, Operations};
use model::{Batch, Cpu, Cuda, Decoder, Gpt, Layout, Purpose};
use tape::reader::{Tape, TapeSource, Verify};
use tape::tokenizer::Tokenizer;

use crate::checkpoint::Checkpoint;
use crate::corpus::open_tape;
use crate::device::Device;
use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};
use crate::manifest::Manifest;
use crate::sample::{Sampling, sample};
use crate::world::World;

/// A model, its tokenizer, and what its checkpoint says of it.
#[derive(Debug)]
pub struct Restored {
    /// The manifest of the checkpoint.
    pub manifest: Manifest,
    /// The tokenizer that the model was trained with.
    pub tokenizer: Tokenizer,
    network: model::Config,
    parameters: Vec<f32>,
}

impl Restored {
    /// Reads a checkpoint, or the latest one of a run folder.
    ///
    /// # Errors
    ///
    /// A path without a checkpoint, and a damaged one.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint::find(path)?;
        let json = std::mem::take(&mut checkpoint.tokenizer);
        let tokenizer = Tokenizer::from_json(json, &checkpoint.directory.join("tokenizer.json"))?;
        let network = checkpoint.manifest.model.network()?;
        let parameters = checkpoint.parameters(&Layout::new(network))?;
        Ok(Self { manifest: checkpoint.manifest, tokenizer, network, parameters })
    }

    /// The shape of the network.
    #[must_use]
    pub fn network(&self) -> model::Config {
        self.network
    }

    /// All parameters, in the order of the network's layout.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Scores the model on all of a tape, `rows` windows at a time, on the current rayon pool. After every
    /// batch, `progress(windows done, windows in all)` is told.
    ///
    /// # Errors
    ///
    /// A tape that is damaged, too short or made with another tokenizer, and what the device refuses.
    pub fn evaluate(
        &self,
        device: &Device,
        source: &TapeSource,
        rows: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Evaluation, Error> {
        let tape = open_tape(source, &self.tokenizer, Verify::Now)?;
        let score = Score { network: self.network, tape: &tape, rows };
        match device {
            Device::Cpu => score.on(Cpu::new(), &self.parameters, progress),
            Device::Cuda(cuda) => {
                let parameters = self.uploaded(cuda)?;
                score.on(cuda.clone(), &parameters, progress)
            }
        }
    }

    /// Samples a continuation of `prompt` and hands it over piece by piece, until `take` says no; an empty prompt
    /// starts a new document. Returns the number of tokens drawn.
    ///
    /// # Errors
    ///
    /// A prompt that fills the context, and what the device refuses.
    pub fn sample(
        &self,
        device: &Device,
        prompt: &str,
        sampling: &Sampling,
        take: &mut dyn FnMut(&str) -> bool,
    ) -> Result<usize, Error> {
        match device {
            Device::Cpu => {
                let mut decoder = Decoder::new(Cpu::new(), self.network)?;
                sample(&mut decoder, &self.parameters, &self.tokenizer, prompt, sampling, take)
            }
            Device::Cuda(cuda) => {
                let parameters = self.uploaded(cuda)?;
                let mut decoder = Decoder::new(cuda.clone(), self.network)?;
                sample(&mut decoder, &parameters, &self.tokenizer, prompt, sampling, take)
            }
        }
    }

    /// The parameters in the memory of a device.
    fn uploaded(&self, cuda: &Cuda) -> Result<Buffer<f32>, Error> {
        let mut parameters = cuda.floats(self.parameters.len())?;
        cuda.upload(&mut parameters, &self.parameters)?;
        Ok(parameters)
    }
}

/// A tape to be scored.
struct Score<'a> {
    network: model::Config,
    tape: &'a Tape,
    rows: usize,
}

impl Score<'_> {
    fn on<D: Operations>(
        &self,
        device: D,
        parameters: &D::Floats,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Evaluation, Error> {
        let batch = Batch { rows: self.rows, time: self.network.context() };
        let mut gpt = Gpt::new(device, self.network, batch, Purpose::Evaluation)?;
        let alone = World::alone();
        let found = evaluate(&mut gpt, parameters, self.tape, None, &alone, &mut |done, all| {
            progress(done, all);
            true
        })?;
        Ok(found.expect("nobody said no"))
    }
}
