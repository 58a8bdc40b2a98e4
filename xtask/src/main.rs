//! The shed beside the house: the invariants of the tree.
//!
//! `cargo xtask tidy` checks what `docs/architecture.md` promises; the same checks run as tests with
//! `cargo test -p xtask`. The shed imports none of the crates that it looks after.

mod manifest;
mod sources;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask tidy    check the invariants of the tree";

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy_up(),
        _ => bail!("{USAGE}"),
    }
}

fn tidy_up() -> Result<()> {
    let faults = tidy::faults(&root())?;
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
