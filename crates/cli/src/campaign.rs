//! `campaign`: a file of models and settings, run here or handed to a Slurm cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use trainer::campaign::{Campaign, LONG, Outcome, SHORT, Submission};
use trainer::study::{PlannedRun, RunState, Study};
use trainer::{Ending, Request, World};

use crate::Done;
use crate::args;
use crate::output::{self, Usage, note};
use crate::progress::Training;
use crate::studies::{self, Made, Making};
use crate::{ranks, signals, table};

pub fn run(args: &args::Campaign) -> Result<Done> {
    let mut campaign = Campaign::load(&args.file, &args.assignments)?;
    if let Some(file) = &args.benchmark {
        for line in campaign.take_fastest(&fastest(file)?)? {
            note(&format!("fastest, {line}"));
        }
    }
    if args.dry_run {
        return show(&campaign).map(|()| Done::Finished);
    }
    if args.slurm {
        return write_scripts(args, &campaign).map(|()| Done::Finished);
    }
    if let Some(task) = &args.task {
        return make_one(args, &campaign, task);
    }
    if args.collect {
        return collect(args, &campaign).map(|()| Done::Finished);
    }
    make_all(args, campaign)
}

fn make_all(args: &args::Campaign, campaign: Campaign) -> Result<Done> {
    let folder_name = format!("campaign-{}", campaign.name.trim_start_matches("campaign-"));
    let mut making = Making::open(&args.fleet, &campaign.name, &folder_name)?;
    let short = campaign.short_runs();
    making.study.plan(SHORT, &short)?;
    if making.make(&short)? == Made::Stopped {
        return Ok(Done::Stopped);
    }
    let long = campaign.long_runs(making.study.folder())?;
    if !long.is_empty() {
        making.study.plan(LONG, &long)?;
        if making.make(&long)? == Made::Stopped {
            return Ok(Done::Stopped);
        }
    }
    let outcome = campaign.conclude(&making.study, &studies::command_line())?;
    show_outcome(args, &outcome, making.study.folder())?;
    making.must_be_whole()?;
    Ok(Done::Finished)
}

fn show(campaign: &Campaign) -> Result<()> {
    let row = |run: &PlannedRun| {
        let length = ["run.updates", "run.tokens", "run.rdq"].into_iter();
        let length = length.filter(|key| run.settings.get(key).is_some());
        let length: Vec<String> =
            length.map(|key| format!("{key} = {}", run.settings.shown(key))).collect();
        vec![run.name.clone(), length.join(" ")]
    };
    let rows: Vec<_> = campaign.short_runs().iter().map(row).collect();
    output::data(&format!("{}\n", table::columns(&["run", "length"], &rows)))?;
    note(&format!(
        "{} runs, then {} promoted; dry run: nothing was written",
        rows.len(),
        campaign.long_count()
    ));
    Ok(())
}

fn show_outcome(args: &args::Campaign, outcome: &Outcome, folder: &Path) -> Result<()> {
    if args.json {
        output::json(&json!(outcome))?;
    } else {
        let row = |selected: &trainer::campaign::Selected| {
            let bpb = selected.best.bpb.map_or_else(|| "-".into(), |bpb| format!("{bpb:.4}"));
            let nats = format!("{:.4}", selected.best.loss_nats);
            vec![selected.model.clone(), selected.best.run.clone(), nats, bpb]
        };
        let rows: Vec<_> = outcome.selected.iter().map(row).collect();
        let head = ["model", "selected", "nats/token", "bits/byte"];
        output::data(&format!("{}\n", table::columns(&head, &rows)))?;
    }
    note(&format!("report: {}", folder.join("report.html").display()));
    Ok(())
}

/// The fastest settings of each model, by the name of its configuration, of a file of `bench train`.
fn fastest(file: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let text = trainer::read_text(file).with_context(|| file.display().to_string())?;
    let rows: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let mut best: BTreeMap<String, (f64, Vec<String>)> = BTreeMap::new();
    for row in rows.as_array().into_iter().flatten() {
        let (Some(name), Some(rate), Some(settings)) =
            (row["name"].as_str(), row["tokens_per_s"].as_f64(), row["settings"].as_object())
        else {
            continue;
        };
        if best.get(name).is_none_or(|(fastest, _)| rate > *fastest) {
            let assignment = |(key, value): (&String, &Value)| {
                format!("{key}={}", value.as_str().unwrap_or_default())
            };
            best.insert(name.to_owned(), (rate, settings.iter().map(assignment).collect()));
        }
    }
    if best.is_empty() {
        bail!(Usage(format!("{}: no measurement in it has a name and settings", file.display())));
    }
    Ok(best.into_iter().map(|(name, (_, settings))| (name, settings)).collect())
}

