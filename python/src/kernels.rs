//! The kernels that the package carries, for whoever builds it.

use std::path::PathBuf;

use gpu_kernels::compile::{Compiler as _, Nvrtc};
use gpu_kernels::{prebuilt, programs};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::engine::refused;

/// The architectures that kernels are written for unless somebody says otherwise.
#[pyfunction]
pub fn carried_architectures() -> [&'static str; 4] {
    prebuilt::CARRIED_ARCHITECTURES
}

/// Compiles the kernels that the package carries for these architectures into a folder, and says with which compiler.
/// An OSError says that there is none.
#[pyfunction]
pub fn write_kernels(
    py: Python<'_>,
    folder: PathBuf,
    architectures: Vec<String>,
) -> PyResult<String> {
    let compiler = Nvrtc.version().map_err(|error| PyOSError::new_err(error.to_string()))?;
    let names: Vec<&str> = architectures.iter().map(String::as_str).collect();
    let programs = programs::carried();
    py.detach(|| prebuilt::write(&folder, &Nvrtc, &names, &programs)).map_err(refused)?;
    Ok(compiler)
}
