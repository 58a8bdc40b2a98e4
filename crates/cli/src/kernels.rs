//! `kernels`: writes kernels for machines without a compiler for them, as a release has them.

use anyhow::{Error, Result};
use gpu_kernels::compile::{Compiler as _, Nvrtc};
use gpu_kernels::{prebuilt, programs};
use serde_json::json;

use crate::args::Kernels;
use crate::devices::Missing;
use crate::output::{self, note};

pub fn run(args: &Kernels) -> Result<()> {
    let compiler = Nvrtc.version().map_err(|error| Error::new(Missing(error.to_string())))?;
    let mut architectures: Vec<&str> = args.architectures.iter().map(String::as_str).collect();
    architectures.push(prebuilt::PTX_ARCHITECTURE);
    let files = prebuilt::write(&args.output, &Nvrtc, &architectures, &programs::released())?;
    if args.json {
        let names = files.iter().filter_map(|file| file.file_name()?.to_str());
        return output::json(&json!({
            "compiler": compiler,
            "architecture": prebuilt::PTX_ARCHITECTURE,
            "files": names.collect::<Vec<_>>(),
        }));
    }
    note(&format!("{} files by {compiler} in {}", files.len(), args.output.display()));
    Ok(())
}