fn write_scripts(args: &args::Campaign, campaign: &Campaign) -> Result<()> {
    let absolute = |path: &Path| std::path::absolute(path).context("there is no working folder");
    let folder = absolute(&studies::folder(&args.fleet, &campaign.name))?;
    let mut study = Study::open(&folder, &campaign.name, args.fleet.resume)?;
    study.plan(SHORT, &campaign.short_runs())?;
    let mut arguments = Vec::new();
    for assignment in &args.assignments {
        arguments.extend(["--set".to_owned(), assignment.clone()]);
    }
    if let Some(file) = &args.benchmark {
        arguments.extend(["--benchmark".to_owned(), absolute(file)?.to_string_lossy().into()]);
    }
    let (file, program, ranks) =
        (absolute(&args.file)?, studies::program()?, args.fleet.ranks.into());
    let submission = Submission { folder, file, program, arguments, ranks };
    let scripts = campaign.write_slurm(&submission)?;
    // Tasks open the folder too.
    drop(study);
    let mut before: Option<String> = None;
    for (index, script) in scripts.iter().enumerate() {
        let call = script.sbatch_arguments(before.as_deref()).join(" ");
        if args.submit {
            let job = script.submit(&args.sbatch, before.as_deref())?;
            note(&format!("job {job}: {} {call}", args.sbatch.display()));
            before = Some(job);
        } else {
            output::data(&format!("J{index}=$({} {call})\n", args.sbatch.display()))?;
            before = Some(format!("$J{index}"));
        }
    }
    Ok(())
}

/// Makes one run in this process and those of the other ranks, or goes on with it.
fn make_one(args: &args::Campaign, campaign: &Campaign, task: &str) -> Result<Done> {
    let world = ranks::join()?;
    let stop = signals::stop_flag()?;
    ranks::together(&world, || make_task(args, campaign, task, &world, &stop))
}

fn make_task(
    args: &args::Campaign,
    campaign: &Campaign,
    task: &str,
    world: &World,
    stop: &AtomicBool,
) -> Result<Done> {
    let folder = output_dir(args)?;
    let run = run_of_task(campaign, task, &folder)?;
    let run_folder = folder.join("runs").join(&run.name);
    // Rank 0 looks what is there, and all do the same.
    let found = if world.is_first() { clear_way(&run_folder)? } else { "" };
    let found = world.text_of_first(found.to_owned())?;
    if found == FINISHED {
        if world.is_first() {
            note(&format!("{} is finished", run.name));
        }
        world.leave()?;
        return Ok(Done::Finished);
    }
    let mut settings = run.settings;
    if let Some(device) = args.fleet.devices.first() {
        settings.set_text("run.device", device, "--devices")?;
    }
    let resume = found == BEGUN;
    let request = Request { settings: &settings, folder: run_folder, resume, stop };
    if world.is_first() {
        note(&format!("{} as task {task}", run.name));
    }
    match trainer::run_with(&request, world, &mut Training::default())? {
        Ending::Finished(_) => Ok(Done::Finished),
        Ending::Stopped { .. } => Ok(Done::Stopped),
    }
}

fn run_of_task(campaign: &Campaign, task: &str, folder: &Path) -> Result<PlannedRun> {
    let refused = |found: &str| {
        anyhow!(Usage(format!("--task {task}: {found}; expected short:INDEX or long:INDEX")))
    };
    let (stage, index) = task
        .split_once(':')
        .and_then(|(stage, index)| Some((stage, index.parse::<usize>().ok()?)))
        .ok_or_else(|| refused("no stage and number"))?;
    let mut runs = match stage {
        SHORT => campaign.short_runs(),
        LONG => campaign.long_runs(folder)?,
        _ => return Err(refused("no such stage")),
    };
    if index >= runs.len() {
        return Err(refused(&format!("there are {} runs in this stage", runs.len())));
    }
    Ok(runs.swap_remove(index))
}

/// What a task finds of its run.
const FINISHED: &str = "finished";
const BEGUN: &str = "begun";

/// Removes what a run without a checkpoint left behind; what is there of it then.
fn clear_way(run_folder: &Path) -> Result<&'static str> {
    if run_folder.join("summary.json").exists() {
        return Ok(FINISHED);
    }
    if run_folder.join("checkpoints/latest").exists() {
        return Ok(BEGUN);
    }
    if run_folder.exists() {
        std::fs::remove_dir_all(run_folder).with_context(|| run_folder.display().to_string())?;
    }
    Ok("")
}

/// Takes what tasks made for the runs of a study and writes what comes of it.
fn collect(args: &args::Campaign, campaign: &Campaign) -> Result<()> {
    let folder = output_dir(args)?;
    let mut study = Study::open(&folder, &campaign.name, true)?;
    study.plan(LONG, &campaign.long_runs(&folder)?)?;
    for name in study.state().runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>() {
        let state = if study.finished(&name)?.is_some() {
            RunState::Finished
        } else {
            RunState::Failed { message: "its task left no summary.json; see logs/".into() }
        };
        study.set_state(&name, state)?;
    }
    let outcome = campaign.conclude(&study, &studies::command_line())?;
    show_outcome(args, &outcome, &folder)?;
    if !outcome.failed.is_empty() {
        bail!("{} runs are not finished; submit them again", outcome.failed.len());
    }
    Ok(())
}

fn output_dir(args: &args::Campaign) -> Result<PathBuf> {
    args.fleet.output_dir.clone().ok_or_else(|| {
        anyhow!(Usage("a task needs the --output-dir that --slurm wrote the scripts for".into()))
    })
}
