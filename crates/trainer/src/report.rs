//! A report on a set of runs: curves, results, what differs in their settings, where they ran, how to make them
//! again. The same pages come out of `report`, `compare` and `campaign`.
//!
//! | file | what it holds |
//! |---|---|
//! | `report.md`, `report.html` | the pages; the HTML needs no other file |
//! | `comparison.json` | the same for machines |
//! | `learning-curves.svg`, `.png` | loss against training tokens and against time |
//! | `shadows-NAME.svg`, `.png` | what shadows of a run found, where it had any |
//! | `metrics.csv` | every update and validation, where asked for |
//! | `tensorboard/` | events for TensorBoard, where asked for |

mod csv;
mod figures;
mod page;
mod shadows;
mod tables;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tape::aside::write_file;

use crate::config;
use crate::error::Error;
use crate::plot;
use crate::record::RunRecord;
use crate::tensorboard::TensorBoard;

pub use page::{Block, Page};

/// What a report is about.
#[derive(Debug)]
pub struct Report<'a> {
    /// Its title.
    pub title: String,
    /// The runs, in the order of tables.
    pub runs: &'a [RunRecord],
    /// What each run is shown as; runs of the same label share a colour.
    pub labels: Vec<String>,
    /// The command that makes the report.
    pub command: String,
    /// What stands before everything else.
    pub findings: Vec<Block>,
    /// What `comparison.json` says of it.
    pub comparison: Value,
    /// Whether `metrics.csv` is written.
    pub csv: bool,
    /// Whether events for TensorBoard are written, a folder for each run.
    pub tensorboard: bool,
}

impl<'a> Report<'a> {
    /// A report on runs without anything that was found out about them.
    #[must_use]
    pub fn new(title: &str, runs: &'a [RunRecord], command: &str) -> Self {
        Self {
            title: title.to_owned(),
            labels: labels(runs),
            runs,
            command: command.to_owned(),
            findings: Vec::new(),
            comparison: Value::Null,
            csv: false,
            tensorboard: false,
        }
    }

    /// Writes everything into `folder`, which is made if it is not there; the paths of the files.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut files = Vec::new();
        let mut blocks = self.findings.clone();
        if let Some(figure) = figures::learning_curves(self.runs, &self.labels) {
            let file = folder.join("learning-curves.svg");
            let svg = plot::write(&figure, &file)?;
            files.extend([file.with_extension("png"), file]);
            blocks.push(Block::Heading("Learning curves".into()));
            let name = "learning-curves".to_owned();
            blocks.push(Block::Picture { name, caption: figures::CAPTION.into(), svg });
        }
        let (about_shadows, pictures) = shadows::blocks(self.runs, folder)?;
        blocks.extend(about_shadows);
        files.extend(pictures);
        blocks.extend(tables::blocks(self));
        let page = Page { title: self.title.clone(), blocks };
        let mut write = |name: &str, text: &str| {
            let file = folder.join(name);
            write_file(&file, text.as_bytes())?;
            files.push(file);
            Ok::<_, Error>(())
        };
        if self.tensorboard {
            for run in self.runs {
                TensorBoard::create(&folder.join("tensorboard").join(run.name()), &run.events)?;
            }
        }
        if self.csv {
            write("metrics.csv", &csv::metrics(self.runs))?;
        }
        write("report.md", &page.to_markdown())?;
        write("report.html", &page.to_html())?;
        write("comparison.json", &format!("{:#}\n", self.to_json()))?;
        Ok(files)
    }

    /// The report for machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let run = |(run, label): (&RunRecord, &String)| {
            let different = tables::differing_keys(self.runs);
            let settings: serde_json::Map<String, Value> = different
                .iter()
                .map(|&key| (key.to_owned(), Value::String(run.settings.shown(key))))
                .collect();
            json!({
                "name": run.name(),
                "folder": run.folder,
                "label": label,
                "finished": run.summary.is_some(),
                "settings": settings,
                "ms_per_update": run.ms_per_update(),
                "shadows": crate::shadow::summaries(&run.shadow),
                "summary": run.summary,
            })
        };
        json!({
            "title": self.title,
            "command": self.command,
            "runs": self.runs.iter().zip(&self.labels).map(run).collect::<Vec<_>>(),
            "comparison": self.comparison,
        })
    }
}

/// A label for each run: what it differs in of all that decides the bits, the seed apart; its folder's name where
/// that is nothing.
#[must_use]
pub fn labels(runs: &[RunRecord]) -> Vec<String> {
    let keys = tables::differing_keys(runs);
    let deciding = |run: &RunRecord| {
        let parts: Vec<String> = keys
            .iter()
            .filter(|key| config::decides_bits(&run.settings, key) && **key != "run.seed")
            .map(|key| short_setting(key, &run.settings.shown(key)))
            .collect();
        parts.join(" ")
    };
    let all: Vec<String> = runs.iter().map(deciding).collect();
    let nothing = all.iter().all(String::is_empty);
    runs.iter().zip(all).map(|(run, label)| if nothing { run.name() } else { label }).collect()
}

/// `lr=1e-3` for `optimizer.lr` and `0.001`.
#[must_use]
pub fn short_setting(key: &str, value: &str) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    let value = value.trim_matches('"');
    let number = value.contains('.').then(|| value.parse::<f64>().ok()).flatten();
    let forms = number.map(|number| [number.to_string(), format!("{number:e}")]);
    let shortest = forms.and_then(|forms| forms.into_iter().min_by_key(String::len));
    format!("{name}={}", shortest.as_deref().unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_shortly() {
        let named = |value| short_setting("optimizer.lr", value);
        let expected = ["lr=1e-3", "lr=0.01", "lr=1e-5", "lr=1e30", "lr=e4"];
        let found = ["0.001", "0.01", "0.00001", "1000000000000000000000000000000.0", "\"e4\""];
        assert_eq!(found.map(named), expected);
        assert_eq!(short_setting("run.batch", "8"), "batch=8");
        assert_eq!(named("[0.9, 0.95]"), "lr=[0.9, 0.95]");
    }
}
