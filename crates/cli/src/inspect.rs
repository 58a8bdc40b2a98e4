//! `inspect`: what a tape, a checkpoint or a run folder holds.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::json;
use trainer::{Restored, Summary};

use crate::args::Inspect;
use crate::output::{self, bytes, grouped, note};
use crate::{inspect_tape, table};

pub fn run(args: &Inspect) -> Result<()> {
    let path = &args.path;
    if path.is_dir() {
        let summary = path.join("summary.json");
        if summary.is_file() {
            show_run(&summary, args.json)?;
        }
        return match other_content(path) {
            Some(hint) => bail!("{}: {hint}", path.display()),
            None => show_checkpoint(path, args.json),
        };
    }
    if !path.exists() {
        bail!("{}: there is nothing here", path.display());
    }
    if inspect_tape::is_tape(path) {
        return inspect_tape::show(args);
    }
    bail!(
        "{}: expected a tape (*.tokens.u32, *.tokens.u16), a set (*.tape-set.json), a checkpoint or a run \
         folder",
        path.display()
    );
}

/// What lies in a folder that is neither a run nor a checkpoint, and how it is looked at; none if that is not known.
fn other_content(folder: &Path) -> Option<String> {
    let is_run =
        ["manifest.json", "checkpoints"].into_iter().any(|name| folder.join(name).exists());
    if is_run {
        return None;
    }
    if folder.join("study.json").exists() {
        return Some(
            "a folder of several runs; `watch` shows it, `report` writes pages on it".into(),
        );
    }
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut tapes: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| inspect_tape::is_tape(path)).collect();
    tapes.sort();
    // A set comes before its parts.
    let is_set =
        |path: &&std::path::PathBuf| path.extension().is_some_and(|ending| ending == "json");
    let tape = tapes.iter().find(is_set).or(tapes.first())?;
    Some(format!("a folder of tapes; inspect one of them, such as {}", tape.display()))
}

fn show_run(path: &Path, as_json: bool) -> Result<()> {
    let summary = Summary::read(path)?;
    if !as_json {
        note("a finished run:");
        note(&table::pairs(&crate::train::results(&summary)));
    }
    Ok(())
}

fn show_checkpoint(path: &Path, as_json: bool) -> Result<()> {
    let model = Restored::open(path)?;
    let manifest = &model.manifest;
    if as_json {
        let mut value = serde_json::to_value(manifest)?;
        value["kind"] = json!("checkpoint");
        return output::json(&value);
    }
    let shape = manifest.model;
    let size: u64 = manifest.files.values().map(|file| file.bytes).sum();
    let state = manifest.identity.get("optimizer.state").map_or("unknown", String::as_str);
    let score = manifest.progress.validated.map_or_else(
        || "none".to_owned(),
        |score| format!("{:.4} nats/token at update {}", score.loss_nats, grouped(score.update)),
    );
    let lines = [
        ("update", grouped(manifest.progress.update)),
        ("tokens", grouped(manifest.progress.tokens)),
        (
            "model",
            format!(
                "V {} T {} C {} L {} H {}, {} parameters",
                shape.vocabulary,
                shape.context,
                shape.channels,
                shape.layers,
                shape.heads,
                grouped(model.network().parameters() as u64)
            ),
        ),
        ("state format", state.trim_matches('"').to_owned()),
        ("validation", score),
        ("size", format!("{} in {} files, all hashes hold", bytes(size), manifest.files.len())),
    ];
    output::data(&format!("{}\n\n", table::pairs(&lines)))?;
    let rows: Vec<_> = manifest
        .files
        .iter()
        .map(|(name, file)| vec![name.clone(), grouped(file.bytes), file.sha256.to_string()])
        .collect();
    output::data(&format!("{}\n", table::columns(&["file", "bytes", "SHA-256"], &rows)))
}
