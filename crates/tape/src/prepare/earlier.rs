//! What stands in the output folder already: other preparations, what they left, and earlier tapes.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::aside::{PARTIAL_ENDING, sync_folder};
use crate::checksum::Checksum;
use crate::disk::FileLock;
use crate::layout::set::{SET_ENDING, TapeSet};
use crate::layout::{
    BYTE_LENGTHS_ENDING, Element, Part, PreparationRecord, SIDECAR_ENDING, SourceRecord,
    SplitRecord, TapeFiles,
};
use crate::reader::{Tape, TapeSource, Verify};
use crate::writer::{Form, SealedTape, TapeRecord};

/// The file that keeps two preparations out of one folder. It is empty and stays.
const LOCK_NAME: &str = ".prepare.lock";

/// Keeps other preparations out of `folder` as long as the lock lives, and removes what an interrupted one left behind.
pub(super) fn lock(folder: &Path) -> Result<FileLock, Error> {
    let wrong = |source| Error::write(folder, source);
    let file = File::create(folder.join(LOCK_NAME)).map_err(wrong)?;
    let lock = FileLock::take(file).map_err(|error| match error {
        TryLockError::WouldBlock => Error::Busy { path: folder.to_owned() },
        TryLockError::Error(source) => wrong(source),
    })?;
    for (path, name) in entries(folder)? {
        if name.starts_with('.') && name.ends_with(PARTIAL_ENDING) {
            fs::remove_file(path).map_err(wrong)?;
        }
    }
    Ok(lock)
}

/// Paths and names in `folder`, sorted.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, String)>, Error> {
    let wrong = |source| Error::write(folder, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        found.push((entry.path(), entry.file_name().to_string_lossy().into_owned()));
    }
    found.sort();
    Ok(found)
}

/// All files of tapes of `parts`, of any form.
pub(super) fn files(folder: &Path, parts: &[Part]) -> Result<Vec<PathBuf>, Error> {
    let of_tape = |name: &str| parts.iter().any(|&part| is_of_part(name, part));
    let found = entries(folder)?.into_iter().filter(|(_, name)| of_tape(name));
    Ok(found.map(|(path, _)| path).collect())
}

fn is_of_part(name: &str, part: Part) -> bool {
    let Some(rest) = name.strip_prefix(part.name()) else { return false };
    let (is_shard, ending) = match rest.strip_prefix('-') {
        Some(rest) => {
            let ending = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            (rest.len() - ending.len() >= 5, ending)
        }
        None => (true, rest),
    };
    let endings = [BYTE_LENGTHS_ENDING, SIDECAR_ENDING, SET_ENDING];
    let tokens = Element::ALL.map(Element::tokens_ending);
    is_shard && (endings.contains(&ending) || tokens.contains(&ending))
}

/// Whether training would take the file at `path`.
fn is_taken(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.ends_with(SET_ENDING)
        || Element::ALL.iter().any(|element| name.ends_with(element.tokens_ending()))
}

/// The tapes of `parts` that are there, if each was prepared with this key and is still whole.
pub(super) fn with_key(folder: &Path, parts: &[Part], key: Checksum) -> Option<Vec<TapeRecord>> {
    parts.iter().map(|&part| of_part(folder, part, key)).collect()
}

fn of_part(folder: &Path, part: Part, key: Checksum) -> Option<TapeRecord> {
    let list = TapeSet::in_folder(folder, part);
    let single =
        Element::ALL.map(|element| TapeFiles::with_stem(folder, part.name(), element).tokens);
    let mut found = std::iter::once(list).chain(single).filter(|path| path.exists());
    let source = TapeSource::at(found.next()?);
    if found.next().is_some() {
        return None;
    }
    let tape = Tape::open_with(&source, None, Verify::Now).ok()?;
    let record = record_of(&tape, part)?;
    (record.preparation.cache_key == key).then_some(record)
}

/// What is known of a tape that is there.
fn record_of(tape: &Tape, part: Part) -> Option<TapeRecord> {
    struct Known<'t> {
        documents: u64,
        source_bytes: u64,
        split: Option<SplitRecord>,
        preparation: &'t PreparationRecord,
        sources: &'t [SourceRecord],
        shard_tokens: Option<u64>,
    }
    let known = match (tape.set(), tape.sidecar()) {
        (Some(set), _) => Known {
            documents: set.documents,
            source_bytes: set.source_bytes,
            split: set.split,
            preparation: &set.preparation,
            sources: &set.sources,
            shard_tokens: Some(set.shard_tokens),
        },
        (None, sidecar) => {
            let sidecar = sidecar?;
            Known {
                documents: sidecar.documents,
                source_bytes: sidecar.source_bytes,
                split: sidecar.split,
                preparation: sidecar.preparation.as_ref()?,
                sources: &sidecar.sources,
                shard_tokens: None,
            }
        }
    };
    Some(TapeRecord {
        part,
        source: tape.source().clone(),
        form: Form { element: tape.element(), shard_tokens: known.shard_tokens },
        count: tape.len(),
        sha256: tape.checksum(),
        documents: known.documents,
        source_bytes: known.source_bytes,
        split: known.split,
        preparation: known.preparation.clone(),
        sources: known.sources.to_vec(),
    })
}

/// Gives all tapes their names, in place of earlier ones of the same parts. A set of old and new tapes is
/// never there to be trained on: what training would take of the old ones goes first.
pub(super) fn replace(
    folder: &Path,
    parts: &[Part],
    sealed: Vec<SealedTape>,
) -> Result<Vec<TapeRecord>, Error> {
    let earlier = files(folder, parts)?;
    for path in earlier.iter().filter(|path| is_taken(path)) {
        remove(path)?;
    }
    sync_folder(folder)?;
    let named = sealed.iter().flat_map(SealedTape::targets).map(Path::to_owned).collect::<Vec<_>>();
    let tapes = sealed.into_iter().map(SealedTape::commit).collect::<Result<_, _>>()?;
    for path in earlier.iter().filter(|path| !named.contains(path)) {
        remove(path)?;
    }
    sync_folder(folder)?;
    Ok(tapes)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::write(path, source)),
        _ => Ok(()),
    }
}
