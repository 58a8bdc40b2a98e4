//! Documents out of files and folders, one by one, in bounded memory; or out of memory.
//!
//! What becomes a document:
//!
//! | input | documents |
//! |---|---|
//! | `.txt` `.md` `.markdown` | the text as it is, cut at blank lines where it is long |
//! | `.jsonl` `.ndjson` `.json` | one per line: the string in the field `text`, or another one by choice |
//! | `.parquet` | one per row: the string in the column of that name, row groups streamed |
//! | `-` | standard input, as text or as JSON lines |
//!
//! Text and lines also as `.gz` (several members allowed) or `.zst` (windows up to 128 MiB). A
//! byte-order mark at the start of a file is dropped; every other byte is kept, line ends included,
//! so byte counts are exact. Markdown is text like any other: its marks are part of it. A
//! [`Boundary`] joins lines or rows into longer documents.
//!
//! Folders are walked in the order of names, hidden entries and other kinds of files left out; a path
//! with a wildcard that is no file itself is a pattern. Memory holds one piece of text, line or
//! page, beside the window of the decoder.
//!
//! Everything wrong has an error with file and line: [`Error::NotUtf8`], [`Error::EmptyFile`],
//! [`Error::Line`], [`Error::Row`] and so on. It stops the reading or, with [`OnError::Skip`], is
//! counted and named, and the next document follows. Nothing is skipped in silence.

mod files;
mod line_reader;
mod lines;
mod memory;
mod open_file;
mod rows;
mod stream;
mod text;

use std::collections::VecDeque;
use std::path::Path;

use crate::Error;
use crate::layout::SourceRecord;
use files::SourceFile;
pub use files::{Kind, STANDARD_INPUT};
pub use memory::InMemory;
use open_file::{Border, OpenFile};

/// The longest document that is read, 1 GiB: a bound on memory for hostile input.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 30;

/// One text that ends with an end-of-document token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where it comes from, for messages: `book.txt`, `book.txt+32768`, `web.jsonl.zst:17`.
    pub name: String,
    /// The text; never empty when it comes from files.
    pub text: String,
}

/// Something that yields documents and can say where they came from.
pub trait DocumentSource: Iterator<Item = Result<Document, Error>> {
    /// Everything read so far, in order; complete once the iterator has ended.
    fn records(&self) -> Vec<SourceRecord>;

    /// How far the reading is.
    fn progress(&self) -> SourceProgress;

    /// All that [`DocumentSource::records`] will give at the end, where the sources can be read twice.
    ///
    /// # Errors
    /// [`Error::Read`] if a source cannot be read.
    fn records_ahead(&self) -> Result<Option<Vec<SourceRecord>>, Error> {
        Ok(None)
    }

    /// Everything beside the sources that decides the documents, such as options of reading.
    fn reading(&self) -> String {
        String::new()
    }

    /// What was left out so far.
    fn skipped(&self) -> &Skipped {
        const { &Skipped { count: 0, first: Vec::new() } }
    }
}

/// Documents, or ends of files, that were left out because something was wrong with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The messages of the first ones, at most [`Skipped::FIRST_MAX`].
    pub first: Vec<String>,
}

impl Skipped {
    /// How many are named: a bound on memory where everything is wrong.
    pub const FIRST_MAX: usize = 1000;

    fn add(&mut self, error: &Error) {
        self.count += 1;
        if self.first.len() < Self::FIRST_MAX {
            self.first.push(error.to_string());
        }
    }
}

/// How far a [`DocumentSource`] has been read, in bytes as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceProgress {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes there are, where that is known.
    pub bytes_total: Option<u64>,
    /// Documents left out because something was wrong with them.
    pub skipped: u64,
}

/// How far preparation or training has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents taken in.
    pub documents: u64,
    /// Bytes of their text.
    pub text_bytes: u64,
    /// Tokens written; 0 in training.
    pub tokens: u64,
    /// How far the sources have been read.
    pub source: SourceProgress,
}

/// How files become documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// The field of a JSON line, or the column of a Parquet file, that holds the text.
    pub field: String,
    /// Text files longer than this are cut into documents of at most this many bytes, at a blank
    /// line where one is near, so that one long file can be split for validation and is never in
    /// memory whole. `None` keeps every text file in one piece. No matter where there is a boundary.
    pub text_bytes_max: Option<usize>,
    /// Where documents begin and end.
    pub boundary: Boundary,
    /// What happens to documents that cannot be read.
    pub on_error: OnError,
    /// What standard input holds: text or JSON lines.
    pub standard_input: Kind,
}

impl Default for SourceOptions {
    /// The field `text`, pieces of at most 32 KiB, documents as stored, errors that stop.
    fn default() -> Self {
        Self {
            field: "text".to_owned(),
            text_bytes_max: Some(32 << 10),
            boundary: Boundary::AsStored,
            on_error: OnError::Stop,
            standard_input: Kind::Text,
        }
    }
}

/// Where documents begin and end inside a file. A document never reaches over the end of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Boundary {
    /// Where the file has them: a text file, a JSON line, a row.
    #[default]
    AsStored,
    /// Before each line of text, JSON line or row whose text matches this regular expression. What
    /// lies between is joined as it is.
    StartsAt(String),
    /// After each line of text, JSON line or row whose text is exactly this; it is dropped.
    EndsAt(String),
}

