//! What comes of a campaign: the ranking of each model's runs, what was selected, and the files that say so.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tape::aside::write_file;

use super::Campaign;
use crate::error::Error;
use crate::record::RunRecord;
use crate::report::{Block, Report};
use crate::settings::{KEYS, Settings};
use crate::study::{PlannedRun, RunState, Study};

/// A run and its place among those of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Its name.
    pub run: String,
    /// Loss of its final validation, in nats per token.
    pub loss_nats: f64,
    /// The same in bits per byte, where byte lengths are known.
    pub bpb: Option<f64>,
    /// Training tokens.
    pub tokens: u64,
}

/// What a campaign selected for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selected {
    /// The model.
    pub model: String,
    /// The best of its last stage.
    pub best: Ranked,
    /// Its short runs, the best first.
    pub short: Vec<Ranked>,
    /// Its promoted runs, the best first.
    pub long: Vec<Ranked>,
    /// Runs of it that failed.
    pub failed: Vec<String>,
}

/// What came of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the campaign.
    pub campaign: String,
    /// Runs that are finished.
    pub finished: usize,
    /// Runs that failed, with what they said.
    pub failed: Vec<[String; 2]>,
    /// What was selected, model by model.
    pub selected: Vec<Selected>,
    /// The files that say so, beside this one.
    pub files: Vec<String>,
}

/// The runs that are finished, by rising loss of the final validation.
pub fn rank<'a>(
    runs: &'a [PlannedRun],
    study_folder: &Path,
) -> Result<Vec<(&'a PlannedRun, Ranked)>, Error> {
    let mut ranked = Vec::new();
    for run in runs {
        let folder = study_folder.join("runs").join(&run.name);
        if !folder.join("summary.json").exists() {
            continue;
        }
        let record = RunRecord::read(&folder)?;
        let found = record.results()?;
        ranked.push((
            run,
            Ranked {
                run: run.name.clone(),
                loss_nats: found.validation_loss_nats,
                bpb: found.validation_bpb,
                tokens: found.tokens,
            },
        ));
    }
    ranked.sort_by(|a, b| a.1.loss_nats.total_cmp(&b.1.loss_nats));
    Ok(ranked)
}

