//! Devices named on the command line, for the commands that work on one directly.

use std::fmt;

use anyhow::{Error, Result, anyhow};
use gpu_kernels::Gpu;

use crate::output::Usage;

/// A device, or the compiler for one, that was asked for and is not there, which ends with exit code 3.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// What a device name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// All there are.
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda(usize),
}

/// Reads `auto`, `cpu`, `cuda` or `cuda:N`.
pub fn parse(name: &str) -> Result<Name> {
    match name {
        "auto" => Ok(Name::Auto),
        "cpu" => Ok(Name::Cpu),
        "cuda" => Ok(Name::Cuda(0)),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()).map_or_else(
            || Err(anyhow!(Usage(format!("expected auto, cpu, cuda or cuda:N, found `{name}`")))),
            |ordinal| Ok(Name::Cuda(ordinal)),
        ),
    }
}

/// Opens a CUDA device that was asked for by name.
pub fn open(ordinal: usize) -> Result<Gpu> {
    Gpu::open(ordinal)
        .map_err(|error| Error::new(Missing(format!("device cuda:{ordinal}: {error}"))))
}

/// Opens every CUDA device; none where there is no driver.
pub fn open_all() -> Result<Vec<Gpu>> {
    let count = Gpu::count().unwrap_or(0);
    (0..count).map(open).collect()
}