/// What happens to documents that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The reading stops with the error.
    #[default]
    Stop,
    /// The document is left out, counted and named. Where a whole file cannot be read on, its rest is.
    Skip,
}

/// The documents of files and folders.
///
/// # Example
///
/// ```no_run
/// use tape::sources::{SourceOptions, Sources};
///
/// let sources = Sources::open(&["notes", "web.jsonl.zst"], SourceOptions::default())?;
/// for document in sources {
///     println!("{} bytes", document?.text.len());
/// }
/// # Ok::<(), tape::Error>(())
/// ```
#[derive(Debug)]
pub struct Sources {
    options: SourceOptions,
    border: Border,
    waiting: VecDeque<SourceFile>,
    current: Option<OpenFile>,
    records: Vec<SourceRecord>,
    skipped: Skipped,
    bytes_done: u64,
    bytes_total: Option<u64>,
}

impl Sources {
    /// Finds all files under `paths`; none is read yet.
    ///
    /// # Errors
    /// [`Error::NoInput`] without paths, [`Error::Read`] if a path is not there,
    /// [`Error::UnknownKind`] for a named file of another kind, [`Error::EmptyFolder`] for a
    /// folder without any file to read, [`Error::InputTwice`] for a file that is named twice,
    /// [`Error::Pattern`] for a pattern that is wrong or matches nothing.
    pub fn open(paths: &[impl AsRef<Path>], options: SourceOptions) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::NoInput);
        }
        let border = Border::new(&options.boundary)?;
        let waiting: VecDeque<_> = files::expand_all(paths, options.standard_input)?.into();
        let bytes_total = waiting.iter().map(|file| file.bytes).sum();
        Ok(Self {
            options,
            border,
            waiting,
            current: None,
            records: Vec::new(),
            skipped: Skipped::default(),
            bytes_done: 0,
            bytes_total,
        })
    }

    /// The next document, or `None` at the end of the last file.
    fn next_document(&mut self) -> Result<Option<Document>, Error> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(file) = self.waiting.pop_front() else { return Ok(None) };
                match OpenFile::open(file, &self.options, &self.border) {
                    Ok(file) => self.current = Some(file),
                    Err(error) => self.skip_or(error)?,
                }
                continue;
            };
            match current.next_document() {
                Ok(Some(document)) => return Ok(Some(document)),
                Ok(None) => self.end_file(true)?,
                Err(error) => {
                    let ends_file = !error.is_of_one_document();
                    self.skip_or(error)?;
                    if ends_file {
                        self.end_file(false)?;
                    }
                }
            }
        }
    }

    /// Leaves out what the error is about, if errors are to be skipped.
    fn skip_or(&mut self, error: Error) -> Result<(), Error> {
        match self.options.on_error {
            OnError::Stop => Err(error),
            OnError::Skip => {
                self.skipped.add(&error);
                Ok(())
            }
        }
    }

    /// Closes the current file; `whole` if it was read to its end.
    fn end_file(&mut self, whole: bool) -> Result<(), Error> {
        let file = self.current.take().expect("a file is open here");
        if whole && file.is_empty() {
            self.skip_or(Error::EmptyFile { path: file.path().to_owned() })?;
        }
        match file.finish() {
            Ok(record) => {
                self.bytes_done += record.bytes;
                self.records.push(record);
                Ok(())
            }
            Err(error) => self.skip_or(error),
        }
    }
}

impl Iterator for Sources {
    type Item = Result<Document, Error>;

    /// The next document; after an error there are no more.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_document();
        if next.is_err() {
            self.current = None;
            self.waiting.clear();
        }
        next.transpose()
    }
}

impl DocumentSource for Sources {
    fn records(&self) -> Vec<SourceRecord> {
        self.records.clone()
    }

    fn progress(&self) -> SourceProgress {
        let open = self.current.as_ref().map_or(0, OpenFile::bytes_read);
        SourceProgress {
            bytes_read: self.bytes_done + open,
            bytes_total: self.bytes_total,
            skipped: self.skipped.count,
        }
    }

    /// Hashes the stored bytes of all files; `None` where one is standard input, which can be read only
    /// once.
    fn records_ahead(&self) -> Result<Option<Vec<SourceRecord>>, Error> {
        self.waiting.iter().map(SourceFile::record).collect()
    }

    fn reading(&self) -> String {
        format!("{:?}", self.options)
    }

    fn skipped(&self) -> &Skipped {
        &self.skipped
    }
}

/// The next documents of together at least `bytes` of text, or fewer at the end.
pub(crate) fn next_batch(
    documents: &mut impl DocumentSource,
    bytes: usize,
) -> Result<Vec<Document>, Error> {
    let mut batch = Vec::new();
    let mut missing = bytes;
    while missing > 0 {
        let Some(document) = documents.next() else { break };
        let document = document?;
        // An empty document counts too, so that a batch of them ends.
        missing = missing.saturating_sub(document.text.len().max(64));
        batch.push(document);
    }
    Ok(batch)
}
