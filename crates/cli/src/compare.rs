//! `compare`: matched pairs of runs, made here or there already, and what they say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde_json::json;
use trainer::RunRecord;
use trainer::compare::{
    Comparing, Comparison, HEAD, Matched, Pairing, TunedRuns, Variation, report, seeds,
};
use trainer::study::{PlannedRun, Study};

use crate::Done;
use crate::args::Compare;
use crate::output::{self, Usage, note};
use crate::studies::{self, Made};
use crate::{settings, table};

pub fn run(args: &Compare) -> Result<Done> {
    if args.runs.is_empty() { make(args) } else { existing(args).map(|()| Done::Finished) }
}

/// Compares run folders that are there.
fn existing(args: &Compare) -> Result<()> {
    let runs: Vec<RunRecord> =
        args.runs.iter().map(|folder| Ok(RunRecord::read(folder)?)).collect::<Result<_>>()?;
    let varied = args.vary.as_ref().map(|key| key.split('=').next().unwrap_or(key).to_owned());
    let pairing = Pairing { varied, baseline: args.baseline.clone(), tuned: Vec::new() };
    let comparison = Comparison::new(&Matched::new(&runs, &pairing, None)?)?;
    let folder = args.fleet.output_dir.clone().unwrap_or_else(|| PathBuf::from("comparison"));
    show(args, &comparison, &runs, &folder)
}

/// Makes the runs of a comparison, tuning first, and compares them.
fn make(args: &Compare) -> Result<Done> {
    let (base, name) = settings::load(&args.configuration)?;
    let vary = args.vary.as_ref().ok_or_else(|| {
        anyhow!(Usage(
            "say what differs with --vary KEY=V1,V2,..., or name run folders to compare".into()
        ))
    })?;
    let comparing = Comparing {
        settings: base,
        varied: Variation::parse(vary, "--vary")?,
        seeds: seeds(&args.seeds)?,
        tuned: args.tune.as_ref().map(|tune| Variation::parse(tune, "--tune")).transpose()?,
        perturbation: args.perturbation,
        shadow: args.shadow,
    };
    if comparing.varied.values.len() < 2 {
        return Err(anyhow!(Usage(format!(
            "--vary {vary}: one value has nothing to be compared with"
        ))));
    }
    if args.shadow && comparing.varied.key != "optimizer.state" {
        return Err(anyhow!(Usage("--shadow goes with --vary optimizer.state=...".into())));
    }
    let mut making = studies::Making::open(&args.fleet, &name, &format!("compare-{name}"))?;

    let tuning = comparing.tuning_runs()?;
    making.study.plan("tuning", &tuning)?;
    if comparing.tuned.is_none() {
        // Known from the start, so that what a live view shows is whole.
        making.study.plan("pairs", &comparing.runs(&BTreeMap::new())?)?;
    }
    if making.make(&tuning)? == Made::Stopped {
        return Ok(Done::Stopped);
    }
    let tuning = records(&making.study, &tuning)?;
    let tuned = TunedRuns::new(&comparing, &tuning)?;

    let best = tuned.as_ref().map(|tuned| tuned.best.clone()).unwrap_or_default();
    let planned = comparing.runs(&best)?;
    making.study.plan("pairs", &planned)?;
    if making.make(&planned)? == Made::Stopped {
        return Ok(Done::Stopped);
    }
    let runs: Vec<RunRecord> = records(&making.study, &planned)?.into_iter().flatten().collect();
    let pairing = Pairing {
        varied: Some(comparing.varied.key.clone()),
        baseline: Some(comparing.varied.values[0].trim_matches('"').to_owned()),
        tuned: comparing.tuned.iter().map(|tuned| tuned.key.clone()).collect(),
    };
    let comparison = Comparison::new(&Matched::new(&runs, &pairing, tuned)?)?;
    let folder = making.study.folder().to_owned();
    show(args, &comparison, &runs, &folder)?;
    making.must_be_whole()?;
    Ok(Done::Finished)
}

fn records(study: &Study, planned: &[PlannedRun]) -> Result<Vec<Option<RunRecord>>> {
    planned.iter().map(|run| Ok(study.finished(&run.name)?)).collect()
}

fn show(args: &Compare, comparison: &Comparison, runs: &[RunRecord], folder: &Path) -> Result<()> {
    report(comparison, runs, &studies::command_line(), args.csv, folder)?;
    if args.json {
        output::json(&json!(comparison))?;
    } else {
        output::data(&format!("{}\n", table::columns(&HEAD, &comparison.rows())))?;
    }
    note(&format!(
        "\n{}\n\nreport: {}",
        comparison.remarks(),
        folder.join("report.html").display()
    ));
    Ok(())
}
