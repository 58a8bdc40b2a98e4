//! Files as they lie on a disk: opened only if they are files, and locked against other processes.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::path::Path;

/// Opens what must be a file: a pipe would be waited for, and a device read without end.
///
/// # Errors
/// What the file system refuses, and whatever is no file.
pub fn open_file(path: &Path) -> io::Result<File> {
    check_file(&fs::metadata(path)?, "a file")?;
    File::open(path)
}

/// Refuses what is no file, where `expected` is.
pub(crate) fn check_file(found: &Metadata, expected: &str) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let found = if found.is_dir() { "a folder" } else { "a device or a pipe" };
    Err(io::Error::other(format!("expected {expected}, found {found}")))
}

/// The lock of a file, which ends with the value, or the process.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock of a file that is open.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if somebody else has it, and what the file system refuses.
    pub fn take(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }

    /// Whether somebody has the lock of the file at `path`.
    #[must_use]
    pub fn is_taken(path: &Path) -> bool {
        let Ok(file) = File::open(path) else { return false };
        match file.try_lock_shared() {
            // By name, as in `drop`.
            Ok(()) => file.unlock().is_err(),
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => false,
        }
    }
}

impl Drop for FileLock {
    /// Gives the lock back by name: closing the file would not, while a program that another thread is just starting
    /// still has a copy of its descriptor.
    fn drop(&mut self) {
        // What cannot be unlocked is unlocked by the end of the process.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_descriptor_in_a_program_being_started_keeps_nothing_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let again = || FileLock::take(File::create(&path).unwrap());
        let lock = again().unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(matches!(again(), Err(TryLockError::WouldBlock)));
        assert!(FileLock::is_taken(&path));
        drop(lock);
        assert!(!FileLock::is_taken(&path));
        again().unwrap();
        drop(copy);
    }
}
