//! What a tape is on disk: file names and the JSON sidecar, as checked types.
//!
//! A tape is up to three files with one stem:
//!
//! ```text
//! train.tokens.u32         little-endian u32 token ids, nothing else
//! train.byte-lengths.u16   little-endian u16, bytes of source text that each token stands for
//! train.tape.json          the sidecar: counts, hashes, tokenizer, sources
//! ```
//!
//! This module reads and writes the sidecar; the token files are the matter of
//! [`writer`](crate::writer) and [`reader`](crate::reader).

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::{Error, aside};

/// The version of the layout that this crate writes and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The ending of a file of token ids.
pub const TOKENS_ENDING: &str = ".tokens.u32";
/// The ending of a file of byte lengths.
pub const BYTE_LENGTHS_ENDING: &str = ".byte-lengths.u16";
/// The ending of a sidecar.
pub const SIDECAR_ENDING: &str = ".tape.json";

/// No honest sidecar is larger: a million sources take about 150 MB.
const SIDECAR_BYTES_MAX: u64 = 512 << 20;

/// What a tape is for; its lower-case name is the stem of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Tokens to learn from.
    Train,
    /// Tokens to measure with, never trained on.
    Validation,
}

impl Part {
    /// `train` or `validation`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
        }
    }
}

/// Where the files of one tape are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapeFiles {
    /// The token ids.
    pub tokens: PathBuf,
    /// The byte lengths; without them there are no bits per byte.
    pub byte_lengths: Option<PathBuf>,
    /// The sidecar; without it only the form of the files is checked.
    pub sidecar: Option<PathBuf>,
}

impl TapeFiles {
    /// The three files that [`prepare`](crate::prepare::prepare) writes for `part` in `folder`.
    pub fn in_folder(folder: &Path, part: Part) -> Self {
        let file = |ending| folder.join(format!("{}{ending}", part.name()));
        Self {
            tokens: file(TOKENS_ENDING),
            byte_lengths: Some(file(BYTE_LENGTHS_ENDING)),
            sidecar: Some(file(SIDECAR_ENDING)),
        }
    }

    /// The tape at `tokens` with those companions of the same stem that exist beside it.
    ///
    /// A name that does not end in `.tokens.u32` has no stem, so no companions.
    pub fn beside(tokens: impl Into<PathBuf>) -> Self {
        let tokens = tokens.into();
        let stem = tokens.file_name().and_then(OsStr::to_str).and_then(|name| {
            let stem = name.strip_suffix(TOKENS_ENDING)?;
            Some(stem.to_owned())
        });
        let companion = |ending| {
            let path = tokens.with_file_name(format!("{}{ending}", stem.as_ref()?));
            path.exists().then_some(path)
        };
        let byte_lengths = companion(BYTE_LENGTHS_ENDING);
        let sidecar = companion(SIDECAR_ENDING);
        Self { tokens, byte_lengths, sidecar }
    }

    /// The same tape with its byte lengths at `path`.
    #[must_use]
    pub fn with_byte_lengths(mut self, path: impl Into<PathBuf>) -> Self {
        self.byte_lengths = Some(path.into());
        self
    }
}

/// One token file in a sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name, without folders.
    pub file: String,
    /// How many elements it holds (not bytes).
    pub count: u64,
    /// The SHA-256 of the whole file.
    pub sha256: Checksum,
}

/// The tokenizer in a sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecord {
    /// The SHA-256 of the tokenizer's JSON file.
    pub sha256: Checksum,
    /// Entries of the byte-level BPE, without the end-of-document id.
    pub entries: u32,
    /// V: entries + 1, for the end-of-document id.
    pub vocabulary: u32,
}

/// Where end-of-document ids stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndOfDocumentPolicy {
    /// One after every document, the last one too.
    AfterEveryDocument,
}

/// The end-of-document id in a sidecar. It stands for no text: its byte length is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndOfDocument {
    /// The id.
    pub id: u32,
    /// Where it stands.
    pub policy: EndOfDocumentPolicy,
}

/// How a corpus was split, in a sidecar.
///
/// A document is in the validation part if bytes 8 to 15 of the SHA-256 of its text, as a
/// big-endian number, are below `validation_fraction * 2^64`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRecord {
    /// Which part this tape is.
    pub part: Part,
    /// The expected share of validation documents, above 0 and below 1.
    pub validation_fraction: f64,
}

/// One source in a sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// The file's name from the given file or folder on, with `/` between folders;
    /// or what made the text.
    pub name: String,
    /// Its size in bytes, as stored (compressed where it is).
    pub bytes: u64,
    /// The SHA-256 of those bytes.
    pub sha256: Checksum,
}

/// The sidecar of a tape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The token ids.
    pub tokens: FileRecord,
    /// The byte lengths.
    pub byte_lengths: FileRecord,
    /// What made the ids.
    pub tokenizer: TokenizerRecord,
    /// What ends a document.
    pub end_of_document: EndOfDocument,
    /// How many documents, so also how many end-of-document ids.
    pub documents: u64,
    /// The sum of all byte lengths.
    pub source_bytes: u64,
    /// The split, or null when the whole corpus is this tape.
    pub split: Option<SplitRecord>,
    /// Everything that was read, in the order of reading.
    pub sources: Vec<SourceRecord>,
}

impl Sidecar {
    /// Reads and checks the sidecar at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::SidecarVersion`] if it is of another
    /// layout, [`Error::Sidecar`] if it is no sidecar or contradicts itself.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = read_bounded(path, SIDECAR_BYTES_MAX)?;
        Self::parse(path, &text)
    }

    /// Parses a sidecar; `path` is for the messages.
    fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Sidecar { path: path.to_owned(), problem };

        // The version goes first: another layout may well have other fields.
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let Version { format_version: found } =
            serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        if found != FORMAT_VERSION {
            let path = path.to_owned();
            return Err(Error::SidecarVersion { path, expected: FORMAT_VERSION, found });
        }

        let sidecar: Self =
            serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        match sidecar.contradiction() {
            Some(problem) => Err(wrong(problem)),
            None => Ok(sidecar),
        }
    }

    /// The first thing in which the sidecar cannot be true, whatever the files hold.
    fn contradiction(&self) -> Option<String> {
        let TokenizerRecord { entries, vocabulary, .. } = self.tokenizer;
        let (tokens, byte_lengths) = (self.tokens.count, self.byte_lengths.count);
        if tokens != byte_lengths {
            Some(format!("{tokens} tokens but {byte_lengths} byte lengths"))
        } else if entries.checked_add(1) != Some(vocabulary) {
            Some(format!("a vocabulary of {vocabulary} for {entries} entries, expected one more"))
        } else if self.end_of_document.id != entries {
            let id = self.end_of_document.id;
            Some(format!("end-of-document id {id}, expected {entries}, the one after all entries"))
        } else if self.documents > tokens {
            Some(format!("{} documents in {tokens} tokens", self.documents))
        } else {
            None
        }
    }

    /// The bytes that go to disk: indented JSON with a final newline.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a sidecar has only plain fields");
        json.push(b'\n');
        json
    }

    /// Writes the sidecar to `path`, aside and durable.
    ///
    /// # Errors
    /// [`Error::Write`] if it cannot be written; an earlier file is then still there.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        aside::write_file(path, &self.to_json())
    }
}

/// The whole file at `path`, unless it is longer than `bytes_max`.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|source| Error::read(path, source))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::FileTooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}
