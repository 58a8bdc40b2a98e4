//! `cargo xtask verify ZIP`: whether an archive is what a release writes, to the last byte.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::archive::{self, BYTES_MAX, Files, MANIFEST};
use crate::arguments::Arguments;
use crate::{checkout, kernels};

/// How `verify` is called.
pub const USAGE: &str = "\
cargo xtask verify ZIP [--sha256 HASH] [--commit NAME]
    reads an archive that may be anybody's, compares every file with the list of hashes, makes the archive again and
    compares bytes; with --sha256 also its hash, with --commit also every file with that commit of this checkout.";

/// Runs the task.
pub fn run(root: &Path, mut arguments: Arguments) -> Result<()> {
    let expected = arguments.value("--sha256")?;
    let commit = arguments.value("--commit")?;
    let path = arguments.word("the ZIP")?;
    arguments.end()?;
    let found = fs::metadata(&path).with_context(|| path.clone())?;
    ensure!(found.is_file(), "{path}: expected an archive, found no file");
    let size = found.len();
    ensure!(size <= BYTES_MAX, "{path}: {size} bytes; a release has at most {BYTES_MAX}");
    let bytes = fs::read(&path).with_context(|| path.clone())?;
    let sha256 = archive::sha256(&bytes);
    if let Some(expected) = expected {
        ensure!(
            expected.eq_ignore_ascii_case(&sha256),
            "{path}: SHA-256 is {sha256}, expected {expected}"
        );
    }
    let files = archive::verified(&bytes).with_context(|| path.clone())?;
    if let Some(commit) = commit {
        must_equal(&files, &checkout::of_commit(root, &commit)?.files)
            .with_context(|| format!("{path}: compared with {commit}"))?;
    }
    println!("{sha256}  {path}");
    eprintln!("good: {} files, and {MANIFEST}", files.len());
    Ok(())
}

/// Compares an archive's files, but for prebuilt kernels, with those of a commit.
fn must_equal(files: &Files, of_commit: &Files) -> Result<()> {
    let is_kernel = |path: &str| path.starts_with(&format!("{}/", kernels::FOLDER));
    let mut faults = Vec::new();
    for (path, file) in files.iter().filter(|(path, _)| !is_kernel(path)) {
        match of_commit.get(path) {
            None => faults.push(format!("{path}: extra: not in the commit")),
            Some(original) if original != file => faults.push(format!("{path}: changed")),
            Some(_) => {}
        }
    }
    let missing = of_commit.keys().filter(|path| !files.contains_key(*path));
    faults.extend(missing.map(|path| format!("{path}: missing: in the commit")));
    ensure!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    Ok(())
}
