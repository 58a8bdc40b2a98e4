//! Kernels built before, so that nobody waits for a compiler, or has to have one: where they are looked for, and
//! how a release and PyTorch's package make them.
//!
//! A file is named by the key of its program for an architecture, `<key>.cubin`, or for the
//! driver's own compiler, `<key>.ptx` of [`PTX_ARCHITECTURE`]. They lie in the folder that
//! [`FOLDER_VARIABLE`] names, or in `kernels` beside the program. Machine code comes before a compiler, PTX after
//! it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cache::write_aside;
use crate::compile::{Compiler, Program};

/// The environment variable that names the folder.
pub const FOLDER_VARIABLE: &str = "PACKED_ADAMW_KERNELS";

/// The oldest architecture that kernels run on; its PTX serves all later ones.
pub const PTX_ARCHITECTURE: &str = "compute_80";

/// The folders where prebuilt kernels may lie.
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    let named = env::var_os(FOLDER_VARIABLE).filter(|value| !value.is_empty());
    let program = env::current_exe().ok();
    let beside = program.and_then(|program| Some(program.parent()?.join("kernels")));
    named.map(PathBuf::from).into_iter().chain(beside).collect()
}

/// The machine code of a program for `architecture` in one of `folders`.
#[must_use]
pub fn machine_code(program: &Program, architecture: &str, folders: &[PathBuf]) -> Option<Vec<u8>> {
    read(&format!("{}.cubin", program.key(architecture)), folders)
}

/// The PTX of a program in one of `folders`.
#[must_use]
pub fn ptx(program: &Program, folders: &[PathBuf]) -> Option<Vec<u8>> {
    read(&format!("{}.ptx", program.key(PTX_ARCHITECTURE)), folders)
}

fn read(name: &str, folders: &[PathBuf]) -> Option<Vec<u8>> {
    folders.iter().find_map(|folder| fs::read(folder.join(name)).ok())
}

/// Builds the kernels of `programs`, as [`programs::released`](crate::programs::released) has those of
/// a release, for `architectures`, of which [`PTX_ARCHITECTURE`] is one, into `folder`; returns the files in order.
///
/// Of the choices of each program those are built that a device would try: up to the first that
/// keeps all its numbers in registers, which PTX does not tell.
///
/// # Errors
///
/// What the compiler refuses, and [`Error::Write`].
pub fn write(
    folder: &Path,
    compiler: &dyn Compiler,
    architectures: &[&str],
    programs: &[Vec<Program>],
) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for &architecture in architectures {
        let ending = if architecture.starts_with("sm_") { "cubin" } else { "ptx" };
        for choices in programs {
            for program in choices.iter().filter(|program| program.is_for(architecture)) {
                let image = compiler.compile(program, architecture)?;
                let file = folder.join(format!("{}.{ending}", program.key(architecture)));
                write_aside(&file, &image.bytes)
                    .map_err(|e| Error::Write { path: file.clone(), message: e.to_string() })?;
                files.push(file);
                if ending == "cubin" && !spills(&image.log) {
                    break;
                }
            }
        }
    }
    Ok(files)
}

/// Whether a compiler's log tells of numbers that were kept in memory for want of registers.
#[must_use]
pub fn spills(log: &str) -> bool {
    let counts = log.split(" bytes ").zip(log.split(" bytes ").skip(1));
    let mut frames = counts.filter(|(_, after)| {
        ["stack frame", "spill stores", "spill loads"].iter().any(|what| after.starts_with(what))
    });
    frames.any(|(before, _)| {
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
        digits != "0"
    })
}
