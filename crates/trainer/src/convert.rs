//! States of runs in other formats: a run folder in, one whose moments persist in another format out, which
//! `train --resume` goes on with. Parameters and everything else stay.
//!
//! | file | what it holds |
//! |---|---|
//! | `foreign` | moments that other optimizers left, in a safetensors file |
//! | `distance` | how far what is stored is from what was given |
//!
//! Moments are decoded as the next update would read them, and encoded as the last one would have.

mod distance;
mod foreign;

use std::path::{Path, PathBuf};

use model::Layout;
use optimizer::{AdamW as _, CpuAdamW, DecodedMoments, Options};
use serde::Serialize;
use tape::aside::write_file;

use crate::checkpoint::{Checkpoint, Checkpoints, Keep, Snapshot};
use crate::config::{self, Config};
use crate::error::Error;
use crate::folder::RunFolder;
use crate::read;
use crate::settings::Settings;
use crate::setup;

pub use distance::Distance;
use distance::Distances;

/// What to convert.
#[derive(Clone, Debug)]
pub struct Conversion<'a> {
    /// The run folder.
    pub run: &'a Path,
    /// Moments that replace those of its last checkpoint.
    pub moments: Option<&'a Path>,
    /// Settings to change, such as `optimizer.state=e4`.
    pub changes: &'a [String],
    /// The new run folder; without one nothing is written.
    pub output: Option<&'a Path>,
}

/// What was converted, and how exactly.
#[derive(Clone, Debug, Serialize)]
pub struct Converted {
    /// The format that moments came from: a state format, or that of the other optimizer.
    pub from: String,
    /// The format that they are in now.
    pub to: String,
    /// The update that they belong to.
    pub update: u64,
    /// Bytes of state before; none of another optimizer's.
    pub bytes_before: Option<u64>,
    /// Bytes of state now.
    pub bytes_after: u64,
    /// The new checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// The error of all tensors together.
    pub all: Distance,
    /// By the role of tensors in the network.
    pub roles: Vec<(String, Distance)>,
    /// By tensor.
    pub tensors: Vec<(String, Distance)>,
}

/// Settings that a conversion may change: those that say how moments persist.
const CHANGEABLE: [&str; 2] = ["optimizer.state", "optimizer.bias"];

/// Converts the last checkpoint of a run.
///
/// # Errors
///
/// A folder without a run, a damaged checkpoint, moments of another model or with numbers that no update leaves,
/// a format that there is not, an output folder that is taken, and what the file system refuses.
pub fn convert(conversion: &Conversion<'_>) -> Result<Converted, Error> {
    let checkpoint = Checkpoint::find(conversion.run)?;
    let before = settings_of(conversion.run)?;
    let mut after = before.clone();
    for change in conversion.changes {
        let key = change.split('=').next().unwrap_or_default().trim();
        if !CHANGEABLE.contains(&key) {
            return Err(Error::WrongValue {
                key: key.to_owned(),
                place: "convert".into(),
                expected: format!(
                    "one of {}, which say how moments persist",
                    CHANGEABLE.join(", ")
                ),
                found: "another setting".into(),
            });
        }
        after.add_assignment(change)?;
    }
    let (before, after) = (Source::new(before)?, Source::new(after)?);
    let layout = Layout::new(checkpoint.manifest.model.network()?);
    let mut old = before.optimizer(&layout)?;
    old.load(&checkpoint.optimizer()?)?;
    let written = written(&checkpoint)?;
    let (from, given) = match conversion.moments {
        Some(file) => {
            let foreign = foreign::read(file, layout.slots(), old.update())?;
            (foreign.kind, foreign.moments)
        }
        None => {
            let moments = (0..layout.slots().len()).map(|position| old.moments(position));
            (before.format(), moments.collect::<Result<_, _>>()?)
        }
    };
    let mut new = after.optimizer(&layout)?;
    let written = if conversion.moments.is_some() { old.update() } else { written };
    if written > 0 {
        for (position, moments) in given.iter().enumerate() {
            new.set_moments(position, written, moments)?;
        }
    }
    let mut distances = Distances::new(&after.config, old.update());
    for (slot, moments) in layout.slots().iter().zip(&given) {
        let position = distances.len();
        distances.add(slot, moments, &new.moments(position)?);
    }
    let checkpoint_path = match conversion.output {
        Some(output) => Some(write(output, checkpoint, &layout, &after, &new, old.update())?),
        None => None,
    };
    Ok(Converted {
        from,
        to: after.format(),
        update: old.update(),
        bytes_before: conversion.moments.is_none().then(|| old.state_bytes()),
        bytes_after: new.state_bytes(),
        checkpoint: checkpoint_path,
        all: distances.all(),
        roles: distances.roles(),
        tensors: distances.into_tensors(),
    })
}

