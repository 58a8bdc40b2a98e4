//! `study.json`: what a study plans and how far each run is.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tape::aside::write_file;

use crate::error::Error;

/// What a study plans and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyState {
    /// The name of the study.
    pub name: String,
    /// Its runs, in the order in which they were planned.
    pub runs: Vec<StateOfRun>,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateOfRun {
    /// Its name.
    pub name: String,
    /// The stage that it belongs to.
    pub stage: String,
    /// How far it is.
    #[serde(flatten)]
    pub state: RunState,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// It was not begun, or it was stopped and shall go on.
    Waiting,
    /// A process makes it.
    Running {
        /// On this device.
        device: String,
    },
    /// It is finished.
    Finished,
    /// It failed as often as it may.
    Failed {
        /// What its last process said.
        message: String,
    },
}

impl StudyState {
    /// Reads the state of the study in a folder; none where there is no study.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or that holds something else.
    pub fn read_if_present(folder: &Path) -> Result<Option<Self>, Error> {
        let file = folder.join("study.json");
        if !file.exists() {
            return Ok(None);
        }
        let text = crate::read::bytes(&file).map_err(Error::io("read", &file))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| Error::Damaged {
            file,
            line: error.line(),
            message: error.to_string(),
            remedy: "remove it and repeat the command without --resume; finished runs stay",
        })
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("a state is plain data");
        Ok(write_file(&folder.join("study.json"), format!("{text}\n").as_bytes())?)
    }
}
