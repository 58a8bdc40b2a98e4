//! Kernels built before, so that nobody waits for a compiler, or has to have one: where they are looked for, and
//! how a release and PyTorch's package make them.
//!
//! A file is named by the key of its program for an architecture, `<key>.cubin`, or for the
//! driver's own compiler, `<key>.ptx` of [`PTX_ARCHITECTURE`]. They lie in the folder that
//! [`FOLDER_VARIABLE`] names, or in `kernels` beside the program. Machine code comes before a compiler, PTX after
//! it; that of an older architecture of the same generation, such as `sm_80` for `sm_86`, serves too.

use std::env;
use std::fs;
use std::iter;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

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

/// The architectures that PyTorch's package carries machine code for: the first of each generation since the oldest
/// that kernels run on.
pub const CARRIED_ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90", "sm_100", "sm_120"];

/// The machine code of a program that a device of `architecture` runs, in one of `folders`.
#[must_use]
pub fn machine_code(program: &Program, architecture: &str, folders: &[PathBuf]) -> Option<Vec<u8>> {
    let has_any = folders.iter().any(|folder| folder.is_dir());
    let names = generation(architecture).into_iter().filter(|name| program.is_for(name));
    names.take_while(|_| has_any).find_map(|name| {
        let file = format!("{}.cubin", program.key(&name));
        read(&file, folders)
    })
}

/// An architecture, and the older ones of its generation, the newest first.
fn generation(architecture: &str) -> Vec<String> {
    // The last digit counts within a generation: `sm_89`, `sm_103`.
    let split = architecture.split_at_checked(architecture.len().saturating_sub(1));
    let minor = split.and_then(|(front, digit)| Some((front, digit.parse::<u32>().ok()?)));
    let Some((front, minor)) = minor else { return vec![architecture.to_owned()] };
    (0..=minor).rev().map(|minor| format!("{front}{minor}")).collect()
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
/// a release, for `architectures`, of which [`PTX_ARCHITECTURE`] may be one, into `folder`; returns the files in
/// order. They are compiled on as many threads as there are processors.
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
    let of_name = |&name| programs.iter().map(move |choices| (name, choices.as_slice()));
    let jobs: Vec<(&str, &[Program])> = architectures.iter().flat_map(of_name).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        let position = next.fetch_add(1, Ordering::Relaxed);
        jobs.get(position).map(|&(name, choices)| (position, name, choices))
    };
    let work = || -> Vec<(usize, Result<Vec<PathBuf>, Error>)> {
        let written =
            |(position, name, choices)| (position, write_choices(folder, compiler, name, choices));
        iter::from_fn(take).map(written).collect()
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if compiler.is_parallel() { processors } else { 1 };
    let mut written: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let work_of =
            |worker: ScopedJoinHandle<'_, Vec<_>>| worker.join().expect("no compiler panics");
        workers.into_iter().flat_map(work_of).collect()
    });
    written.sort_by_key(|&(position, _)| position);
    let files: Result<Vec<Vec<PathBuf>>, Error> =
        written.into_iter().map(|(_, files)| files).collect();
    Ok(files?.concat())
}

/// Writes the choices of a program for an architecture that a device would try.
fn write_choices(
    folder: &Path,
    compiler: &dyn Compiler,
    architecture: &str,
    choices: &[Program],
) -> Result<Vec<PathBuf>, Error> {
    let ending = if architecture.starts_with("sm_") { "cubin" } else { "ptx" };
    let mut files = Vec::new();
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
