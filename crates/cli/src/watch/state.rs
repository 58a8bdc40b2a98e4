//! What is watched: runs and their files, read on from where the last look ended.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use trainer::events::{Event, Update, Validation};
use trainer::study::{RunState, StudyState};

use crate::output::Usage;

/// What is watched.
pub struct Watched {
    path: PathBuf,
    /// What it is called.
    pub title: String,
    /// Its runs.
    pub runs: Vec<WatchedRun>,
    /// The position of the run whose curves are shown.
    pub selected: usize,
    /// Whether curves are drawn over time in place of tokens.
    pub over_time: bool,
    /// Whether the first tenth of the curves is left out.
    pub late_only: bool,
}

/// A run, as far as it is known.
pub struct WatchedRun {
    /// Its name.
    pub name: String,
    /// The stage of the study that it belongs to.
    pub stage: String,
    /// Its state, in a word.
    pub state: &'static str,
    /// What it was last told to do.
    pub started: Option<Started>,
    /// Every update.
    pub updates: Vec<Update>,
    /// Every validation.
    pub validations: Vec<Validation>,
    tail: Tail,
    is_ended: bool,
}

/// How a run began.
pub struct Started {
    pub updates_total: u64,
    pub device: String,
    pub state_format: String,
}

/// A file that grows.
struct Tail {
    path: PathBuf,
    read: u64,
    /// A line whose end was not there yet.
    rest: Vec<u8>,
}

impl Watched {
    /// Opens a run folder or the folder of a study.
    pub fn open(path: &Path) -> Result<Self> {
        let is_study = path.join("study.json").exists();
        if !is_study && !path.join("config.toml").exists() {
            return Err(anyhow!(Usage(format!(
                "{}: neither a run folder (config.toml) nor a study (study.json)",
                path.display()
            ))));
        }
        let title = path.display().to_string();
        let mut watched = Self {
            path: path.to_owned(),
            title,
            runs: Vec::new(),
            selected: 0,
            over_time: false,
            late_only: false,
        };
        if !is_study {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            watched.runs.push(WatchedRun::new(&name.unwrap_or_default(), "", path));
        }
        watched.refresh()?;
        // What goes on is of most interest, then what came last.
        let running = watched.runs.iter().position(|run| run.state == "running");
        let begun = watched.runs.iter().rposition(|run| !run.updates.is_empty());
        watched.selected = running.or(begun).unwrap_or(0);
        Ok(watched)
    }

    /// Reads what was written since the last look.
    pub fn refresh(&mut self) -> Result<()> {
        if let Some(study) = StudyState::read_if_present(&self.path)? {
            self.title = format!("{}: {}", self.path.display(), study.name);
            for planned in study.runs {
                let folder = self.path.join("runs").join(&planned.name);
                let position = self.runs.iter().position(|run| run.name == planned.name);
                let position = position.unwrap_or_else(|| {
                    self.runs.push(WatchedRun::new(&planned.name, &planned.stage, &folder));
                    self.runs.len() - 1
                });
                self.runs[position].state = match planned.state {
                    RunState::Waiting => "waiting",
                    RunState::Running { .. } => "running",
                    RunState::Finished => "finished",
                    RunState::Failed { .. } => "failed",
                };
            }
        }
        self.runs.iter_mut().try_for_each(WatchedRun::refresh)
    }

    /// Moves the selection.
    pub fn select(&mut self, by: isize) {
        let last = self.runs.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}

impl WatchedRun {
    fn new(name: &str, stage: &str, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            stage: stage.to_owned(),
            state: "waiting",
            started: None,
            updates: Vec::new(),
            validations: Vec::new(),
            tail: Tail { path: folder.join("metrics.jsonl"), read: 0, rest: Vec::new() },
            is_ended: false,
        }
    }

    fn refresh(&mut self) -> Result<()> {
        let (lines, begins_anew) = self.tail.lines()?;
        if begins_anew {
            self.updates.clear();
            self.validations.clear();
        }
        for line in lines {
            let event: Event = serde_json::from_str(&line).with_context(|| {
                format!("{}: a line that is no event", self.tail.path.display())
            })?;
            self.take(event);
        }
        // A study knows the states of its runs; a run alone tells its own.
        if self.stage.is_empty() {
            self.state = if self.is_ended { "finished" } else { "running" };
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { updates_total, device, state_format, .. } => {
                self.started = Some(Started { updates_total, device, state_format });
                self.is_ended = false;
            }
            Event::Update(update) => self.updates.push(update),
            Event::Validation(found) => self.validations.push(found),
            Event::FinalValidation(found) => {
                // Of the whole tape, in place of the one of a part of it.
                self.validations.retain(|earlier| earlier.update != found.update);
                self.validations.push(found);
            }
            Event::Finished { .. } => self.is_ended = true,
            _ => {}
        }
    }

    /// Updates done.
    pub fn done(&self) -> u64 {
        self.updates.last().map_or(0, |update| update.update)
    }

    /// Seconds left at the mean pace so far; none where nothing is known, or nothing is left.
    pub fn left_s(&self) -> Option<f64> {
        let (last, started) = (self.updates.last()?, self.started.as_ref()?);
        let left = started.updates_total.saturating_sub(last.update);
        (left > 0 && self.state == "running")
            .then(|| last.elapsed_s / last.update as f64 * left as f64)
    }
}

impl Tail {
    /// Lines that are whole since the last time; whether the file was written anew, so that they are all there are.
    fn lines(&mut self) -> Result<(Vec<String>, bool)> {
        let Ok(mut file) = tape::disk::open_file(&self.path) else {
            return Ok((Vec::new(), false));
        };
        let failed = || self.path.display().to_string();
        let begins_anew = file.metadata().with_context(failed)?.len() < self.read;
        if begins_anew {
            self.read = 0;
            self.rest.clear();
        }
        file.seek(SeekFrom::Start(self.read)).with_context(failed)?;
        self.read += file.read_to_end(&mut self.rest).with_context(failed)? as u64;
        let end = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        let lines = String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect();
        Ok((lines, begins_anew))
    }
}
