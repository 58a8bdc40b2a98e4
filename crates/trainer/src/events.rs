//! What happens in a run, told to whoever listens.
//!
//! The trainer never prints. It hands every [`Event`] to an [`Observer`]: the metrics file, the
//! terminal, a test. Events are plain data; the ones that are worth keeping are the lines of
//! `metrics.jsonl`, written in exactly this form.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Text is being made into tapes; told often.
    Preparing {
        /// Source bytes done.
        bytes: u64,
        /// Source bytes in all.
        bytes_total: u64,
    },
    /// A device is made ready: what is made for it once, and kept for later runs.
    Readying {
        /// Kernel sources that were compiled so far.
        kernels: u64,
        /// Matrix products whose algorithms were timed so far.
        products: u64,
    },
    /// The run begins, or goes on.
    Started {
        /// Updates that were done before.
        update: u64,
        /// Updates of the whole run.
        updates_total: u64,
        /// Parameters of the model.
        parameters: u64,
        /// Training tokens of the whole run.
        tokens_total: u64,
        /// Name of the state format.
        state_format: String,
        /// Name of the device.
        device: String,
        /// CPU threads.
        threads: usize,
        /// Bytes of optimizer state of each rank, where they divide it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rank_state_bytes: Vec<u64>,
        /// Processes that share the run.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        ranks: usize,
    },
    /// An update was made.
    Update(Update),
    /// A validation goes on; told once per micro-batch.
    Validating {
        /// Validation sequences done.
        windows: u64,
        /// Validation sequences in all.
        windows_total: u64,
    },
    /// A validation ended.
    Validation(Validation),
    /// The whole validation tape was scored at the end of the run.
    FinalValidation(Validation),
    /// A checkpoint is complete on disk.
    Checkpoint {
        /// Updates done at that point.
        update: u64,
        /// Its directory.
        path: PathBuf,
    },
    /// Part of a sample.
    Sample {
        /// The next piece of text.
        text: String,
    },
    /// The run stopped before its end because it was asked to.
    Stopped {
        /// Updates done.
        update: u64,
    },
    /// The run reached its end.
    Finished {
        /// Updates done.
        update: u64,
        /// Seconds of training time, all parts of the run together.
        elapsed_s: f64,
    },
}

/// What one update did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Number of the update, counted from 1.
    pub update: u64,
    /// Training tokens seen in all.
    pub tokens: u64,
    /// The virtual epoch that they end in, counted from 1; absent where a tape is read in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Source bytes that they stand for; absent without byte lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_bytes: Option<u64>,
    /// Mean next-token loss of this update, in nats a token. In JSON, `null` stands for a loss that is not
    /// finite, which only a skipped update may have.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss_nats: f64,
    /// The same in bits per source byte; absent without byte lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bpb: Option<f64>,
    /// Peak learning rate scaled by the schedule.
    pub learning_rate: f64,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
    /// Elements that were not finite.
    pub nonfinite: u64,
    /// First moments clamped at the largest code.
    pub saturated_m: u64,
    /// RMS values clamped at the largest code.
    pub saturated_r: u64,
    /// Whether the update was dropped.
    pub skipped: bool,
    /// Wall-clock time of this update, in milliseconds.
    pub ms: f64,
    /// The time that each rank computed before gradients were added, in milliseconds; absent where a process is alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_ms: Vec<f64>,
    /// How long the fastest rank waited for the slowest, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_wait_ms: Option<f64>,
    /// Training tokens a second, over this update.
    pub tokens_per_s: f64,
    /// Seconds of training time so far, earlier parts of the run included.
    pub elapsed_s: f64,
}

/// What a validation found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Updates done before it.
    pub update: u64,
    /// Training tokens seen before it.
    pub tokens: u64,
    /// Mean next-token loss, in nats a token.
    pub loss_nats: f64,
    /// `exp(loss_nats)`.
    pub perplexity: f64,
    /// Bits per source byte; absent without byte lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bpb: Option<f64>,
    /// Target tokens that were scored.
    pub validation_tokens: u64,
    /// Whether they are all of the tape.
    pub whole: bool,
    /// Seconds of training time so far, earlier parts of the run included.
    pub elapsed_s: f64,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Somebody who listens.
pub trait Observer: Send {
    /// Takes one event.
    fn observe(&mut self, event: &Event);
}

impl<F: FnMut(&Event) + Send> Observer for F {
    fn observe(&mut self, event: &Event) {
        self(event);
    }
}
