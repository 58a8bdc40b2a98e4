//! Checkpoints that are written while training goes on: one at a time, on a thread of its own.
//!
//! A device's memory is copied first; hashing and flushing it then takes the processor and the disk, which a
//! run on a GPU has no other use for.

use std::path::PathBuf;
use std::thread::JoinHandle;

use model::Layout;
use optimizer::SavedState;

use crate::checkpoint::{Checkpoints, Keep, Snapshot};
use crate::error::Error;
use crate::manifest::Manifest;

/// Everything of a checkpoint, in memory of its own.
#[derive(Debug)]
pub struct Copied {
    /// The manifest.
    pub manifest: Manifest,
    /// Where each parameter lies.
    pub layout: Layout,
    /// All parameters.
    pub parameters: Vec<f32>,
    /// The optimizer's state.
    pub optimizer: SavedState<'static>,
    /// The bytes of the tokenizer file.
    pub tokenizer: Vec<u8>,
}

impl Copied {
    /// It, as it is written.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            manifest: self.manifest.clone(),
            layout: &self.layout,
            parameters: &self.parameters,
            optimizer: &self.optimizer,
            tokenizer: &self.tokenizer,
        }
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
            Ok(Written { update, path: checkpoints.write(copied.snapshot(), keep)? })
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
