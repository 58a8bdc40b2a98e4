//! Which files there are under a path, and of what kind.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// A file to read.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Its name from the given file or folder on, with `/` between folders.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) compression: Compression,
    /// Its size as stored.
    pub(super) bytes: u64,
}

/// How the text of a file becomes documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Lines,
}

/// How a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// The file at `path`, or all readable files under the folder there, in the order of names.
pub(super) fn expand(path: &Path) -> Result<Vec<SourceFile>, Error> {
    let metadata = fs::metadata(path).map_err(|source| Error::read(path, source))?;
    // A path such as `.` has no name of its own; what it stands for has.
    let name = match path.file_name() {
        Some(name) => name.to_owned(),
        None => fs::canonicalize(path)
            .map_err(|source| Error::read(path, source))?
            .file_name()
            .unwrap_or(OsStr::new("root"))
            .to_owned(),
    };
    let name = name.to_string_lossy().into_owned();
    if !metadata.is_dir() {
        let unknown = || Error::UnknownKind { path: path.to_owned() };
        let (kind, compression) = kind_of(path).ok_or_else(unknown)?;
        let (path, bytes) = (path.to_owned(), metadata.len());
        return Ok(vec![SourceFile { path, name, kind, compression, bytes }]);
    }
    let mut found = Vec::new();
    walk(path, &name, &mut found)?;
    if found.is_empty() {
        return Err(Error::EmptyFolder { path: path.to_owned() });
    }
    Ok(found)
}

/// Adds the files of `folder`, sorted by name, each folder where its name stands.
///
/// Links to files are followed, links to folders are not: they could lead in a circle.
fn walk(folder: &Path, folder_name: &str, found: &mut Vec<SourceFile>) -> Result<(), Error> {
    let wrong = |source| Error::read(folder, source);
    let mut entries =
        fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(wrong)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{folder_name}/{name}");
        if entry.file_type().map_err(|source| Error::read(&path, source))?.is_dir() {
            walk(&path, &name, found)?;
        } else if let Some((kind, compression)) = kind_of(&path) {
            let metadata = fs::metadata(&path).map_err(|source| Error::read(&path, source))?;
            if metadata.is_file() {
                found.push(SourceFile { path, name, kind, compression, bytes: metadata.len() });
            }
        }
    }
    Ok(())
}

/// What the ending of the name says, in any case of letters.
fn kind_of(path: &Path) -> Option<(Kind, Compression)> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (name, compression) = if let Some(name) = name.strip_suffix(".gz") {
        (name, Compression::Gzip)
    } else if let Some(name) = name.strip_suffix(".zst") {
        (name, Compression::Zstd)
    } else {
        (name.as_str(), Compression::None)
    };
    let kind = match name.rsplit_once('.')?.1 {
        "txt" | "md" | "markdown" => Kind::Text,
        "jsonl" => Kind::Lines,
        _ => return None,
    };
    Some((kind, compression))
}
