//! `report`: pages on any set of runs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use trainer::RunRecord;
use trainer::report::Report;
use trainer::study::StudyState;

use crate::args;
use crate::output::{self, note};
use crate::studies;

pub fn run(args: &args::Report) -> Result<()> {
    let mut folders = Vec::new();
    for path in &args.paths {
        folders.extend(run_folders(path)?);
    }
    let runs: Vec<RunRecord> =
        folders.iter().map(|folder| Ok(RunRecord::read(folder)?)).collect::<Result<_>>()?;
    let mut report = Report::new(&args.title, &runs, &studies::command_line());
    report.csv = args.csv;
    report.tensorboard = args.tensorboard;
    let files = report.write(&args.output_dir)?;
    if args.json {
        output::json(&report.to_json())?;
    }
    for file in files {
        note(&file.display().to_string());
    }
    Ok(())
}

/// The run folders that a path stands for: itself, or those of the runs of a study that were begun.
fn run_folders(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(study) = StudyState::read_if_present(path)? else { return Ok(vec![path.to_owned()]) };
    let folders = study.runs.iter().map(|run| path.join("runs").join(&run.name));
    Ok(folders.filter(|folder| folder.join("config.toml").exists()).collect())
}
