//! Reads what the invariants need from a `Cargo.toml`: names of dependencies, by kind.
//!
//! The manifests of this workspace keep one dependency a line, so this is a line reader and no TOML parser.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The dependencies of one package.
#[derive(Debug, Default)]
pub struct Manifest {
    /// Name of the package's folder.
    pub package: String,
    /// Names under `[dependencies]`.
    pub dependencies: Vec<String>,
    /// Names under `[dev-dependencies]`.
    pub dev_dependencies: Vec<String>,
}

/// Reads the manifest of the package in `folder`.
pub fn read(folder: &Path) -> Result<Manifest> {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let package =
        folder.file_name().expect("a package has a folder").to_string_lossy().into_owned();
    let mut manifest = Manifest { package, ..Manifest::default() };
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some(name) = dependency(line) {
            match section {
                "[dependencies]" => manifest.dependencies.push(name),
                "[dev-dependencies]" => manifest.dev_dependencies.push(name),
                _ => {}
            }
        }
    }
    Ok(manifest)
}

/// The name before the first `.`, `=` or space of a line that sets something.
fn dependency(line: &str) -> Option<String> {
    if line.starts_with('#') || !line.contains('=') {
        return None;
    }
    line.split(['.', '=', ' ']).next().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::dependency;

    #[test]
    fn a_dependency_is_named_by_the_start_of_its_line() {
        assert_eq!(dependency("half.workspace = true").as_deref(), Some("half"));
        assert_eq!(dependency("zip = { workspace = true }").as_deref(), Some("zip"));
        assert_eq!(dependency("# clap = 4"), None);
        assert_eq!(dependency(""), None);
    }
}
