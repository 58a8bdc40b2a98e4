//! The authority: slow, scalar, obvious AdamW that everything else is compared
//! with.
//!
//! | file | what it holds |
//! |---|---|
//! | [`adamw`] | one parameter, one update: the textbook in f64, the pinned order in f32 |
//! | [`norm`] | the global gradient norm, its one sum tree, the clip scale |
//! | [`step`] | one update of a whole model through its state formats, with all counters |
//! | `blocks` | stored moments of the formats that keep elements in blocks |
//! | [`compare`] | equality of bits, distance in ulps, the first difference |
//!
//! ```
//! use reference::adamw::update_f32;
//! use reference::{Hyperparameters, Parameter, Scalars};
//!
//! let hyperparameters =
//!     Hyperparameters { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
//! let before = Parameter { p: 1.0, m: 0.0, v: 0.0 };
//! let after = update_f32(Scalars::at(hyperparameters, 1), before, 3.0);
//! // The first step is the learning rate, whatever the gradient.
//! assert!((after.p - 0.9).abs() < 1e-6);
//! ```
//!
//! It imports `formats`, whose codecs have their own proofs, and nothing of
//! the code that it judges. It is for tests and for the self-check of the command
//! line; training never runs it. Nothing here is parallel, blocked or unrolled:
//! where a fast path disagrees, the fast path is wrong.

pub mod adamw;
mod blocks;
pub mod compare;
pub mod norm;
pub mod step;

pub use adamw::{BlockScalars, Hyperparameters, Parameter, Scalars};
pub use compare::{Difference, first_difference};
pub use norm::GradientNorm;
pub use step::{Location, Model, Report, State, Tensor};
