//! Everything that can go wrong between text and windows, each with what, where and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate. Every message names the file or value and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be opened or read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },

    /// A file cannot be written. Earlier files are as they were.
    #[error(
        "cannot write {}: {source}; earlier files are unchanged: check permissions and free space",
        path.display()
    )]
    Write {
        /// The final name of the file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },

    /// A compressed file cannot be unpacked.
    #[error(
        "cannot decompress {}: {source}; it is damaged or cut short, or asks for a zstd window \
         above 128 MiB (then recompress it with --long=27)",
        path.display()
    )]
    Decompress {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        source: io::Error,
    },

    /// A file of settings is longer than any honest one.
    #[error("{} is longer than {bytes_max} bytes; it is not a file of this kind", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The longest that is read.
        bytes_max: u64,
    },

    /// No input was named.
    #[error("no input; name at least one file or folder")]
    NoInput,

    /// A file's name does not say what is in it.
    #[error(
        "{} is of no known kind; expected a name ending in .txt, .md, .markdown, .jsonl, .ndjson or \
         .json, alone or followed by .gz or .zst, or in .parquet",
        path.display()
    )]
    UnknownKind {
        /// The file.
        path: PathBuf,
    },

    /// A folder holds nothing that can be read.
    #[error(
        "folder {} holds no text; expected names ending in .txt, .md, .markdown, .jsonl, .ndjson or \
         .json, alone or followed by .gz or .zst, or in .parquet",
        path.display()
    )]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },

    /// A file is named twice, or found on two ways.
    #[error(
        "{} is named twice; leave one out (data may be weighted at training, not by repetition)",
        path.display()
    )]
    InputTwice {
        /// The file.
        path: PathBuf,
    },

    /// A file pattern or regular expression that is wrong.
    #[error("the pattern {pattern:?} cannot be used: {problem}; correct it")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        problem: String,
    },

    /// A Parquet file that cannot be read.
    #[error("{} cannot be read as Parquet: {problem}; check the file and the name of the column", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A row of a Parquet file without usable text.
    #[error("{}, row {row}: expected text in column {column:?}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1 over all row groups.
        row: u64,
        /// The column that should hold the text.
        column: String,
        /// What is wrong.
        problem: String,
    },

    /// A source file has no text.
    #[error("{} is empty; fill it or leave it out", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// A document has no text.
    #[error("{}, line {line}: the document is empty; remove the line", path.display())]
    EmptyDocument {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },

    /// Text is not UTF-8.
    #[error(
        "{} is not UTF-8 at byte {offset}; convert it first, for example with \
         `iconv -f LATIN1 -t UTF-8`",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first wrong byte, counted from 0 in the decompressed text.
        offset: u64,
    },

    /// A line of a `.jsonl` file is not an object with the wanted text.
    #[error(
        "{}, line {line}: expected a JSON object with a string field {field:?}: {problem}",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The field that should hold the text.
        field: String,
        /// What is wrong, and in which column.
        problem: String,
    },

    /// A document does not fit in memory by intention.
    #[error(
        "{}: a document longer than {bytes_max} bytes begins at byte {offset}; cut it into several",
        path.display()
    )]
    DocumentTooLong {
        /// The file.
        path: PathBuf,
        /// Where the document begins, in the decompressed file.
        offset: u64,
        /// The longest document that is read.
        bytes_max: u64,
    },

    /// There were no documents at all.
    #[error("the corpus is empty: no document was read; give files that hold text")]
    EmptyCorpus,

    /// One side of the split got no document.
    #[error(
        "all {documents} documents fell outside the {part} part with a validation fraction of \
         {validation_fraction}; give more or shorter documents, another fraction, or separate \
         validation files"
    )]
    EmptyPart {
        /// `train` or `validation`.
        part: &'static str,
        /// How many documents there were.
        documents: u64,
        /// The fraction asked for.
        validation_fraction: f64,
    },

    /// The fraction makes no split.
    #[error(
        "a validation fraction of {found} makes no split; expected more than 0 and less than 1"
    )]
    ValidationFraction {
        /// The fraction asked for.
        found: f64,
    },

    /// A tape is there already.
    #[error("{} exists; choose another output folder or allow overwriting", path.display())]
    Exists {
        /// The file that would be replaced.
        path: PathBuf,
    },

    /// Another process prepares tapes in the same folder.
    #[error(
        "another process is preparing tapes in {}; wait for it or choose another output folder",
        path.display()
    )]
    Busy {
        /// The folder.
        path: PathBuf,
    },

    /// The progress callback asked to stop.
    #[error("stopped on request; nothing was written")]
    Stopped,

    /// A tokenizer file is not what this crate reads.
    #[error(
        "{}: expected {expected}, found {found}; use a file written by `packed-adamw tokenizer \
         train`",
        path.display()
    )]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },

    /// A vocabulary that cannot hold all bytes.
    #[error(
        "a tokenizer of {found} entries is too small; expected 256, one for each byte, to {most}"
    )]
    EntryCount {
        /// The entries asked for.
        found: usize,
        /// The largest number of entries.
        most: usize,
    },

    /// The training text has too little variety.
    #[error(
        "the text gives only {found} of {expected} tokenizer entries; give more text or ask for \
         fewer entries"
    )]
    EntriesNotReached {
        /// The entries asked for.
        expected: usize,
        /// The entries that could be made.
        found: usize,
    },

    /// The training text is longer than the counts can hold.
    #[error("the tokenizer cannot be trained on more than {bytes_max} bytes; give a sample")]
    TrainingTextTooLong {
        /// The longest text.
        bytes_max: u64,
    },

    /// A library that trains tokenizers failed.
    #[error("tokenizer training failed: {problem}; check the training text")]
    Training {
        /// What it says.
        problem: String,
    },

    /// An id that the tokenizer does not know.
    #[error(
        "id {id} at position {position} is outside the vocabulary of {vocabulary}; decode with the \
         tokenizer that made the ids"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// Its position among the ids to decode.
        position: usize,
        /// V.
        vocabulary: u32,
    },

    /// A tape's size is no whole number of elements.
    #[error(
        "{} has {bytes} bytes, which is no multiple of {element_bytes}; it was cut short or is no \
         such file: prepare it again",
        path.display()
    )]
    TapeSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size of one element.
        element_bytes: usize,
    },

    /// A tape without tokens.
    #[error("{} is empty; prepare it again from files that hold text", path.display())]
    TapeEmpty {
        /// The file.
        path: PathBuf,
    },

    /// A tape of one token.
    #[error("{} holds one token, so there is none to predict; prepare more text", path.display())]
    NoTargets {
        /// The tape.
        path: PathBuf,
    },

    /// Weights of a mixture that are no shares.
    #[error("{problem}: expected one positive number for each tape, none below 1 in 1,024 of all")]
    Weights {
        /// What is wrong.
        problem: String,
    },

    /// Tokens and byte lengths are not one to one.
    #[error(
        "{} holds {tokens} tokens but {} holds {byte_lengths} byte lengths; they do not belong \
         together: name files of one preparation",
        tokens_path.display(),
        byte_lengths_path.display()
    )]
    TapeCounts {
        /// The file of tokens.
        tokens_path: PathBuf,
        /// Its count.
        tokens: u64,
        /// The file of byte lengths.
        byte_lengths_path: PathBuf,
        /// Its count.
        byte_lengths: u64,
    },

    /// A file is not the one that its sidecar describes.
    #[error(
        "{} does not match its sidecar {}: {what} is {found}, expected {expected}; prepare the \
         tape again, or bring back the file that belongs to the sidecar",
        path.display(),
        sidecar.display()
    )]
    TapeMismatch {
        /// The file.
        path: PathBuf,
        /// The sidecar.
        sidecar: PathBuf,
        /// Which quantity differs.
        what: &'static str,
        /// What the sidecar says.
        expected: String,
        /// What the file holds.
        found: String,
    },

    /// A place in a tape that cannot be read.
    #[error("cannot read {} at byte {offset}: {source}; check the disk", path.display())]
    ReadAt {
        /// The file.
        path: PathBuf,
        /// The place.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },

    /// A tape that is not what it was when it was opened, or not what its sidecar says.
    #[error(
        "{} has changed, found on reading at byte {offset}: {problem}; bring the file back or prepare \
         it again, then resume",
        path.display()
    )]
    TapeChanged {
        /// The file.
        path: PathBuf,
        /// Where the reading began.
        offset: u64,
        /// In what it differs.
        problem: String,
    },

    /// A tape of a set that is not the one in its list.
    #[error(
        "{} is not the tape that {} lists: {what} is {found}, expected {expected}; prepare the set \
         again",
        path.display(),
        list.display()
    )]
    NotOfTheSet {
        /// The sidecar of the tape.
        path: PathBuf,
        /// The list.
        list: PathBuf,
        /// Which quantity differs.
        what: &'static str,
        /// What the list says.
        expected: String,
        /// What the tape's sidecar says.
        found: String,
    },

    /// A vocabulary whose ids do not fit.
    #[error("ids of {bytes} bytes hold a vocabulary of at most {most}, found {found}; use u32")]
    ElementTooSmall {
        /// The size of an id.
        bytes: usize,
        /// The largest vocabulary.
        most: u64,
        /// The tokenizer's.
        found: u32,
    },

    /// A token id beyond the vocabulary.
    #[error(
        "{}: id {id} at position {position} is outside the vocabulary of {vocabulary}; use the \
         model and the tape of one tokenizer",
        path.display()
    )]
    TokenOutOfRange {
        /// The file.
        path: PathBuf,
        /// The first such position, in tokens.
        position: u64,
        /// The id there.
        id: u32,
        /// V.
        vocabulary: u32,
    },

    /// An end-of-document id that claims to stand for text, or text of no bytes.
    #[error(
        "{}: the token at position {position} has byte length {byte_length}, expected {expected}; \
         the files do not belong together: prepare the tape again",
        path.display()
    )]
    ByteLength {
        /// The file of byte lengths.
        path: PathBuf,
        /// The first such position, in tokens.
        position: u64,
        /// The length there.
        byte_length: u16,
        /// `0 for an end of document` or `at least 1 for text`.
        expected: &'static str,
    },

    /// A tape whose tokenizer knows more ids than the model.
    #[error(
        "{}: the tape's vocabulary is {found}, the model's {expected}; prepare the tape with the \
         model's tokenizer",
        path.display()
    )]
    Vocabulary {
        /// The sidecar.
        path: PathBuf,
        /// V of the model.
        expected: u32,
        /// V of the tape.
        found: u32,
    },

    /// A sidecar that cannot be read or true.
    #[error("{} is no valid sidecar: {problem}; prepare the tape again", path.display())]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A sidecar of another layout.
    #[error(
        "{} has format version {found}, expected {expected}; prepare the tape again with this \
         version of the program",
        path.display()
    )]
    SidecarVersion {
        /// The file.
        path: PathBuf,
        /// The version that is read.
        expected: u32,
        /// The version that is there.
        found: u32,
    },

    /// A corpus contract that cannot be read or true.
    #[error(
        "{} is no valid corpus contract: {problem}; use the file that this version of the program \
         came with",
        path.display()
    )]
    Contract {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A tokenizer or tape outside the corpus contract.
    #[error(
        "the corpus contract asks for {what} {expected}, found {found}; use the tokenizer that the \
         contract names"
    )]
    OutsideContract {
        /// Which quantity differs.
        what: &'static str,
        /// What the contract says.
        expected: String,
        /// What there is.
        found: String,
    },
}

impl Error {
    /// Whether only one document is wrong, so that the next one of the same file can be read.
    pub(crate) fn is_of_one_document(&self) -> bool {
        matches!(
            self,
            Self::Line { .. }
                | Self::Row { .. }
                | Self::EmptyDocument { .. }
                | Self::NotUtf8 { .. }
        )
    }

    /// [`Error::Read`] of `path`.
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    /// [`Error::Write`] of `path`.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }
}
