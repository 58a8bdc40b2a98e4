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
//! For vocabularies of up to 65,536 the ids may also be little-endian u16, in `train.tokens.u16`; the
//! sidecar says which. A long tape may be several files of the same form, `train-00000.tokens.u32`
//! and so on, which `train.tape-set.json` lists ([`set`]).
//!
//! This module reads and writes the sidecar; the token files are the matter of
//! [`writer`](crate::writer) and [`reader`](crate::reader).

pub mod set;

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::disk::open_file;
use crate::{Error, aside};

/// The version of the layout that this crate writes and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The ending of a file of token ids in 32 bits, the default.
pub const TOKENS_ENDING: &str = ".tokens.u32";
/// The ending of a file of byte lengths.
pub const BYTE_LENGTHS_ENDING: &str = ".byte-lengths.u16";
/// The ending of a sidecar.
pub const SIDECAR_ENDING: &str = ".tape.json";

/// No honest sidecar is larger: a million sources take about 150 MB.
const SIDECAR_BYTES_MAX: u64 = 512 << 20;

/// Files are hashed as a whole and in blocks of 4 MiB, so that a part can be verified without the rest.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// How one token id is stored, always little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// Two bytes, for vocabularies of up to 65,536.
    U16,
    /// Four bytes.
    #[default]
    U32,
}

impl Element {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::U16, Self::U32];

    /// The size of one id.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The largest vocabulary whose ids fit.
    pub const fn vocabulary_max(self) -> u64 {
        1 << (8 * self.bytes())
    }

    /// How the names of files of such ids end.
    pub const fn tokens_ending(self) -> &'static str {
        match self {
            Self::U16 => ".tokens.u16",
            Self::U32 => TOKENS_ENDING,
        }
    }

    /// What the name of a file of ids says; u32 where it says nothing.
    pub fn of_name(path: &Path) -> Self {
        let ends = |element: &Self| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().ends_with(element.tokens_ending()))
        };
        Self::ALL.into_iter().find(ends).unwrap_or_default()
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

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
    /// The three files that [`prepare`](crate::prepare::prepare) writes for `part` in `folder`, with
    /// ids in 32 bits.
    pub fn in_folder(folder: &Path, part: Part) -> Self {
        Self::with_stem(folder, part.name(), Element::U32)
    }

    /// The three files in `folder` whose names begin with `stem`.
    pub fn with_stem(folder: &Path, stem: &str, element: Element) -> Self {
        let file = |ending| folder.join(format!("{stem}{ending}"));
        Self {
            tokens: file(element.tokens_ending()),
            byte_lengths: Some(file(BYTE_LENGTHS_ENDING)),
            sidecar: Some(file(SIDECAR_ENDING)),
        }
    }

    /// The tape at `tokens` with those companions of the same stem that exist beside it.
    ///
    /// A name that does not end in `.tokens.u32` or `.tokens.u16` has no stem, so no companions.
    pub fn beside(tokens: impl Into<PathBuf>) -> Self {
        let tokens = tokens.into();
        let ending = Element::of_name(&tokens).tokens_ending();
        let stem = tokens.file_name().and_then(OsStr::to_str).and_then(|name| {
            let stem = name.strip_suffix(ending)?;
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
    /// The SHA-256 of each block of [`BLOCK_BYTES`], the last one perhaps shorter; empty where the
    /// writer gave none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Checksum>,
}

impl FileRecord {
    /// What is wrong with the number of blocks, if there are any.
    fn wrong_blocks(&self, element_bytes: usize) -> Option<String> {
        let Some(bytes) = self.count.checked_mul(element_bytes as u64) else {
            return Some(format!("{} elements, more than a file can hold", self.count));
        };
        let (found, expected) = (self.blocks.len() as u64, bytes.div_ceil(BLOCK_BYTES));
        (found > 0 && found != expected)
            .then(|| format!("{found} hashes of blocks of {}, expected {expected}", self.file))
    }
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
    /// How an id is stored; absent for u32.
    #[serde(default, skip_serializing_if = "Element::is_default")]
    pub element: Element,
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
    /// How the documents were prepared; absent in files of a set, whose list says it once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<PreparationRecord>,
    /// Everything that was read, in the order of reading; empty in files of a set.
    pub sources: Vec<SourceRecord>,
}

/// What a preparation did beside writing tokens, in a sidecar or a list of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreparationRecord {
    /// A hash of all sources, the tokenizer, every option that shows in the result, and the version of
    /// the format: the same key, the same tape.
    pub cache_key: Checksum,
    /// Documents of all parts that were left out because they could not be read.
    pub skipped_documents: u64,
    /// Documents of all parts that were left out because an equal one came before.
    pub duplicate_documents: u64,
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
    ///
    /// # Errors
    /// Those of [`Sidecar::load`] but [`Error::Read`].
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        check_version(path, text)?;
        let wrong = |problem: String| Error::Sidecar { path: path.to_owned(), problem };
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
        } else if u64::from(vocabulary) > self.element.vocabulary_max() {
            Some(format!("ids of {} bytes for a vocabulary of {vocabulary}", self.element.bytes()))
        } else {
            let of_tokens = self.tokens.wrong_blocks(self.element.bytes());
            of_tokens.or_else(|| self.byte_lengths.wrong_blocks(size_of::<u16>()))
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

/// Whether `text` is of the version that is read here. It goes first: another layout may well have other
/// fields.
fn check_version(path: &Path, text: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    let wrong = |problem: String| Error::Sidecar { path: path.to_owned(), problem };
    let Version { format_version: found } =
        serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
    if found != FORMAT_VERSION {
        let path = path.to_owned();
        return Err(Error::SidecarVersion { path, expected: FORMAT_VERSION, found });
    }
    Ok(())
}

/// The whole file at `path`, unless it is longer than `bytes_max`.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let file = open_file(path).map_err(|source| Error::read(path, source))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|source| Error::read(path, source))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::FileTooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}
