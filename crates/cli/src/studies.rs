//! What `compare` and `campaign` share: making the runs of a study while telling how it goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use trainer::study::{Fleet, FleetEvent, PlannedRun, RunState, Study};

use crate::args;
use crate::output::{self, note};
use crate::signals;

/// Where studies go that name no folder.
const RUNS: &str = "runs";

/// How the runs of a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// As far as they could be made.
    All,
    /// The study was asked to stop.
    Stopped,
}

/// A study being made.
pub struct Making {
    /// The study.
    pub study: Study,
    fleet: Fleet,
    stop: Arc<AtomicBool>,
}

impl Making {
    /// Opens the study called `name` in the folder asked for, or in a numbered one after `folder_name`.
    pub fn open(fleet: &args::Fleet, name: &str, folder_name: &str) -> Result<Self> {
        let stop = signals::stop_flag()?;
        let folder = folder(fleet, folder_name);
        let devices = fleet.devices.clone();
        for device in &devices {
            crate::devices::parse(device)?;
        }
        let study = Study::open(&folder, name, fleet.resume)?;
        note(&format!("watch it with: {} watch {}", output::program(), folder.display()));
        let (program, ranks, retries) = (program()?, fleet.ranks.into(), fleet.retries);
        Ok(Self { study, fleet: Fleet { program, devices, ranks, retries }, stop })
    }

    /// Makes the runs that are not finished.
    pub fn make(&mut self, runs: &[PlannedRun]) -> Result<Made> {
        let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
        let mut done = 0;
        let all = names.len();
        let logs = self.study.folder().join("logs");
        let mut fleet = self.fleet.clone();
        if fleet.devices.is_empty() {
            fleet.devices = devices_for(runs);
        }
        let stopped = self.study.run(&names, &fleet, &self.stop, &mut |event| {
            if matches!(event, FleetEvent::Finished { .. } | FleetEvent::Failed { .. }) {
                done += 1;
            }
            note(&format!("[{done}/{all}] {}", words(event, &logs)));
        })?;
        if stopped {
            note(&format!(
                "stopped; go on with the same command and --resume --output-dir {}",
                self.study.folder().display()
            ));
            return Ok(Made::Stopped);
        }
        Ok(Made::All)
    }

    /// Fails if a run did.
    pub fn must_be_whole(&self) -> Result<()> {
        let runs = &self.study.state().runs;
        let failed = runs.iter().filter(|run| matches!(run.state, RunState::Failed { .. }));
        let names: Vec<&str> = failed.map(|run| run.name.as_str()).collect();
        if !names.is_empty() {
            bail!(
                "{} of {} runs failed: {}; --resume tries them again",
                names.len(),
                runs.len(),
                names.join(", ")
            );
        }
        Ok(())
    }
}

/// The device that the settings of all runs name, or all there are.
fn devices_for(runs: &[PlannedRun]) -> Vec<String> {
    let named = |run: &PlannedRun| run.settings.text("run.device").unwrap_or("auto").to_owned();
    match runs.first().map(named) {
        Some(device) if device != "auto" && runs.iter().all(|run| named(run) == device) => {
            vec![device]
        }
        _ => Fleet::all_devices(),
    }
}

/// The folder asked for, or a numbered one after `name`.
pub fn folder(fleet: &args::Fleet, name: &str) -> PathBuf {
    fleet.output_dir.clone().unwrap_or_else(|| {
        let taken = trainer::last_taken(Path::new(RUNS), name).filter(|_| fleet.resume);
        taken.unwrap_or_else(|| trainer::first_free(Path::new(RUNS), name))
    })
}

/// This program, to be started again.
pub fn program() -> Result<PathBuf> {
    std::env::current_exe().context("the system does not say where this program lies")
}

/// The command that was given, as a report tells it.
pub fn command_line() -> String {
    let arguments = std::env::args().skip(1).map(|argument| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    });
    std::iter::once("packed-adamw".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn words(event: &FleetEvent, logs: &Path) -> String {
    match event {
        FleetEvent::Started { name, device, resumes: false } => {
            format!("{name} begins on {device}")
        }
        FleetEvent::Started { name, device, resumes: true } => {
            format!("{name} goes on on {device}")
        }
        FleetEvent::Finished { name } => format!("{name} is finished"),
        FleetEvent::Retried { name, message } => {
            format!("{name} failed and is tried again: {message}")
        }
        FleetEvent::Failed { name, message } => {
            format!("{name} failed: {message} (see {})", logs.join(format!("{name}.log")).display())
        }
        FleetEvent::Stopped { name } => format!("{name} stopped with a checkpoint"),
    }
}
