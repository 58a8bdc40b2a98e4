//! The laws that the network keeps, one module each.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod samples;

mod batches;
mod decoder;
mod errors;
mod golden;
mod gradients;
mod layout;
mod memory;
mod operations;
mod threads;
