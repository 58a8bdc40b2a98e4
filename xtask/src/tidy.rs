//! The invariants of the tree. Each check returns its faults as lines that a person can act on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::manifest::{self, Manifest};
use crate::sources::{self, Source};

/// Who may import whom: a crate, then the workspace crates below it. Imports point down.
const FLOORS: [(&str, &[&str]); 10] = [
    ("formats", &[]),
    ("tape", &[]),
    ("ranks", &[]),
    ("reference", &["formats"]),
    ("gpu-kernels", &["formats"]),
    ("optimizer", &["formats", "gpu-kernels"]),
    ("model", &["formats", "gpu-kernels"]),
    ("trainer", &["formats", "gpu-kernels", "model", "optimizer", "ranks", "tape"]),
    (
        "cli",
        &["formats", "gpu-kernels", "model", "optimizer", "ranks", "reference", "tape", "trainer"],
    ),
    ("xtask", &[]),
];

/// Outside crates that stand in few manifests, and which.
const OUTSIDE: [(&str, &[&str]); 5] = [
    ("cudarc", &["gpu-kernels"]),
    ("clap", &["cli"]),
    ("toml", &["trainer"]),
    ("anyhow", &["cli", "xtask"]),
    ("gemm", &["model"]),
];

/// Files that may hold unsafe code, and folders (with a slash at the end) in which every file may.
const UNSAFE: [&str; 4] = [
    "crates/gpu-kernels/src/",
    "crates/optimizer/src/simd.rs",
    "crates/optimizer/src/simd/",
    "crates/model/src/cpu/simd.rs",
];

/// Lines a file may have.
const LINES_MAX: usize = 600;

/// Files that may be longer, each with its reason beside it.
const LONG: [&str; 0] = [];

/// Operations, state formats and devices that come in twins: folders whose files must have equal stems
/// once both are there.
const TWINS: [(&str, &str); 1] = [("crates/model/src/cpu", "crates/model/src/cuda")];

/// Stems in a twin folder that stand for no operation.
const ALONE: [&str; 6] = ["ceiling", "element", "lanes", "postponed", "simd", "timing"];

/// All faults of the tree below `root`.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let manifests: Vec<Manifest> = FLOORS
        .iter()
        .map(|&(name, _)| {
            let folder =
                if name == "xtask" { root.join(name) } else { root.join("crates").join(name) };
            manifest::read(&folder)
        })
        .collect::<Result<_>>()?;
    let rust = sources::read(root, &["rs"])?;
    let kernels = sources::read(root, &["cu", "cuh"])?;
    let mut faults = Vec::new();
    faults.extend(manifests.iter().flat_map(floors));
    faults.extend(manifests.iter().flat_map(outside));
    faults.extend(rust.iter().filter(|source| !source.text.starts_with("//!")).map(|source| {
        format!("{}: opens without `//!`: say what lives here and why", source.path)
    }));
    faults.extend(kernels.iter().filter(|source| !source.text.starts_with("//")).map(|source| {
        format!(
            "{}: opens without a comment: say what it computes and who launches it",
            source.path
        )
    }));
    faults.extend(rust.iter().chain(&kernels).filter_map(too_long));
    faults.extend(rust.iter().flat_map(stray_unsafe));
    faults.extend(rust.iter().flat_map(prints));
    faults.extend(rust.iter().flat_map(tests_elsewhere));
    for (one, other) in TWINS {
        faults.extend(unequal_stems(&root.join(one), &root.join(other))?);
    }
    Ok(faults)
}

fn floors(manifest: &Manifest) -> Vec<String> {
    let ours: BTreeSet<&str> = FLOORS.iter().map(|&(name, _)| name).collect();
    let (_, below) = FLOORS.iter().find(|(name, _)| *name == manifest.package).expect("a member");
    let upward = |name: &&String| ours.contains(name.as_str()) && !below.contains(&name.as_str());
    let package = &manifest.package;
    let mut faults: Vec<String> = manifest
        .dependencies
        .iter()
        .filter(upward)
        .map(|name| format!("{package}: depends on {name}: imports point down"))
        .collect();
    // Tests may also compare with the authority.
    faults.extend(
        manifest
            .dev_dependencies
            .iter()
            .filter(upward)
            .filter(|name| *name != "reference")
            .map(|name| format!("{package}: its tests depend on {name}: imports point down")),
    );
    faults
}

fn outside(manifest: &Manifest) -> Vec<String> {
    let all = manifest.dependencies.iter().chain(&manifest.dev_dependencies);
    all.filter_map(|name| {
        let (_, homes) = OUTSIDE.iter().find(|(outside, _)| outside == name)?;
        let package = &manifest.package;
        (!homes.contains(&package.as_str()))
            .then(|| format!("{package}: depends on {name}, which only {homes:?} may"))
    })
    .collect()
}

