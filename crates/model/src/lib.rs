//! A GPT with hand-written forward and backward passes, written once for every device.
//!
//! The network is GPT-2's: learned positions, LayerNorm with bias before each branch, GELU in its
//! tanh form, biases on every linear layer, a final LayerNorm, and an output head that shares the
//! token table. [`Gpt`] runs it over whole windows, forward and backward; [`Decoder`] runs it one
//! token at a time against a key/value cache. Both are written over the operation traits of
//! [`ops`], so a device brings memory and a handful of operations and never a second copy of the
//! network. [`Cpu`] is such a device, in `f32` for work and in `f64` for checking; [`Cuda`] is another.
//!
//! ```
//! use model::{Batch, Config, Cpu, Dimensions, Gpt, Purpose};
//!
//! let config = Config::new(Dimensions { vocabulary: 50, context: 8, channels: 16, layers: 1, heads: 2 })?;
//! let batch = Batch { rows: 1, time: 8 };
//! let mut gpt = Gpt::new(Cpu::<f32>::new(), config, batch, Purpose::Training)?;
//! let parameters = gpt.layout().initial(1);
//! let mut gradients = vec![0.0; parameters.len()];
//! gpt.upload(&[1, 2, 3, 4, 5, 6, 7, 8], &[2, 3, 4, 5, 6, 7, 8, 9], 1.0 / 8.0)?;
//! gpt.forward_backward(&parameters, &mut gradients, false)?;
//! // An untrained network knows nothing: every token is as likely as any other.
//! assert!((gpt.loss()?.mean() - 50_f64.ln()).abs() < 0.2);
//! # Ok::<(), model::Error>(())
//! ```
//!
//! What does not live here: the update of the parameters (crate `optimizer`), where tokens come
//! from (crate `tape`), and when to do what (crate `trainer`).
//!
//! # Shape letters
//!
//! | letter | meaning |
//! |---|---|
//! | B | batch: windows in one pass |
//! | T | time: tokens in a window; at most the context, the number of learned positions |
//! | C | channels: width of the residual stream |
//! | H | heads |
//! | D | head size, C / H |
//! | V | vocabulary |
//! | L | layers |
//! | N | parameters |
//!
//! Matrices are row-major. A row of an activation is one token; rows are ordered window by window.

mod error;

mod config;
mod params;

mod branch;
mod chain;
mod device;
pub mod ops;
mod shape;

mod activations;
mod network;

mod beside;
mod gpt;

mod decode;

mod parts;

mod cpu;
mod cuda;

pub use activations::{Plan, PlannedBuffer};
pub use config::{Config, Dimensions};
pub use cpu::{Cpu, Element, product_ceiling_gflops};
pub use cuda::Cuda;
pub use decode::Decoder;
pub use error::Error;
pub use gpt::{Gpt, LossSum};
pub use params::{Layout, Role, Slot};
pub use parts::PartTimes;

/// The target id of a position that has no next token: it adds nothing to loss or gradients.
pub const IGNORED: u32 = u32::MAX;

/// What a [`Gpt`] will be asked to do, which decides how much memory it plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Forward and backward: the activations of every layer are kept.
    Training,
    /// Forward and backward: of a layer only the residual stream is kept, and the backward pass computes the
    /// rest of its activations once more. It has the bits of [`Purpose::Training`], in less memory and more
    /// time.
    TrainingRecomputed,
    /// Forward only: all layers share the buffers of one.
    Evaluation,
}

impl Purpose {
    /// Whether there is a backward pass.
    pub fn is_training(self) -> bool {
        self != Purpose::Evaluation
    }

    /// What its operations are made for: they do not care what is kept.
    pub(crate) fn of_operations(self) -> Purpose {
        if self.is_training() { Purpose::Training } else { Purpose::Evaluation }
    }
}

/// The windows of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// B: how many windows.
    pub rows: usize,
    /// T: how many tokens in each.
    pub time: usize,
}

impl Batch {
    /// B * T, the number of tokens in the pass.
    pub fn tokens(self) -> usize {
        self.rows * self.time
    }
}
