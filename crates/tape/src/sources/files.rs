//! Which files there are under a path or pattern, and of what kind.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::checksum::Checksum;
use crate::disk::open_file;
use crate::layout::SourceRecord;

/// The path that stands for standard input.
pub const STANDARD_INPUT: &str = "-";

/// Something to read.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) origin: Origin,
    /// Its name from the given file, folder or wildcard on, with `/` between folders.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) compression: Compression,
    /// Its size as stored; `None` for standard input.
    pub(super) bytes: Option<u64>,
}

impl SourceFile {
    /// Name, size and hash of the stored bytes; `None` for standard input.
    pub(super) fn record(&self) -> Result<Option<SourceRecord>, Error> {
        let Origin::File(path) = &self.origin else { return Ok(None) };
        let read = || Checksum::of_reader(open_file(path)?);
        let (sha256, bytes) = read().map_err(|source| Error::read(path, source))?;
        Ok(Some(SourceRecord { name: self.name.clone(), bytes, sha256 }))
    }
}

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    File(PathBuf),
    StandardInput,
}

impl Origin {
    /// What messages call it.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::StandardInput => PathBuf::from("standard input"),
        }
    }
}

/// How the text of a file becomes documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Plain text or Markdown.
    #[default]
    Text,
    /// JSON objects, one a line.
    Lines,
    /// The rows of a Parquet file.
    Rows,
}

/// How a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
    /// Gzip or zstd where the first bytes say so: standard input has no name.
    ByContent,
}

/// All files that `paths` name, in the order of the paths. `standard_input` is the kind of `-`.
pub(super) fn expand_all(
    paths: &[impl AsRef<Path>],
    standard_input: Kind,
) -> Result<Vec<SourceFile>, Error> {
    let mut found = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if path == Path::new(STANDARD_INPUT) {
            found.push(of_standard_input(standard_input)?);
        } else if path.exists() || !is_pattern(path) {
            found.extend(expand(path)?);
        } else {
            found.extend(expand_pattern(path)?);
        }
    }
    refuse_twice(&found)?;
    Ok(found)
}

fn of_standard_input(kind: Kind) -> Result<SourceFile, Error> {
    let origin = Origin::StandardInput;
    if kind == Kind::Rows {
        let problem = "it cannot be read from standard input: its index stands at its end; name \
                       the file"
            .to_owned();
        return Err(Error::Parquet { path: origin.path(), problem });
    }
    let name = "standard input".to_owned();
    Ok(SourceFile { origin, name, kind, compression: Compression::ByContent, bytes: None })
}

/// One file that is reached on two ways would be trained on twice, unasked.
fn refuse_twice(files: &[SourceFile]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for file in files {
        let origin = match &file.origin {
            // A path that cannot be resolved is no other file's; opening it says what is wrong.
            Origin::File(path) => Origin::File(fs::canonicalize(path).unwrap_or(path.clone())),
            Origin::StandardInput => Origin::StandardInput,
        };
        if !seen.insert(origin) {
            return Err(Error::InputTwice { path: file.origin.path() });
        }
    }
    Ok(())
}

/// The file at `path`, or all readable files under the folder there, in the order of names.
fn expand(path: &Path) -> Result<Vec<SourceFile>, Error> {
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
    of_path(path, name.to_string_lossy().into_owned(), &metadata)
}

/// The file or folder at `path`, known as `name`.
fn of_path(path: &Path, name: String, metadata: &Metadata) -> Result<Vec<SourceFile>, Error> {
    if !metadata.is_dir() {
        let unknown = || Error::UnknownKind { path: path.to_owned() };
        let found = of_file(path.to_owned(), name, metadata.len()).ok_or_else(unknown)?;
        return Ok(vec![found]);
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
        } else if kind_of(&path).is_some() {
            // A link to nowhere has no size; opening it says what is wrong.
            let metadata = fs::metadata(&path).ok();
            if metadata.as_ref().is_none_or(Metadata::is_file) {
                let bytes = metadata.map_or(0, |metadata| metadata.len());
                found.extend(of_file(path, name, bytes));
            }
        }
    }
    Ok(())
}

/// Whether the path holds a wildcard.
fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

/// The files and folders that a pattern matches, in the order of names; `**` stands for folders.
///
/// A shell does this itself where the pattern is not quoted.
fn expand_pattern(pattern: &Path) -> Result<Vec<SourceFile>, Error> {
    let wrong =
        |problem: String| Error::Pattern { pattern: pattern.display().to_string(), problem };
    let text = pattern.to_str().ok_or_else(|| wrong("it is not UTF-8".to_owned()))?;
    let options =
        glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let matches = glob::glob_with(text, options).map_err(|error| wrong(error.to_string()))?;
    // Names begin at the first folder that a wildcard stands for.
    let fixed: PathBuf = pattern.components().take_while(|c| !is_pattern(c.as_ref())).collect();
    let mut found = Vec::new();
    for path in matches {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            Error::Read { path, source: error.into() }
        })?;
        let metadata = fs::metadata(&path).map_err(|source| Error::read(&path, source))?;
        let name = path.strip_prefix(&fixed).unwrap_or(&path).to_string_lossy().into_owned();
        // A pattern may also match what is no text, such as a read-me without an ending.
        match of_path(&path, name, &metadata) {
            Err(Error::UnknownKind { .. } | Error::EmptyFolder { .. }) => {}
            files => found.extend(files?),
        }
    }
    if found.is_empty() {
        return Err(wrong("it matches no file of a known kind".to_owned()));
    }
    Ok(found)
}

fn of_file(path: PathBuf, name: String, bytes: u64) -> Option<SourceFile> {
    let (kind, compression) = kind_of(&path)?;
    Some(SourceFile { origin: Origin::File(path), name, kind, compression, bytes: Some(bytes) })
}

/// What the ending of the name says, in any case of letters.
fn kind_of(path: &Path) -> Option<(Kind, Compression)> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (stem, compression) = if let Some(stem) = name.strip_suffix(".gz") {
        (stem, Compression::Gzip)
    } else if let Some(stem) = name.strip_suffix(".zst") {
        (stem, Compression::Zstd)
    } else {
        (name.as_str(), Compression::None)
    };
    let kind = match stem.rsplit_once('.')?.1 {
        "txt" | "md" | "markdown" => Kind::Text,
        "jsonl" | "json" | "ndjson" => Kind::Lines,
        // Parquet compresses inside.
        "parquet" if compression == Compression::None => Kind::Rows,
        _ => return None,
    };
    Some((kind, compression))
}
