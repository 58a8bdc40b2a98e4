//! Which texts were there before, in bounded memory.
//!
//! A text is known by the first 128 bits of its SHA-256. The newest ones are in a hash table; when it is
//! full, it goes to disk as a sorted run with a small index, and a look-up reads one 4 KiB piece of each
//! run. Memory stays below about 300 MB, and one byte for each sixteen texts on disk.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::aside::{AsideFile, SealedFile};

/// Texts in the table when it goes to disk.
const RECENT_MAX: usize = 14_000_000;

/// Bytes of one text on disk.
const ENTRY_BYTES: usize = 16;

/// Entries of one piece of a run.
const PIECE_ENTRIES: usize = 256;

/// The texts that were seen.
pub(crate) struct SeenTexts {
    folder: PathBuf,
    recent: HashSet<u128>,
    recent_max: usize,
    runs: Vec<Run>,
}

/// A sorted file of texts.
struct Run {
    path: PathBuf,
    file: File,
    /// The first entry of each piece.
    index: Vec<u128>,
    entries: usize,
    /// Removes the file in the end.
    _sealed: SealedFile,
}

impl SeenTexts {
    /// None seen yet; what does not fit in memory goes to `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self::with_bound(folder, RECENT_MAX)
    }

    fn with_bound(folder: &Path, recent_max: usize) -> Self {
        let (folder, recent, runs) = (folder.to_owned(), HashSet::new(), Vec::new());
        Self { folder, recent, recent_max, runs }
    }

    /// Adds a text; false if it was there before.
    ///
    /// # Errors
    /// [`Error::Write`] or [`Error::Read`] where a run cannot be written or read.
    pub(crate) fn add(&mut self, text: u128) -> Result<bool, Error> {
        if self.recent.contains(&text) {
            return Ok(false);
        }
        for run in &mut self.runs {
            if run.holds(text)? {
                return Ok(false);
            }
        }
        self.recent.insert(text);
        if self.recent.len() >= self.recent_max {
            let mut texts: Vec<u128> = self.recent.drain().collect();
            texts.sort_unstable();
            let target = self.folder.join(format!("seen-{}", self.runs.len()));
            self.runs.push(Run::write(&target, &texts)?);
        }
        Ok(true)
    }
}

impl Run {
    fn write(target: &Path, texts: &[u128]) -> Result<Self, Error> {
        let mut file = AsideFile::create(target)?;
        for piece in texts.chunks(PIECE_ENTRIES) {
            let bytes: Vec<u8> = piece.iter().flat_map(|text| text.to_le_bytes()).collect();
            file.write(&bytes)?;
        }
        let sealed = file.seal()?;
        let path = sealed.partial().to_owned();
        let file = File::open(&path).map_err(|source| Error::read(&path, source))?;
        let index = texts.iter().step_by(PIECE_ENTRIES).copied().collect();
        Ok(Self { path, file, index, entries: texts.len(), _sealed: sealed })
    }

    fn holds(&mut self, text: u128) -> Result<bool, Error> {
        let after = self.index.partition_point(|&first| first <= text);
        let Some(piece) = after.checked_sub(1) else { return Ok(false) };
        let start = piece * PIECE_ENTRIES;
        let count = PIECE_ENTRIES.min(self.entries - start);
        let mut bytes = [0; PIECE_ENTRIES * ENTRY_BYTES];
        let bytes = &mut bytes[..count * ENTRY_BYTES];
        let offset = (start * ENTRY_BYTES) as u64;
        let read =
            self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.read_exact(bytes));
        read.map_err(|source| Error::read(&self.path, source))?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Ok(entries.binary_search_by_key(&text, |entry| u128::from_le_bytes(*entry)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_in_memory_and_on_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut seen = SeenTexts::with_bound(folder.path(), 700);
        let text = |i: u128| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        for i in 0..5000 {
            assert!(seen.add(text(i)).expect("a full disk is unlikely"), "{i}");
            assert!(!seen.add(text(i / 2)).expect("as above"), "{i}");
        }
        assert_eq!(seen.runs.len(), 7);
        drop(seen);
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "runs are removed");
    }
}
