//! The run folder: what lies where, for one process at a time.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use tape::disk::FileLock;

use crate::error::Error;

/// The file whose lock is that of a run folder. It is empty and stays.
const LOCK: &str = "lock";

/// A run folder that this process, or the first rank of its run, holds the lock of. The lock ends with the value, or
/// the process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: Option<FileLock>,
}

impl RunFolder {
    /// Takes an empty or new folder for a new run.
    ///
    /// # Errors
    ///
    /// A folder that holds a run already or that another process uses, and what the file system refuses.
    pub fn create(path: &Path) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(Error::io("create", path))?;
        let folder = Self::lock(path)?;
        if folder.config().exists() || folder.checkpoints().exists() {
            return Err(Error::FolderTaken { folder: path.to_owned() });
        }
        Ok(folder)
    }

    /// Takes the folder of a run to go on with.
    ///
    /// # Errors
    ///
    /// A folder that is not there or that another process uses.
    pub fn reopen(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            let hint = "there is no such run folder; start the run without --resume";
            return Err(Error::NoCheckpoint { folder: path.to_owned(), hint });
        }
        Self::lock(path)
    }

    /// Whether a process works in a run folder.
    #[must_use]
    pub fn is_in_use(path: &Path) -> bool {
        FileLock::is_taken(&path.join(LOCK))
    }

    /// The folder of a run whose first rank holds the lock.
    #[must_use]
    pub fn visit(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }

    fn lock(path: &Path) -> Result<Self, Error> {
        let file = path.join(LOCK);
        let lock = File::create(&file).map_err(Error::io("create", &file))?;
        match FileLock::take(lock) {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(Error::FolderInUse { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(Error::io("lock", &file)(source)),
        }
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The effective configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        Self::config_in(&self.path)
    }

    /// The effective configuration of the run in a folder.
    #[must_use]
    pub fn config_in(folder: &Path) -> PathBuf {
        folder.join("config.toml")
    }

    /// The tapes of a run that makes its own text.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The events, one a line.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Events for TensorBoard.
    #[must_use]
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// What shadows of the run found.
    #[must_use]
    pub fn shadow(&self) -> PathBuf {
        self.path.join("shadow.jsonl")
    }

    /// The results, written last.
    #[must_use]
    pub fn summary(&self) -> PathBuf {
        self.path.join("summary.json")
    }

    /// The learning curves; `extension` is `svg` or `png`.
    #[must_use]
    pub fn curves(&self, extension: &str) -> PathBuf {
        self.path.join("curves").with_extension(extension)
    }
}

/// `root/name-N` with the first `N` from 1 that is free.
#[must_use]
pub fn first_free(root: &Path, name: &str) -> PathBuf {
    (1..)
        .map(|number: u64| root.join(format!("{name}-{number}")))
        .find(|path| !path.exists())
        .expect("some number is free")
}

/// `root/name-N` with the last `N` that exists without a gap before it.
#[must_use]
pub fn last_taken(root: &Path, name: &str) -> Option<PathBuf> {
    (1..)
        .map(|number: u64| root.join(format!("{name}-{number}")))
        .take_while(|path| path.exists())
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_in_use_as_long_as_its_value_lives() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::create(folder.path()).unwrap();
        assert!(matches!(RunFolder::reopen(folder.path()), Err(Error::FolderInUse { .. })));
        assert!(RunFolder::is_in_use(folder.path()));
        drop(run);
        assert!(!RunFolder::is_in_use(folder.path()));
        RunFolder::reopen(folder.path()).unwrap();
    }
}
