//! A set of runs, each in a process and a folder of its own, one process a device.
//!
//! `compare` and `campaign` make their runs here. A run that fails is made again or marked, and the others go on.
//! A stop is passed on to every process, which ends with a complete checkpoint; a study that goes on finds what is
//! finished, what has a checkpoint, and what must begin anew.
//!
//! | path | what it holds |
//! |---|---|
//! | `study.json` | every planned run with its state, replaced whole whenever one changes |
//! | `configs/NAME.toml` | the settings of a run |
//! | `runs/NAME/` | its run folder |
//! | `logs/NAME.log` | what its processes said |

mod fleet;
mod state;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tape::aside::write_file;

use crate::config::{Config, decides_bits};
use crate::error::Error;
use crate::folder::RunFolder;
use crate::read;
use crate::record::RunRecord;
use crate::settings::{KEYS, Settings};

pub use fleet::{Fleet, FleetEvent, stop_with_parent};
pub use state::{RunState, StateOfRun, StudyState};

/// A run that a study makes.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// Its name, distinct in the study; see [`file_name`].
    pub name: String,
    /// Its settings.
    pub settings: Settings,
}

/// A study in its folder, which this process holds the lock of.
#[derive(Debug)]
pub struct Study {
    folder: PathBuf,
    state: StudyState,
    _lock: RunFolder,
}

impl Study {
    /// Takes a new or empty folder for a study of that name, or goes on with the one that is there.
    ///
    /// # Errors
    ///
    /// A folder that holds another study, or one although this is a new one, or none although it goes on; a folder
    /// in use.
    pub fn open(folder: &Path, name: &str, resume: bool) -> Result<Self, Error> {
        let there = StudyState::read_if_present(folder)?;
        let wrong = |message: String| Error::Study { place: folder.display().to_string(), message };
        let state = match there {
            Some(_) if !resume => {
                return Err(wrong(
                    "holds a study already; go on with it by --resume, or choose another --output-dir"
                        .into(),
                ));
            }
            None if resume => {
                return Err(wrong("there is no study to go on with; leave --resume away".into()));
            }
            Some(state) if state.name != name => {
                return Err(wrong(format!("holds the study {}, not {name}", state.name)));
            }
            Some(state) => state,
            None => StudyState { name: name.to_owned(), runs: Vec::new() },
        };
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let lock = RunFolder::reopen(folder)?;
        for part in ["configs", "runs", "logs"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
        }
        Ok(Self { folder: folder.to_owned(), state, _lock: lock })
    }

    /// Plans runs of a stage; ones that were planned before must be the same.
    ///
    /// # Errors
    ///
    /// Colliding names, settings that make no sense, and a run that was planned with other settings.
    pub fn plan(&mut self, stage: &str, runs: &[PlannedRun]) -> Result<(), Error> {
        for (index, run) in runs.iter().enumerate() {
            if runs[..index].iter().any(|other| other.name == run.name) {
                return Err(self.wrong(&run.name, "two runs have this name"));
            }
            Config::new(&run.settings)?;
            let file = self.config_file(&run.name);
            if file.exists() {
                self.must_be_the_same(run, &file)?;
            } else {
                let mut settings = run.settings.clone();
                settings.remove("run.output_dir");
                write_file(&file, settings.to_toml().as_bytes())?;
            }
            if !self.state.runs.iter().any(|known| known.name == run.name) {
                self.state.runs.push(StateOfRun {
                    name: run.name.clone(),
                    stage: stage.to_owned(),
                    state: RunState::Waiting,
                });
            }
        }
        self.state.write(&self.folder)
    }

    fn must_be_the_same(&self, run: &PlannedRun, file: &Path) -> Result<(), Error> {
        let text = read::own_text(file).map_err(Error::io("read", file))?;
        let mut before = Settings::new();
        before.add_file(&text, file)?;
        let decides = |key: &&str| decides_bits(&run.settings, key) || key.starts_with("data.");
        let mut keys = KEYS.iter().map(|key| key.name).filter(decides);
        match keys.find(|key| !before.has_same(&run.settings, key)) {
            Some(key) => Err(self.wrong(
                &run.name,
                &format!(
                    "was planned with `{key}` = {} and now has {}; choose another --output-dir",
                    before.shown(key),
                    run.settings.shown(key)
                ),
            )),
            None => Ok(()),
        }
    }

    /// Makes the runs of these names that are not finished, and tells `observer` what happens. True when it was
    /// asked to stop.
    ///
    /// # Errors
    ///
    /// Processes that cannot be started, and what the file system refuses. Runs that fail are no error; their
    /// state tells.
    pub fn run(
        &mut self,
        names: &[String],
        fleet: &Fleet,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&FleetEvent),
    ) -> Result<bool, Error> {
        fleet.run(self, names, stop, observer)
    }

    /// Notes the state of a run.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn set_state(&mut self, name: &str, state: RunState) -> Result<(), Error> {
        if let Some(run) = self.state.runs.iter_mut().find(|run| run.name == name) {
            run.state = state;
        }
        self.state.write(&self.folder)
    }

    /// The states of all planned runs.
    #[must_use]
    pub fn state(&self) -> &StudyState {
        &self.state
    }

    /// The folder of the study.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The settings of a run.
    #[must_use]
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.folder.join("configs").join(format!("{name}.toml"))
    }

    /// The folder of a run.
    #[must_use]
    pub fn run_folder(&self, name: &str) -> PathBuf {
        self.folder.join("runs").join(name)
    }

    /// What the processes of a run said.
    #[must_use]
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    /// A run that is finished, read back; none if it is not.
    ///
    /// # Errors
    ///
    /// Files that cannot be read.
    pub fn finished(&self, name: &str) -> Result<Option<RunRecord>, Error> {
        let folder = self.run_folder(name);
        if folder.join("summary.json").exists() {
            RunRecord::read(&folder).map(Some)
        } else {
            Ok(None)
        }
    }

    fn wrong(&self, name: &str, message: &str) -> Error {
        let place = format!("{}: run {name}", self.folder.display());
        Error::Study { place, message: message.to_owned() }
    }
}

/// A text as the name of a file: what is neither letter, digit nor one of `.+-=_` becomes `-`.
#[must_use]
pub fn file_name(text: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || ".+-=_".contains(c);
    let name: String = text.chars().map(|c| if good(c) { c } else { '-' }).collect();
    name.trim_matches(['-', '.']).to_owned()
}
