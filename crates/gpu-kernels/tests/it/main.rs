//! Kernels compiled for every architecture; their text against the authority; memory, recordings
//! and errors of a device, or of the emulated one.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod absent;
mod adamw;
mod attention;
mod attention_reference;
mod attention_times;
mod branch;
mod cached;
mod chain;
mod chain_times;
mod compiles;
mod depth_tiles;
mod emulator;
mod linear_layers;
mod memory;
mod nccl;
mod network;
mod norm;
mod pair;
mod slots;
mod split;
