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
