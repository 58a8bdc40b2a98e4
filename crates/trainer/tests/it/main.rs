//! Tests of the trainer through its public face.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod budget;
mod checkpoint;
mod config;
mod documents;
mod resume;
mod run;
mod tiny;
mod transformers;
