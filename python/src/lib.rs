//! What the package `packed_adamw` calls: one optimizer over tensors that PyTorch owns, by their addresses.
//!
//! Python keeps the tensors alive, knows the dtypes and the streams, and hands over addresses; everything about
//! them is checked there. Everything about AdamW is here, and is the crate `optimizer`.

mod cpu;
mod cuda;
mod engine;
mod kernels;
mod state;

use pyo3::prelude::*;

/// The native half of the package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::kernels::{carried_architectures, write_kernels};
    #[pymodule_export]
    use super::state::{block_elements, default_bias, formats, join};
}
