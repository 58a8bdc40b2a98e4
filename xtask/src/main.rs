//! The shed beside the house: releases, and the invariants of the tree.
//!
//! `cargo xtask tidy` checks what `docs/architecture.md` promises; the same checks run as tests with
//! `cargo test -p xtask`. `release` and `verify` write and check the archive of a version, and `check-docs` does what the documents show;
//! `supply` holds what we build on against rules. The shed imports none
//! of the crates that it looks after; what it must know of them it asks the program.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task speaks to whoever calls it")]

mod archive;
mod arguments;
mod checkout;
mod kernels;
mod page;
mod release;
mod verify;
mod workspace;

mod check_docs;
mod documents;

mod container;
mod manifest;
mod sources;
mod supply;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::arguments::Arguments;

const TIDY: &str = "cargo xtask tidy\n    checks the invariants of the tree";

fn main() -> ExitCode {
    match task() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn task() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let task = words.next().unwrap_or_default();
    let arguments = Arguments::new(words);
    match task.as_str() {
        "release" => release::run(&root(), arguments),
        "verify" => verify::run(&root(), arguments),
        "check-docs" => check_docs::run(&root(), arguments),
        "supply" => supply::run(&root(), arguments),
        "tidy" => tidy_up(arguments),
        _ => {
            let tasks = [release::USAGE, verify::USAGE, check_docs::USAGE, supply::USAGE, TIDY];
            bail!("expected a task\n\n{}", tasks.join("\n\n"))
        }
    }
}

fn tidy_up(arguments: Arguments) -> Result<()> {
    arguments.end()?;
    let mut faults = tidy::faults(&root())?;
    faults.extend(container::faults(&root())?);
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{} faults\n{}", faults.len(), faults.join("\n"))
}

/// The root of the workspace, which is the folder above this package.
fn root() -> PathBuf {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for what it runs");
    Path::new(&package).parent().expect("the package lies in the workspace").to_owned()
}
