//! Kernels built before, for machines without a compiler library: where they are looked for, and
//! how a release makes them.
//!
//! A file is named by the key of its program for an architecture, `<key>.cubin`, or for the
//! driver's own compiler, `<key>.ptx` of [`PTX_ARCHITECTURE`]. They lie in the folder that
//! [`FOLDER_VARIABLE`] names, or in `kernels` beside the program.

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

/// The image of a program for `architecture` in one of `folders`: its machine code, or else
/// its PTX.
#[must_use]
pub fn find(program: &Program, architecture: &str, folders: &[PathBuf]) -> Option<Vec<u8>> {
    let names = [
        format!("{}.cubin", program.key(architecture)),
        format!("{}.ptx", program.key(PTX_ARCHITECTURE)),
    ];
    let mut files = names.iter().flat_map(|name| folders.iter().map(move |f| f.join(name)));
    files.find_map(|file| fs::read(file).ok())
}

/// Builds the kernels of `programs`, as [`programs::released`](crate::programs::released) has those of
/// a release, for `architectures` and as PTX, into `folder`; returns the files in order.
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
    for architecture in architectures.iter().copied().chain([PTX_ARCHITECTURE]) {
        let ending = if architecture.starts_with("sm_") { "cubin" } else { "ptx" };
        for choices in programs {
            for program in choices.iter().filter(|program| program.is_for(architecture)) {
                let image = compiler.compile(program, architecture)?;
                let file = folder.join(format!("{}.{ending}", program.key(architecture)));
                write_aside(&file, &portable(program, &image.bytes))
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

/// PTX without the folder that it was compiled in, which the compiler writes before the names of sources; so
/// it has the same bytes wherever it is made. Machine code stays as it is.
fn portable(program: &Program, image: &[u8]) -> Vec<u8> {
    let sources: Vec<&str> =
        [program.source].iter().chain(program.headers).map(|source| source.file).collect();
    let named = |line: &[u8]| {
        let head = line.strip_prefix(b"\t.file\t")?;
        let path = str::from_utf8(head).ok()?.split('"').nth(1)?;
        let source = sources.iter().find(|source| path.strip_suffix(**source).is_some_and(ends))?;
        Some([&line[..line.len() - path.len() - 1], source.as_bytes(), b"\""].concat())
    };
    let lines = image.split(|&byte| byte == b'\n');
    lines.map(|line| named(line).unwrap_or_else(|| line.to_vec())).collect::<Vec<_>>().join(&b'\n')
}

/// Whether what stands before a file's name is a folder, or nothing.
fn ends(folder: &str) -> bool {
    folder.is_empty() || folder.ends_with(['/', '\\'])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prebuilt_ptx_does_not_name_the_folder_it_was_made_in() {
        let program = &crate::programs::split()[0];
        let ptx = |folder: &str| {
            let files = format!(
                "\t.file\t1 \"{folder}split.cu\"\n\t.file\t2 \"{folder}codec/split.cuh\"\n"
            );
            format!(".version 9.0\n{files}\t.loc\t1 2 3\n\0").into_bytes()
        };
        for folder in ["/", "/home/some one/", "C:\\made\\"] {
            assert_eq!(portable(program, &ptx(folder)), ptx(""));
        }
        let machine_code = b"\x7FELF\n\xff\n".to_vec();
        assert_eq!(portable(program, &machine_code), machine_code);
    }
}