impl Campaign {
    /// Writes the report, the selected settings and, last of all, `complete.json`.
    ///
    /// # Errors
    ///
    /// A model of which no run is finished, and what the file system refuses.
    pub fn conclude(&self, study: &Study, command: &str) -> Result<Outcome, Error> {
        let folder = study.folder();
        let complete = folder.join("complete.json");
        if complete.exists() {
            std::fs::remove_file(&complete).map_err(Error::io("remove", &complete))?;
        }
        let selected = self.selected(study)?;
        let runs = self.finished(study)?;
        let mut report = Report::new(&self.name, &runs, command);
        report.labels = runs.iter().map(RunRecord::name).collect();
        report.findings = findings(&selected);
        let states = &study.state().runs;
        let failed: Vec<[String; 2]> = states
            .iter()
            .filter_map(|run| match &run.state {
                RunState::Failed { message } => Some([run.name.clone(), message.clone()]),
                _ => None,
            })
            .collect();
        if !failed.is_empty() {
            let rows = failed.iter().map(|failed| failed.to_vec()).collect();
            report.findings.push(Block::Heading("Failed".into()));
            report.findings.push(Block::table(&["run", "what it said"], rows));
        }
        report.comparison = json!(selected);
        let mut files = report.write(folder)?;
        for model in &selected {
            files.push(write_selected(study, model)?);
        }
        let name = |file: &PathBuf| {
            file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let outcome = Outcome {
            campaign: self.name.clone(),
            finished: runs.len(),
            failed,
            selected,
            files: files.iter().map(name).collect(),
        };
        let text = serde_json::to_string_pretty(&outcome).expect("an outcome is plain data");
        write_file(&complete, format!("{text}\n").as_bytes())?;
        Ok(outcome)
    }

    fn selected(&self, study: &Study) -> Result<Vec<Selected>, Error> {
        let only = |ranked: Vec<(&PlannedRun, Ranked)>| -> Vec<Ranked> {
            ranked.into_iter().map(|(_, ranked)| ranked).collect()
        };
        let mut all = Vec::new();
        for model in &self.models {
            let short = only(rank(&model.short, study.folder())?);
            let promoted: Vec<PlannedRun> = match &self.promotion {
                Some(promotion) => model
                    .short
                    .iter()
                    .map(|run| promotion.promoted(run))
                    .collect::<Result<_, _>>()?,
                None => Vec::new(),
            };
            let long = only(rank(&promoted, study.folder())?);
            let best = long.first().or(short.first()).cloned().ok_or_else(|| Error::Study {
                place: format!("model {}", model.name),
                message: "none of its runs is finished; --resume tries them again".into(),
            })?;
            let states = &study.state().runs;
            let is_mine = |name: &str| model.short.iter().chain(&promoted).any(|r| r.name == name);
            let failed = states.iter().filter(|run| matches!(run.state, RunState::Failed { .. }));
            let failed = failed.map(|run| run.name.clone()).filter(|name| is_mine(name));
            let failed = failed.collect();
            all.push(Selected { model: model.name.clone(), best, short, long, failed });
        }
        Ok(all)
    }
}

/// The tables of the rankings.
fn findings(selected: &[Selected]) -> Vec<Block> {
    let mut blocks = vec![Block::Heading("Selected".into())];
    let loss = |ranked: &Ranked| {
        let bpb = ranked.bpb.map_or_else(|| "-".into(), |bpb| format!("{bpb:.4}"));
        [format!("{:.4}", ranked.loss_nats), bpb, ranked.tokens.to_string()]
    };
    let row = |model: &Selected| {
        let head = vec![model.model.clone(), model.best.run.clone()];
        head.into_iter().chain(loss(&model.best)).collect()
    };
    let head = ["model", "run", "nats/token", "bits/byte", "tokens"];
    blocks.push(Block::table(&head, selected.iter().map(row).collect()));
    for model in selected {
        blocks.push(Block::Heading(format!("Ranking of {}", model.model)));
        let ranked = model.short.iter().map(|run| ("short", run));
        let ranked = ranked.chain(model.long.iter().map(|run| ("long", run)));
        let row = |(stage, run): (&str, &Ranked)| {
            let head = vec![run.run.clone(), stage.to_owned()];
            head.into_iter().chain(loss(run)).collect()
        };
        let head = ["run", "stage", "nats/token", "bits/byte", "tokens"];
        blocks.push(Block::table(&head, ranked.map(row).collect()));
    }
    blocks
}

/// `selected-MODEL.yaml`: the settings of the best run, section by section, and what it reached.
fn write_selected(study: &Study, selected: &Selected) -> Result<PathBuf, Error> {
    let record = RunRecord::read(&study.run_folder(&selected.best.run))?;
    let mut text = format!(
        "# Selected by a campaign; the same settings as TOML: configs/{}.toml\nmodel_name: {}\nrun: {}\n\
         validation_loss_nats: {}\n",
        selected.best.run,
        json!(selected.model),
        json!(selected.best.run),
        selected.best.loss_nats
    );
    if let Some(bpb) = selected.best.bpb {
        let _ = writeln!(text, "validation_bpb: {bpb}");
    }
    text.push_str(&yaml(&record.settings));
    let file = study.folder().join(format!("selected-{}.yaml", selected.model));
    write_file(&file, text.as_bytes())?;
    Ok(file)
}

/// Settings as YAML. Their values as TOML are flow values of YAML too.
fn yaml(settings: &Settings) -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        if settings.get(key.name).is_none() || key.name == "run.output_dir" {
            continue;
        }
        let (this, name) = key.name.split_once('.').expect("every key has a section");
        if this != section {
            let _ = writeln!(text, "{this}:");
            section = this;
        }
        let _ = writeln!(text, "  {name}: {}", settings.shown(key.name));
    }
    text
}
