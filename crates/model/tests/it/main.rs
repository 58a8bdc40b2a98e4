//! The laws that the network keeps, one module each.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../gpu-kernels/tests/it/emulator.rs"]
mod emulator;
mod samples;

mod batches;
mod cuda;
mod decoder;
mod errors;
mod golden;
mod gradients;
mod layout;
mod memory;
mod operations;
mod threads;
