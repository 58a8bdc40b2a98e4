//! Proofs of the authority: closed forms, trajectories of another implementation,
//! f64 beside f32, the sum tree, and the rules of a whole step.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod closed_forms;
mod compare;
mod norm;
mod precision;
mod published;
mod step;
mod stopped;
mod torch;
