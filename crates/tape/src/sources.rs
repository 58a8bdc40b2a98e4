//! Documents out of files and folders, one by one, in bounded memory; or out of memory.
//!
//! What becomes a document:
//!
//! | file | documents |
//! |---|---|
//! | `.txt` `.md` `.markdown` | the text as it is, cut at blank lines where it is long |
//! | `.jsonl` | one per line: the string in the field `text`, or another one by choice |
//!
//! each also as `.gz` (several members allowed) or `.zst` (windows up to 128 MiB). A byte-order
//! mark at the start of a file is dropped; every other byte is kept, line ends included, so byte
//! counts are exact. Markdown is text like any other: its marks are part of it.
//!
//! Folders are walked in the order of names, hidden entries and other kinds of files left out.
//! Memory holds one piece of text or one line, beside the window of the decoder.
//!
//! Everything wrong stops the reading with file and line: [`Error::NotUtf8`], [`Error::EmptyFile`],
//! [`Error::Line`] and so on. Nothing is skipped in silence.

mod files;
mod lines;
mod memory;
mod stream;
mod text;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::layout::SourceRecord;
use files::{Kind, SourceFile};
use lines::Lines;
pub use memory::InMemory;
use stream::Stream;
use text::TextPieces;

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
}

/// How far a [`DocumentSource`] has been read, in bytes as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceProgress {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes there are, where that is known.
    pub bytes_total: Option<u64>,
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
    /// The field of a JSON line that holds the text.
    pub field: String,
    /// Text files longer than this are cut into documents of at most this many bytes, at a blank
    /// line where one is near, so that one long file can be split for validation and is never in
    /// memory whole. `None` keeps every text file in one piece.
    pub text_bytes_max: Option<usize>,
}

impl Default for SourceOptions {
    /// The field `text`, and pieces of at most 32 KiB.
    fn default() -> Self {
        Self { field: "text".to_owned(), text_bytes_max: Some(32 << 10) }
    }
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
    waiting: VecDeque<SourceFile>,
    current: Option<OpenFile>,
    records: Vec<SourceRecord>,
    bytes_done: u64,
    bytes_total: u64,
}

impl Sources {
    /// Finds all files under `paths`; none is read yet.
    ///
    /// # Errors
    /// [`Error::NoInput`] without paths, [`Error::Read`] if a path is not there,
    /// [`Error::UnknownKind`] for a named file of another kind, [`Error::EmptyFolder`] for a
    /// folder without any file to read.
    pub fn open(paths: &[impl AsRef<Path>], options: SourceOptions) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::NoInput);
        }
        let mut waiting = VecDeque::new();
        for path in paths {
            waiting.extend(files::expand(path.as_ref())?);
        }
        let bytes_total = waiting.iter().map(|file| file.bytes).sum();
        let records = Vec::new();
        Ok(Self { options, waiting, current: None, records, bytes_done: 0, bytes_total })
    }

    /// The next document, or `None` at the end of the last file.
    fn next_document(&mut self) -> Result<Option<Document>, Error> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(file) = self.waiting.pop_front() else { return Ok(None) };
                self.current = Some(OpenFile::open(file, &self.options)?);
                continue;
            };
            if let Some(document) = current.next_document()? {
                return Ok(Some(document));
            }
            let done = self.current.take().expect("a file is open in this branch");
            let record = done.finish()?;
            self.bytes_done += record.bytes;
            self.records.push(record);
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
        let bytes_total = Some(self.bytes_total);
        SourceProgress { bytes_read: self.bytes_done + open, bytes_total }
    }
}

/// A file being read.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    name: String,
    reader: Reader,
    is_empty: bool,
}

#[derive(Debug)]
enum Reader {
    Text(TextPieces),
    Lines(Lines),
}

impl OpenFile {
    fn open(file: SourceFile, options: &SourceOptions) -> Result<Self, Error> {
        let SourceFile { path, name, kind, compression, .. } = file;
        let stream = Stream::open(&path, compression)?;
        let reader = match kind {
            Kind::Text => Reader::Text(TextPieces::new(stream, options.text_bytes_max)),
            Kind::Lines => Reader::Lines(Lines::new(stream, options.field.clone())),
        };
        Ok(Self { path, name, reader, is_empty: true })
    }

    fn next_document(&mut self) -> Result<Option<Document>, Error> {
        let next = match &mut self.reader {
            Reader::Text(pieces) => pieces.next_piece()?.map(|piece| Document {
                name: match piece.offset {
                    0 => self.name.clone(),
                    offset => format!("{}+{offset}", self.name),
                },
                text: piece.text,
            }),
            Reader::Lines(lines) => lines.next_text()?.map(|line| Document {
                name: format!("{}:{}", self.name, line.number),
                text: line.text,
            }),
        };
        self.is_empty &= next.is_none();
        Ok(next)
    }

    fn stream(&self) -> &Stream {
        match &self.reader {
            Reader::Text(pieces) => pieces.stream(),
            Reader::Lines(lines) => lines.stream(),
        }
    }

    fn bytes_read(&self) -> u64 {
        self.stream().bytes_read()
    }

    fn finish(self) -> Result<SourceRecord, Error> {
        if self.is_empty {
            return Err(Error::EmptyFile { path: self.path });
        }
        let stream = match self.reader {
            Reader::Text(pieces) => pieces.into_stream(),
            Reader::Lines(lines) => lines.into_stream(),
        };
        let (bytes, sha256) = stream.finish()?;
        Ok(SourceRecord { name: self.name, bytes, sha256 })
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
