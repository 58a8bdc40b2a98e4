//! Documents of the tree, and what can be checked of them without running anything: links lead somewhere, and
//! every command that is shown is one that [`check_docs`](crate::check_docs) knows what to do with.
//!
//! A command is a line of a fenced block of plain text that begins with a program's name. What follows two or
//! more spaces is a remark, and a line that ends in a backslash goes on.

mod plan;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use plan::{RUN, Shown, shown};

/// A document.
#[derive(Debug)]
pub struct Document {
    /// Path from the root, with forward slashes.
    pub path: String,
    pub text: String,
}

/// A command as a document shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The document's path and the line, counted from 1.
    pub place: String,
    /// The command on one line, without remarks.
    pub text: String,
}

/// Programs whose name begins a command.
const PROGRAMS: [&str; 14] = [
    "cargo",
    "packed-adamw",
    "git",
    "unzip",
    "sha256sum",
    "python3",
    "pip",
    "docker",
    "podman",
    "rustup",
    "sudo",
    "man",
    "source",
    "install",
];

/// All documents: those at the root, in `docs` and beside packages.
pub fn read(root: &Path) -> Result<Vec<Document>> {
    let mut paths = Vec::new();
    collect(root, &mut paths)?;
    paths.sort();
    let document = |path: PathBuf| {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        Ok(Document { path, text })
    };
    paths.into_iter().map(document).collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "runs", "data"].contains(&&*name) {
                collect(&path, into)?;
            }
        } else if name.ends_with(".md") {
            into.push(path);
        }
    }
    Ok(())
}

impl Document {
    /// The commands that it shows, in order.
    pub fn commands(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut fence = None;
        let mut begun: Option<Command> = None;
        for (index, line) in self.text.lines().map(str::trim).enumerate() {
            if let Some(kind) = line.strip_prefix("```") {
                fence = if fence.is_some() { None } else { Some(kind) };
                continue;
            }
            if !fence.is_some_and(|kind| ["text", "sh", "console", ""].contains(&kind)) {
                continue;
            }
            let (line, goes_on) = match line.strip_suffix('\\') {
                Some(start) => (start.trim_end(), true),
                None => (line, false),
            };
            let line = line.split("  ").next().unwrap_or_default();
            let command = match begun.take() {
                Some(command) => Command { text: format!("{} {line}", command.text), ..command },
                None if begins(line) => Command {
                    place: format!("{} line {}", self.path, index + 1),
                    text: line.to_owned(),
                },
                None => continue,
            };
            if goes_on { begun = Some(command) } else { commands.push(command) }
        }
        commands
    }

    /// Links to files that are not there.
    pub fn dead_links(&self, root: &Path) -> Vec<String> {
        let folder = root.join(&self.path).parent().expect("a file lies in a folder").to_owned();
        let targets = self.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let local =
            targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
        local
            .filter_map(|target| {
                let file = target.split('#').next().unwrap_or_default();
                let is_there = file.is_empty() || folder.join(file).exists();
                (!is_there)
                    .then(|| format!("{}: a link to {target}, which is not there", self.path))
            })
            .collect()
    }
}

fn begins(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or_default();
    PROGRAMS.contains(&first) && line.len() > first.len()
}

/// Faults that can be seen without running anything.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let documents = read(root)?;
    let mut faults: Vec<String> =
        documents.iter().flat_map(|document| document.dead_links(root)).collect();
    let commands: Vec<Command> = documents.iter().flat_map(Document::commands).collect();
    let unknown = commands.iter().filter(|command| shown(&command.text).is_none());
    faults.extend(unknown.map(|Command { place, text }| {
        format!("{place}: `{text}` is not in xtask/src/documents/plan.rs: say what checks it")
    }));
    let is_shown =
        |text: &str| commands.iter().any(|command| plan::arguments(&command.text) == Some(text));
    faults.extend(
        RUN.iter()
            .filter(|text| !is_shown(text))
            .map(|text| format!("`{text}` is run by check-docs and no document shows it")),
    );
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere_and_commands_are_known() {
        let faults = faults(&crate::root()).unwrap();
        assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn commands_are_found_whole_and_without_remarks() {
        let text = "cargo test\n```text\ncargo run -p x -- a     what it does\n\nnothing\n  packed-adamw b \\\n      --c d\n```\n\
                    ```rust\ncargo build\n```\n[here](x.md) [there](absent.md#part) [far](http://x) [up](#up)\n";
        let document = Document { path: "README.md".into(), text: text.into() };
        let found: Vec<(String, String)> =
            document.commands().into_iter().map(|command| (command.place, command.text)).collect();
        let expected = [
            ("README.md line 3", "cargo run -p x -- a"),
            ("README.md line 6", "packed-adamw b --c d"),
        ];
        assert_eq!(found, expected.map(|(place, text)| (place.to_owned(), text.to_owned())));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.md"), "").unwrap();
        assert_eq!(document.dead_links(folder.path()).len(), 1);
    }
}
