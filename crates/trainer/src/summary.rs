//! `summary.json`: the results of a finished run, for machines and for tables.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tape::aside::write_file;

use crate::error::Error;
use crate::manifest::Score;
use crate::read;

/// The results of a finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Updates done.
    pub updates: u64,
    /// Training tokens seen.
    pub tokens: u64,
    /// Source bytes of the target tokens seen.
    pub source_bytes: u64,
    /// Parameters of the model.
    pub parameters: u64,
    /// Mean training loss of the last update, in nats a token.
    pub train_loss_nats: f64,
    /// Mean loss over the whole validation tape at the end, in nats a token.
    pub validation_loss_nats: f64,
    /// `exp(validation_loss_nats)`.
    pub validation_perplexity: f64,
    /// The same in bits per source byte; absent without byte lengths.
    pub validation_bpb: Option<f64>,
    /// Targets of that validation.
    pub validation_tokens: u64,
    /// The first validation of the run.
    pub first_validation: Option<Score>,
    /// The validation with the lowest loss.
    pub best_validation: Option<Score>,
    /// Training tokens a second, updates only.
    pub tokens_per_s: f64,
    /// Name of the state format.
    pub state_format: String,
    /// Bytes of optimizer state, measured, over parameters.
    pub state_bytes_per_parameter: f64,
    /// Elements that were not finite.
    pub nonfinite: u64,
    /// First moments clamped at the largest code.
    pub saturated_m: u64,
    /// RMS values clamped at the largest code.
    pub saturated_r: u64,
    /// Name of the device.
    pub device: String,
    /// CPU threads.
    pub threads: usize,
    /// Precision of matrix products.
    pub precision: String,
    /// Seed of the run.
    pub seed: u64,
    /// Seconds of training time, validations and checkpoints included.
    pub wall_s: f64,
    /// Largest resident memory of the process, where the system tells.
    pub peak_bytes: Option<u64>,
    /// Version of the program.
    pub version: String,
    /// The sample, if one was asked for.
    pub sample: Option<String>,
    /// All that decided the bits of the run, by name: settings, and hashes of what it read.
    #[serde(default)]
    pub identity: BTreeMap<String, String>,
}

impl Summary {
    /// Reads the summary of a finished run.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that is no summary.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read::bytes(path).map_err(Error::io("read", path))?;
        serde_json::from_slice(&text).map_err(|error| Error::Damaged {
            file: path.to_owned(),
            line: error.line(),
            message: error.to_string(),
            remedy: "remove it, and `train --resume` on its run folder writes it again",
        })
    }

    /// Writes the summary.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(self).expect("a summary is plain data");
        text.push('\n');
        Ok(write_file(path, text.as_bytes())?)
    }
}

/// The largest resident memory of this process so far, in bytes; nothing where the system does not tell.
#[must_use]
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
