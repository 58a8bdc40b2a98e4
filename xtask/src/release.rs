//! `cargo xtask release`: the archive of a version and the page that goes with it.
//!
//! The archive holds the tracked files of the commit as git has them and, where their compiler is at hand, prebuilt
//! kernels. Its bytes follow from these alone ([`archive`]).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::archive::{self, BYTES_MAX, Files};
use crate::arguments::Arguments;
use crate::checkout::{self, Checkout};
use crate::kernels::{self, Kernels};
use crate::page::Facts;
use crate::workspace;

/// How `release` is called.
pub const USAGE: &str = "\
cargo xtask release [--version V] [--output DIR] [--kernels auto|none|require] [--program FILE] [--allow-dirty]
    writes packed-adamw-V.zip, and its page as .md and .html, into target/release-files and prints the ZIP's hash;
    with kernels prebuilt by NVRTC, where that is to be had, the name says so. FILE is a built program to ask for
    kernels instead of building one.";

/// Which kernels an archive gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Auto,
    None,
    Require,
}

/// Runs the task.
pub fn run(root: &Path, mut arguments: Arguments) -> Result<()> {
    let version = arguments.value("--version")?;
    let output = arguments.value("--output")?.map(PathBuf::from);
    let wanted = match arguments.value("--kernels")?.as_deref() {
        None | Some("auto") => Wanted::Auto,
        Some("none") => Wanted::None,
        Some("require") => Wanted::Require,
        Some(other) => bail!("--kernels takes auto, none or require, found `{other}`"),
    };
    let program = arguments.value("--program")?.map(PathBuf::from);
    let allow_dirty = arguments.flag("--allow-dirty");
    arguments.end()?;

    let checkout = checkout::of_work_tree(root)?;
    if !checkout.changes.is_empty() && !allow_dirty {
        bail!(
            "the tree differs from its commit; commit, or give --allow-dirty to release tracked files as they are:\n{}",
            checkout.changes.join("\n")
        );
    }
    let version = match version {
        Some(version) => version,
        None => workspace::version(&checkout.files)?,
    };
    must_be_version(&version)?;
    let kernels = match wanted {
        Wanted::None => None,
        Wanted::Auto | Wanted::Require => kernels::build(root, program.as_deref())?,
    };
    ensure!(
        kernels.is_some() || wanted != Wanted::Require,
        "no NVRTC to build kernels with; `packed-adamw doctor` says where it was looked for"
    );
    let folder = output.unwrap_or_else(|| root.join("target/release-files"));
    write(&checkout, &version, kernels.as_ref(), &folder)
}

/// Writes archive and page into `folder` and says what they are.
fn write(
    checkout: &Checkout,
    version: &str,
    kernels: Option<&Kernels>,
    folder: &Path,
) -> Result<()> {
    let files = contents(checkout, kernels)?;
    let archive = archive::write(&files);
    ensure!(archive.len() as u64 <= BYTES_MAX, "an archive of more than {BYTES_MAX} bytes");
    let name = match kernels {
        Some(kernels) => format!("packed-adamw-{version}-{}", kernels.compiler.replace(' ', "-")),
        None => format!("packed-adamw-{version}"),
    };
    let sha256 = archive::sha256(&archive);
    let page = Facts {
        version,
        archive_name: &format!("{name}.zip"),
        archive_bytes: archive.len(),
        sha256: &sha256,
        commit: &checkout.commit,
        changed: !checkout.changes.is_empty(),
        files: &files,
        kernels,
    }
    .page()?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let write = |ending: &str, bytes: &[u8]| {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        anyhow::Ok(path)
    };
    write("md", page.markdown().as_bytes())?;
    write("html", page.html().as_bytes())?;
    let path = write("zip", &archive)?;
    if kernels.is_none() {
        eprintln!("without prebuilt kernels");
    }
    println!("{sha256}  {}", path.display());
    Ok(())
}

/// The tracked files and the kernels, under names that can be unpacked anywhere.
fn contents(checkout: &Checkout, kernels: Option<&Kernels>) -> Result<Files> {
    let mut files = checkout.files.clone();
    for (path, file) in kernels.iter().flat_map(|kernels| &kernels.files) {
        let taken = files.insert(path.clone(), file.clone());
        ensure!(taken.is_none(), "{path}: tracked, and a prebuilt kernel");
    }
    ensure!(!files.contains_key(archive::MANIFEST), "{}: tracked", archive::MANIFEST);
    let paths = || files.keys().map(String::as_str);
    let faults: Vec<String> =
        paths().filter_map(archive::refusal).chain(archive::clashes(paths())).collect();
    ensure!(faults.is_empty(), "files that a release cannot hold:\n{}", faults.join("\n"));
    Ok(files)
}

/// The version becomes part of file names.
fn must_be_version(version: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || ".+-".contains(c);
    ensure!(
        version.len() <= 40
            && version.starts_with(|c: char| c.is_ascii_digit())
            && version.chars().all(is_good),
        "{version:?}: a version begins with a digit and has letters, digits, `.`, `+` and `-`"
    );
    Ok(())
}
