//! `cargo xtask supply`: what the workspace builds on, held against `deny.toml`, and `THIRD_PARTY.md` made of it.
//!
//! The rules are those of cargo-deny that need no network: licences, crates in several versions, and crates from
//! anywhere but the registry. The facts are cargo's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::arguments::Arguments;

/// How `supply` is called.
pub const USAGE: &str = "\
cargo xtask supply [--write]
    holds licences, duplicates and sources of all crates against deny.toml, and compares THIRD_PARTY.md; with --write
    that is written anew.";

const RULES: &str = "deny.toml";
const LIST: &str = "THIRD_PARTY.md";

/// The head of the list's table; what stands above it is written by hand.
const HEAD: &str = "| crate | version | licence |\n|---|---|---|\n";

/// What a program built here is made of.
const OF_THE_PROGRAM: [&str; 4] = ["--package", "cli", "--edges", "normal,build"];

/// A crate of somebody else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    licence: String,
    /// Where it does not come from the registry.
    source: Option<String>,
}

/// Runs the task.
pub fn run(root: &Path, mut arguments: Arguments) -> Result<()> {
    let write = arguments.flag("--write");
    arguments.end()?;
    if write {
        let path = root.join(LIST);
        let text = list(&fs::read_to_string(&path)?, &crates(root, &OF_THE_PROGRAM)?)?;
        fs::write(&path, text)?;
    }
    let faults = faults(root)?;
    ensure!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

/// What breaks a rule, and a list that is out of date.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let rules = fs::read_to_string(root.join(RULES)).context(RULES)?;
    let (allowed, skipped) = (array(&rules, "allow"), array(&rules, "skip"));
    // What `cargo deny` looks at: every system, and what only tests need.
    let edges = ["--workspace", "--all-features", "--target", "all", "--edges", "normal,build,dev"];
    let all = crates(root, &edges)?;
    let mut faults = Vec::new();
    for Crate { name, version, licence, source } in &all {
        if !is_allowed(licence, &allowed) {
            faults.push(format!("{name} {version}: licence {licence:?} is not allowed by {RULES}"));
        }
        faults.extend(source.iter().map(|source| format!("{name} {version}: comes from {source}")));
    }
    faults.extend(duplicates(&all, &skipped));
    let text = fs::read_to_string(root.join(LIST)).context(LIST)?;
    if text != list(&text, &crates(root, &OF_THE_PROGRAM)?)? {
        faults.push(format!("{LIST}: out of date; run cargo xtask supply --write"));
    }
    Ok(faults)
}

/// Crates in several versions of which more than one is not in the list of those known, and entries of that list
/// that are no longer there.
fn duplicates(all: &BTreeSet<Crate>, skipped: &[&str]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Crate { name, version, .. } in all {
        versions.entry(name).or_default().push(version);
    }
    let is_skipped = |name: &str, version: &str| skipped.contains(&&*format!("{name}@{version}"));
    let mut faults = Vec::new();
    for (name, versions) in &versions {
        let counted: Vec<_> =
            versions.iter().filter(|version| !is_skipped(name, version)).collect();
        if counted.len() > 1 {
            faults.push(format!(
                "{name}: in versions {counted:?}; use one, or add to skip in {RULES}"
            ));
        }
    }
    let is_there = |entry: &&&str| {
        let (name, version) = entry.split_once('@').unwrap_or((entry, ""));
        versions.get(name).is_some_and(|versions| versions.len() > 1 && versions.contains(&version))
    };
    let stale = skipped.iter().filter(|entry| !is_there(entry));
    faults.extend(
        stale.map(|entry| format!("{entry}: in skip of {RULES}, and there is no such duplicate")),
    );
    faults
}

/// Whether an expression can be fulfilled by licences of a list.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace('/', " OR ");
    let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
    // Parentheses stand around alternatives only, so a conjunction is one of disjunctions, or the other way.
    let any = |text: &str| {
        text.split(" OR ").map(|one| one.trim_matches(['(', ')'])).any(|one| allowed.contains(&one))
    };
    if expression.contains('(') {
        expression.split(" AND ").all(any)
    } else {
        expression.split(" OR ").any(|every| every.split(" AND ").all(any))
    }
}

/// The crates that cargo builds for a selection of packages.
fn crates(root: &Path, selection: &[&str]) -> Result<BTreeSet<Crate>> {
    let mut command = Command::new("cargo");
    command.args(["tree", "--locked", "--prefix", "none"]);
    command.args(["--format", "{p}|{l}"]).args(selection).current_dir(root);
    let output = command.output().context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.filter_map(|line| parsed(line).transpose()).collect()
}

/// A line such as `bytes v1.0.0 (proc-macro)|MIT (*)`; none for packages of the workspace.
fn parsed(line: &str) -> Result<Option<Crate>> {
    let (package, licence) = line.split_once('|').with_context(|| line.to_owned())?;
    let mut words = package.splitn(3, ' ');
    let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let source = words.next().unwrap_or_default().replace("(proc-macro)", "");
    let source = source.trim().trim_matches(['(', ')']);
    if source.starts_with('/') {
        return Ok(None);
    }
    Ok(Some(Crate {
        name: name.to_owned(),
        version: version.trim_start_matches('v').to_owned(),
        licence: licence.trim_end_matches(" (*)").to_owned(),
        source: (!source.is_empty() && source != "*").then(|| source.to_owned()),
    }))
}

/// The list with a new table.
fn list(text: &str, crates: &BTreeSet<Crate>) -> Result<String> {
    let (above, _) = text.split_once(HEAD).with_context(|| format!("{LIST}: no table"))?;
    let row = |Crate { name, version, licence, .. }: &Crate| {
        format!("| {name} | {version} | {licence} |\n")
    };
    Ok(format!("{above}{HEAD}{}", crates.iter().map(row).collect::<String>()))
}

/// The texts of an array that stands one a line.
fn array<'a>(toml: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("{name} = [");
    let lines = toml.lines().map(str::trim).skip_while(|line| *line != begin).skip(1);
    let inside = lines.take_while(|line| *line != "]");
    inside.filter_map(|line| line.split('"').nth(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_duplicates_sources_and_the_list_are_in_order() {
        let faults = faults(&crate::root()).unwrap();
        assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn expressions_are_fulfilled_by_allowed_licences_only() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        for good in [
            "MIT",
            "MIT/GPL-3.0",
            "GPL-3.0 OR MIT",
            "MIT AND Apache-2.0",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0", "MITX"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn lines_of_cargo_are_read() {
        let found = parsed("bytes v1.0.0 (proc-macro)|MIT (*)").unwrap().unwrap();
        assert_eq!((&*found.name, &*found.version, &*found.licence), ("bytes", "1.0.0", "MIT"));
        assert_eq!(found.source, None);
        assert_eq!(parsed("cli v0.1.0 (/a/b c)|CC0-1.0").unwrap(), None);
        let foreign = parsed("x v1.0.0 (https://x.org/x#1)|MIT").unwrap().unwrap();
        assert!(foreign.source.is_some());
        let twice = |version: &str| Crate { version: version.into(), ..found.clone() };
        let all = BTreeSet::from([twice("1.0.0"), twice("2.0.0")]);
        assert_eq!(duplicates(&all, &[]).len(), 1);
        assert_eq!(duplicates(&all, &["bytes@1.0.0"]).len(), 0);
        assert_eq!(duplicates(&all, &["bytes@1.0.0", "bytes@3.0.0"]).len(), 1);
    }
}
