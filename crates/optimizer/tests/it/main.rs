//! The CPU path against the authority, and the CUDA path against that, bit for bit; the
//! rules for bad numbers; and every refusal of bad input.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocation;
mod bad_input;
mod bench;
mod bias;
mod blocks;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_quantized;
#[cfg(feature = "cuda")]
#[path = "../../../gpu-kernels/tests/it/emulator.rs"]
mod emulator;
mod equality;
mod golden;
mod measure;
mod nonfinite;
mod norm;
mod pair;
mod parts;
#[cfg(feature = "cuda")]
mod placed;
mod properties;
mod quantized;
mod safety;
mod saved;
mod slices;
