//! The CPU path against the authority, bit for bit; its rules for bad numbers; and
//! every refusal of bad input.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocation;
mod bad_input;
mod bench;
mod bias;
mod equality;
mod nonfinite;
mod norm;
mod pair;
mod properties;
mod saved;
mod slices;
