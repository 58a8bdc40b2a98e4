//! Tests of the trainer through its public face.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../gpu-kernels/tests/it/emulator.rs"]
mod emulator;

mod bad_input;
mod budget;
mod checkpoint;
mod config;
mod convert;
mod cuda;
mod documents;
mod ranks;
mod resume;
mod run;
mod scaling;
mod shadow;
mod shuffled;
mod tensorboard;
mod tiny;
mod transformers;
