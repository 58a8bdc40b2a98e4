//! A run folder as it was left: settings, events, results. What reports and comparisons read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::events::Event;
use crate::folder::RunFolder;
use crate::metrics;
use crate::read;
use crate::settings::Settings;
use crate::shadow::{self, ShadowRow};
use crate::summary::Summary;

/// A run that was made, or is being made.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// Its folder.
    pub folder: PathBuf,
    /// Its effective settings.
    pub settings: Settings,
    /// What happened in it.
    pub events: Vec<Event>,
    /// Its results, if it is finished.
    pub summary: Option<Summary>,
    /// What its shadows found, if it had any.
    pub shadow: Vec<ShadowRow>,
    /// Whether the last line of its metrics was cut in the middle, and left out.
    pub was_cut: bool,
}

impl RunRecord {
    /// Reads a run folder. A last line of metrics that was cut is left out, since no whole event is lost by that.
    ///
    /// # Errors
    ///
    /// A folder without a run, and files that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let file = RunFolder::config_in(folder);
        let text = read::own_text(&file).map_err(|source| Error::NoRun {
            folder: folder.to_owned(),
            reason: format!("{}: {source}", file.display()),
        })?;
        let mut settings = Settings::new();
        settings.add_file(&text, &file)?;
        let metrics_file = folder.join("metrics.jsonl");
        let (events, was_cut) = if metrics_file.exists() {
            metrics::read_whole_lines(&metrics_file)?
        } else {
            (Vec::new(), false)
        };
        let summary_file = folder.join("summary.json");
        let summary = summary_file.exists().then(|| Summary::read(&summary_file)).transpose()?;
        let shadow_file = folder.join("shadow.jsonl");
        let shadow = if shadow_file.exists() { shadow::read(&shadow_file)? } else { Vec::new() };
        Ok(Self { folder: folder.to_owned(), settings, events, summary, shadow, was_cut })
    }

    /// The name of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| self.folder.display().to_string())
    }

    /// The results of a run that must be finished.
    ///
    /// # Errors
    ///
    /// A run that is not finished.
    pub fn results(&self) -> Result<&Summary, Error> {
        self.summary.as_ref().ok_or_else(|| Error::NoRun {
            folder: self.folder.clone(),
            reason:
                "the run is not finished: it has no summary.json; go on with it by `train --resume \
                     --output-dir`"
                    .into(),
        })
    }

    /// All that decided the bits of the run, by name.
    ///
    /// # Errors
    ///
    /// A run that keeps neither that nor a checkpoint, which has it too.
    pub fn identity(&self) -> Result<BTreeMap<String, String>, Error> {
        match &self.summary {
            Some(summary) if !summary.identity.is_empty() => Ok(summary.identity.clone()),
            _ => Ok(Checkpoint::find(&self.folder)?.manifest.identity),
        }
    }

    /// Loss of the final validation: bits per byte where `bytes` says so, else nats per token.
    ///
    /// # Errors
    ///
    /// As for [`RunRecord::results`], and byte lengths that are missing.
    pub fn final_loss(&self, bytes: bool) -> Result<f64, Error> {
        let results = self.results()?;
        if bytes {
            results.validation_bpb.ok_or_else(|| Error::NoRun {
                folder: self.folder.clone(),
                reason: "its validation tape has no byte lengths, others have".into(),
            })
        } else {
            Ok(results.validation_loss_nats)
        }
    }

    /// Milliseconds of an update: its tokens over the tokens a second of the run.
    #[must_use]
    pub fn ms_per_update(&self) -> Option<f64> {
        let summary = self.summary.as_ref()?;
        let tokens = summary.tokens as f64 / summary.updates.max(1) as f64;
        (summary.tokens_per_s > 0.0).then(|| tokens / summary.tokens_per_s * 1e3)
    }
}