/// Settings of a run, and what they mean.
struct Source {
    settings: Settings,
    config: Config,
}

impl Source {
    fn new(settings: Settings) -> Result<Source, Error> {
        Ok(Source { config: Config::new(&settings)?, settings })
    }

    fn format(&self) -> String {
        self.config.optimizer.format.to_string()
    }

    /// A fresh optimizer over the tensors of the run.
    fn optimizer(&self, layout: &Layout) -> Result<CpuAdamW, Error> {
        let (tensors, groups) = setup::tensors_and_groups(&self.config, layout);
        let options = Options {
            clip_norm: self.config.optimizer.clip_norm,
            on_nonfinite: self.config.optimizer.on_nonfinite,
            seed: self.config.run.seed,
        };
        Ok(CpuAdamW::new(&tensors, &groups, options)?)
    }
}

/// The settings in a run folder.
fn settings_of(run: &Path) -> Result<Settings, Error> {
    let file = RunFolder::config_in(run);
    if !file.is_file() {
        let reason =
            "expected a run folder with config.toml and checkpoints, found none".to_owned();
        return Err(Error::NoRun { folder: run.to_owned(), reason });
    }
    let text = read::own_text(&file).map_err(Error::io("read", &file))?;
    let mut settings = Settings::new();
    settings.add_file(&text, &file)?;
    Ok(settings)
}

/// The update that wrote the moments of a checkpoint; the last one, but for updates that were dropped.
fn written(checkpoint: &Checkpoint) -> Result<u64, Error> {
    let entries = &checkpoint.manifest.optimizer;
    let text = entries.get("optimizer.written").or_else(|| entries.get("optimizer.update"));
    let update = text.and_then(|text| text.parse().ok());
    update.ok_or_else(|| Error::CheckpointDamaged {
        file: checkpoint.directory.clone(),
        expected: "the update of the optimizer".into(),
        found: text.cloned().unwrap_or_else(|| "none".into()),
    })
}

/// Writes the run folder with the one checkpoint.
fn write(
    output: &Path,
    checkpoint: Checkpoint,
    layout: &Layout,
    after: &Source,
    optimizer: &CpuAdamW,
    update: u64,
) -> Result<PathBuf, Error> {
    let folder = RunFolder::create(output)?;
    let parameters = checkpoint.parameters(layout)?;
    let mut manifest = checkpoint.manifest;
    let identity = config::identity(&after.settings);
    // What belongs to the data and the device stays.
    manifest
        .identity
        .extend(identity.into_iter().filter(|(key, _)| CHANGEABLE.contains(&key.as_str())));
    let mut state = optimizer.save()?;
    state.metadata.insert("optimizer.update".to_owned(), update.to_string());
    let tokenizer = &checkpoint.tokenizer[..];
    let parameters = &parameters[..];
    let snapshot = Snapshot { manifest, layout, parameters, optimizer: &state, tokenizer };
    let checkpoints = Checkpoints::open(&folder.checkpoints())?;
    let path = checkpoints.write(snapshot, Keep { last: 1, best: false })?;
    write_file(&folder.config(), after.settings.to_toml().as_bytes())?;
    Ok(path)
}

/// The moments of a file, if they are as many as the tensors have.
type Moments = Vec<DecodedMoments>;
