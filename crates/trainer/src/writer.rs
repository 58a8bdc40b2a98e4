//! Checkpoints that are written while training goes on: one at a time, on a thread of its own.
//!
//! A device's memory is copied first, while training already goes on behind the copy; hashing and flushing it then takes
//! the processor and the disk, which a run on a GPU has no other use for.

use std::path::PathBuf;
use std::thread::JoinHandle;

use model::Layout;
use model::ops::FloatsLater;
use optimizer::SavedLater;

use crate::checkpoint::{Checkpoints, Keep, Snapshot};
use crate::error::Error;
use crate::manifest::Manifest;

/// Everything of a checkpoint, on its way to memory of its own.
pub struct Copied {
    /// The manifest.
    pub manifest: Manifest,
    /// Where each parameter lies.
    pub layout: Layout,
    /// All parameters.
    pub parameters: FloatsLater,
    /// The optimizer's state.
    pub optimizer: SavedLater,
    /// The bytes of the tokenizer file.
    pub tokenizer: Vec<u8>,
}

impl Copied {
    /// Has it written by `write` once all of it is there.
    ///
    /// # Errors
    ///
    /// What the device refuses, and those of `write`.
    pub fn write<R>(
        self,
        write: impl FnOnce(Snapshot<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (parameters, optimizer) = ((self.parameters)()?, (self.optimizer)()?);
        write(Snapshot {
            manifest: self.manifest,
            layout: &self.layout,
            parameters: &parameters,
            optimizer: &optimizer,
            tokenizer: &self.tokenizer,
        })
    }
}

/// A checkpoint that is complete on disk.
#[derive(Debug)]
pub struct Written {
    /// Updates done at that point.
    pub update: u64,
    /// Its directory.
    pub path: PathBuf,
}

/// Writes the checkpoints of a run.
#[derive(Debug)]
pub struct Writer {
    checkpoints: Checkpoints,
    writing: Option<JoinHandle<Result<Written, Error>>>,
}

impl Writer {
    /// A writer into `checkpoints`.
    #[must_use]
    pub fn new(checkpoints: Checkpoints) -> Self {
        Self { checkpoints, writing: None }
    }

    /// Begins to write a checkpoint. The one before must have been taken.
    ///
    /// # Panics
    ///
    /// If one is still being written.
    pub fn begin(&mut self, copied: Copied, keep: Keep) {
        assert!(self.writing.is_none(), "one checkpoint at a time");
        let checkpoints = self.checkpoints.clone();
        self.writing = Some(std::thread::spawn(move || {
            let update = copied.manifest.progress.update;
            let path = copied.write(|snapshot| checkpoints.write(snapshot, keep))?;
            Ok(Written { update, path })
        }));
    }

    /// The checkpoint that was begun, once it is complete. `None` if there is none, or if it is still being
    /// written and nobody `waits` for it.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoints::write`].
    pub fn take(&mut self, waits: bool) -> Result<Option<Written>, Error> {
        match self.writing.take_if(|writing| waits || writing.is_finished()) {
            Some(writing) => writing.join().expect("writing does not panic").map(Some),
            None => Ok(None),
        }
    }
}

impl Drop for Writer {
    /// An error that ends a run does not cut a checkpoint short.
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            // What went wrong there matters less than what ended the run.
            let _ = writing.join();
        }
    }
}