fn too_long(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    let excused = LONG.contains(&source.path.as_str());
    (lines > LINES_MAX && !excused)
        .then(|| format!("{}: {lines} lines, at most {LINES_MAX}: split it", source.path))
}

fn stray_unsafe(source: &Source) -> Vec<String> {
    let allowed = |place: &str| {
        if place.ends_with('/') { source.path.starts_with(place) } else { source.path == place }
    };
    // The shed names the word in order to look for it, and a test may measure by an allocator of its own.
    if UNSAFE.into_iter().any(allowed) || source.path.starts_with("xtask/") || source.is_test() {
        return Vec::new();
    }
    let words =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe");
    source
        .code()
        .filter(|(_, line)| words(line))
        .map(|(number, _)| format!("{}:{number}: unsafe code does not live here", source.path))
        .collect()
}

fn prints(source: &Source) -> Vec<String> {
    let speaks = source.path.starts_with("crates/cli/") || source.path.starts_with("xtask/");
    if speaks || source.is_test() {
        return Vec::new();
    }
    let macros = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];
    source
        .code()
        .filter(|(_, line)| macros.iter().any(|name| line.contains(name)))
        .map(|(number, _)| format!("{}:{number}: a library prints: emit an event", source.path))
        .collect()
}

/// Integration tests live in one binary a crate, `tests/it/`.
fn tests_elsewhere(source: &Source) -> Option<String> {
    let (_, below) = source.path.split_once("/tests/")?;
    (!below.starts_with("it/")).then(|| format!("{}: tests live in tests/it/", source.path))
}

fn unequal_stems(one: &Path, other: &Path) -> Result<Vec<String>> {
    if !one.is_dir() || !other.is_dir() {
        return Ok(Vec::new());
    }
    let (mine, theirs) = (stems(one)?, stems(other)?);
    let missing = mine.symmetric_difference(&theirs);
    Ok(missing
        .map(|stem| format!("`{stem}` has no twin: {} {}", one.display(), other.display()))
        .collect())
}

fn stems(folder: &Path) -> Result<BTreeSet<String>> {
    let mut stems = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !ALONE.contains(&stem.as_str()) {
            stems.insert(stem);
        }
    }
    Ok(stems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    fn package(name: &str, dependencies: &[&str], dev_dependencies: &[&str]) -> Manifest {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Manifest {
            package: name.into(),
            dependencies: own(dependencies),
            dev_dependencies: own(dev_dependencies),
        }
    }

    #[test]
    fn the_tree_is_tidy() {
        let faults = faults(&crate::root()).unwrap();
        assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn an_import_that_points_up_or_sideways_is_found() {
        assert_eq!(floors(&package("model", &["optimizer"], &[])).len(), 1);
        assert_eq!(floors(&package("formats", &[], &["trainer"])).len(), 1);
        assert_eq!(floors(&package("optimizer", &["reference"], &[])).len(), 1);
        assert!(floors(&package("optimizer", &["formats"], &["reference"])).is_empty());
    }

    #[test]
    fn an_outside_crate_in_the_wrong_manifest_is_found() {
        assert_eq!(outside(&package("trainer", &["anyhow"], &[])).len(), 1);
        assert!(outside(&package("cli", &["anyhow", "clap"], &[])).is_empty());
    }

    #[test]
    fn unsafe_code_is_found_outside_its_homes() {
        let text = "//! The word unsafe in prose.\nfn f() { unsafe { g() } }\n";
        assert_eq!(stray_unsafe(&source("crates/trainer/src/run.rs", text)).len(), 1);
        assert!(stray_unsafe(&source("crates/optimizer/src/simd.rs", text)).is_empty());
        assert!(
            stray_unsafe(&source("crates/trainer/src/run.rs", "#![deny(unsafe_code)]")).is_empty()
        );
    }

    #[test]
    fn a_printing_library_is_found() {
        let text = "//! x\nfn f() { println!(\"x\") }\n";
        assert_eq!(prints(&source("crates/tape/src/prepare.rs", text)).len(), 1);
        assert!(prints(&source("crates/cli/src/main.rs", text)).is_empty());
        assert!(prints(&source("crates/tape/tests/it/main.rs", text)).is_empty());
    }

    #[test]
    fn a_long_file_and_a_stray_test_are_found() {
        assert!(too_long(&source("crates/model/src/gpt.rs", &"x\n".repeat(601))).is_some());
        assert!(too_long(&source("crates/model/src/gpt.rs", &"x\n".repeat(600))).is_none());
        assert!(tests_elsewhere(&source("crates/model/tests/gpt.rs", "")).is_some());
        assert!(tests_elsewhere(&source("crates/model/tests/it/gpt.rs", "")).is_none());
    }
}
