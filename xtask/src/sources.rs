//! Source files of the workspace, as text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// One source file.
#[derive(Debug)]
pub struct Source {
    /// Path from the root, with forward slashes.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// Whether the file belongs to tests, examples or benches rather than to the product.
    pub fn is_test(&self) -> bool {
        ["/tests/", "/examples/", "/benches/"].iter().any(|part| self.path.contains(part))
    }

    /// The lines of the product: without comments, and without the test module at the end.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod tests").unwrap_or(self.text.len());
        let lines = self.text[..end].lines().enumerate();
        lines
            .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or(line)))
            .filter(|(_, line)| !line.trim().is_empty())
    }
}

/// All files of the workspace's packages, and of the two beside it, whose names end in one of `endings`, sorted by path.
pub fn read(root: &Path, endings: &[&str]) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in ["crates", "xtask", "candle-adamw", "fuzz"] {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.retain(|path| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
        endings.contains(&ending)
    });
    paths.sort();
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        Ok(Source { path, text })
    };
    paths.into_iter().map(source).collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, into)?;
            }
        } else {
            into.push(path);
        }
    }
    Ok(())
}
