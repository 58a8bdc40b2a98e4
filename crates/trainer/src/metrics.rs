//! `metrics.jsonl`: one event a line.
//!
//! The file is only ever appended to, except at a resume, where lines of updates that the checkpoint
//! does not have are dropped (the run makes them again) and a last line that was cut in the middle is
//! dropped too. That rewrite goes to a file aside first.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use tape::aside::write_file;

use crate::error::Error;
use crate::events::Event;
use crate::read;
use crate::tensorboard::TensorBoard;

/// An open metrics file, or none on ranks that do not write.
#[derive(Debug)]
pub struct Metrics {
    file: Option<File>,
    path: PathBuf,
    mirror: Option<TensorBoard>,
}

impl Metrics {
    /// Opens `path` for appending, after dropping what belongs to updates beyond `update`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or written, or a line in its middle that is no event.
    pub fn open(path: &Path, update: u64) -> Result<Self, Error> {
        if path.exists() {
            let mut kept = String::new();
            for event in read(path)?.into_iter().filter(|event| belongs(event, update)) {
                kept.push_str(&line(&event));
            }
            write_file(path, kept.as_bytes())?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(Error::io("open", path))?;
        Ok(Self { file: Some(file), path: path.to_owned(), mirror: None })
    }

    /// No file: events are dropped.
    #[must_use]
    pub fn nowhere() -> Self {
        Self { file: None, path: PathBuf::new(), mirror: None }
    }

    /// Appends events to `mirror` too from here on.
    pub fn mirror(&mut self, mirror: TensorBoard) {
        self.mirror = Some(mirror);
    }

    /// Appends an event, if it is one that is kept.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn append(&mut self, event: &Event) -> Result<(), Error> {
        match &mut self.file {
            Some(file) if kept(event) => {
                let written = file.write_all(line(event).as_bytes());
                written.map_err(Error::io("write", &self.path))?;
                self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.append(event))
            }
            _ => Ok(()),
        }
    }
}

/// Reads all events of a metrics file. A last line without its newline is taken for cut and dropped.
///
/// # Errors
///
/// A file that cannot be read, or a whole line that is no event.
pub fn read(path: &Path) -> Result<Vec<Event>, Error> {
    read_whole_lines(path).map(|(events, _)| events)
}

/// As [`read`]; also whether a last line was cut.
///
/// # Errors
///
/// As for [`read`].
pub fn read_whole_lines(path: &Path) -> Result<(Vec<Event>, bool), Error> {
    let mut reader = BufReader::new(read::open(path).map_err(Error::io("read", path))?);
    let mut events = Vec::new();
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        let length = reader.read_line(&mut text).map_err(Error::io("read", path))?;
        if length == 0 || !text.ends_with('\n') {
            return Ok((events, length > 0));
        }
        events.push(serde_json::from_str(&text).map_err(|error| Error::Damaged {
            file: path.to_owned(),
            line: number,
            message: error.to_string(),
            remedy: "take the line out; its event is lost",
        })?);
    }
    unreachable!("lines end before their numbers do");
}

/// Seconds of training time that the events record.
#[must_use]
pub fn elapsed_s(events: &[Event]) -> f64 {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Update(update) => Some(update.elapsed_s),
            Event::Validation(validation) | Event::FinalValidation(validation) => {
                Some(validation.elapsed_s)
            }
            _ => None,
        })
        .fold(0.0, f64::max)
}

/// Training tokens a second over all updates that the events record; zero where they record none.
#[must_use]
pub fn tokens_per_s(events: &[Event]) -> f64 {
    let updates = events.iter().filter_map(|event| match event {
        Event::Update(update) => Some(update),
        _ => None,
    });
    let (tokens, ms) = updates.fold((0.0, 0.0), |(tokens, ms), update| {
        (tokens + update.tokens_per_s * update.ms / 1e3, ms + update.ms)
    });
    if ms > 0.0 { tokens / ms * 1e3 } else { 0.0 }
}

/// Reads the events of a run folder's metrics file, or none where there is no such file.
///
/// # Errors
///
/// As for [`read`].
pub fn read_if_present(path: &Path) -> Result<Vec<Event>, Error> {
    if fs::exists(path).map_err(Error::io("look for", path))? { read(path) } else { Ok(Vec::new()) }
}

fn line(event: &Event) -> String {
    let mut text = serde_json::to_string(event).expect("events have no maps and no failing parts");
    text.push('\n');
    text
}

/// Progress and pieces of text are for the eye only.
fn kept(event: &Event) -> bool {
    !matches!(
        event,
        Event::Preparing { .. }
            | Event::Readying { .. }
            | Event::Validating { .. }
            | Event::Sample { .. }
    )
}

/// Whether the event happened at or before `update`.
fn belongs(event: &Event, update: u64) -> bool {
    match event {
        Event::Update(done) => done.update <= update,
        Event::Validation(done) => done.update <= update,
        Event::Checkpoint { update: done, .. } | Event::Started { update: done, .. } => {
            *done <= update
        }
        Event::Stopped { .. } | Event::Finished { .. } | Event::FinalValidation(_) => false,
        Event::Preparing { .. }
        | Event::Readying { .. }
        | Event::Validating { .. }
        | Event::Sample { .. } => false,
    }
}
