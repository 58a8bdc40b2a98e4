//! The laws of this crate, seen from outside.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says so"
)]

mod contract;
mod fixture;
mod loader;
mod prepare;
mod reader;
mod rows;
mod safety;
mod sets;
mod sources;
mod stories;
mod tokenizer;
mod windows;
