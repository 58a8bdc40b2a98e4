//! Files written aside: complete under a temporary name first, then renamed.
//!
//! A reader sees either the earlier file or the whole new one, also after a crash or a full disk.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::{Error, disk};

/// The ending of every temporary name; such a file is never complete and may be deleted.
pub(crate) const PARTIAL_ENDING: &str = ".partial";

/// A file that does not yet have its name. Dropped before [`AsideFile::commit`], it is removed.
pub(crate) struct AsideFile {
    writer: BufWriter<File>,
    partial: PathBuf,
    target: PathBuf,
}

impl AsideFile {
    /// Creates `.NAME.PID.partial` in the folder of `target`.
    ///
    /// # Errors
    /// [`Error::Write`] if the file cannot be created, or if what has its name is no file: renaming would take a device
    /// such as `/dev/null` away from everybody.
    pub(crate) fn create(target: &Path) -> Result<Self, Error> {
        if let Ok(earlier) = fs::metadata(target) {
            disk::check_file(&earlier, "a file or nothing there")
                .map_err(|source| Error::write(target, source))?;
        }
        let name = target.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let process = std::process::id();
        let partial = target.with_file_name(format!(".{name}.{process}{PARTIAL_ENDING}"));
        let file = File::create(&partial).map_err(|source| Error::write(target, source))?;
        let writer = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { writer, partial, target: target.to_owned() })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`Error::Write`], for instance on a full disk.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer.write_all(bytes).map_err(|source| Error::write(&self.target, source))
    }

    /// Makes the content durable, so that only the rename is left to do.
    ///
    /// # Errors
    /// [`Error::Write`] if the content does not reach the disk.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.writer
            .flush()
            .and_then(|()| self.writer.get_ref().sync_all())
            .map_err(|source| Error::write(&self.target, source))
    }

    /// Closes the file, whole and durable, still without its name. Many files may wait so.
    ///
    /// # Errors
    /// [`Error::Write`] if the content does not reach the disk.
    pub(crate) fn seal(mut self) -> Result<SealedFile, Error> {
        self.sync()?;
        let (partial, target) = (std::mem::take(&mut self.partial), self.target.clone());
        Ok(SealedFile { partial, target })
    }

    /// Gives the file its name, replacing an earlier one, and makes both durable.
    ///
    /// # Errors
    /// [`Error::Write`] if a step fails; the earlier file is then still there.
    pub(crate) fn commit(self) -> Result<(), Error> {
        let sealed = self.seal()?;
        let folder = folder_of(&sealed.target).to_owned();
        sealed.commit()?;
        sync_folder(&folder)
    }
}

impl Drop for AsideFile {
    fn drop(&mut self) {
        // Nothing can be done about a failure; a sealed file has given its name away.
        if !self.partial.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// A whole and durable file that only lacks its name. Dropped before [`SealedFile::commit`], it is removed.
#[derive(Debug)]
pub(crate) struct SealedFile {
    partial: PathBuf,
    target: PathBuf,
}

impl SealedFile {
    /// The name that it will have.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Where it is until it has its name.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Gives the file its name, replacing an earlier one; [`sync_folder`] makes that durable.
    ///
    /// # Errors
    /// [`Error::Write`] if the rename fails; the earlier file is then still there.
    pub(crate) fn commit(self) -> Result<(), Error> {
        fs::rename(&self.partial, &self.target).map_err(|source| Error::write(&self.target, source))
    }
}

impl Drop for SealedFile {
    fn drop(&mut self) {
        // After a rename nothing has this name any more, and nothing can be done about a failure.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Writes `bytes` to `target` in one go, aside and durable.
///
/// # Errors
/// [`Error::Write`] if a step fails; an earlier file is then still there.
pub fn write_file(target: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = AsideFile::create(target)?;
    file.write(bytes)?;
    file.commit()
}

/// Makes the entries of `folder` (creations, renames, removals) durable. Only Unix can open a folder to say
/// so; elsewhere this does nothing.
///
/// # Errors
/// [`Error::Write`] if the folder cannot be opened or does not reach the disk.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    if cfg!(unix) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| Error::write(folder, source))?;
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
