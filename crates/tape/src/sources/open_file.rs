//! One open file, whatever its kind, as a sequence of documents.
//!
//! A file gives *units*: pieces of text, lines of text, the texts of JSON lines or of rows. As stored,
//! a unit is a document. Where the options name a boundary, units are joined until it comes.

use std::path::{Path, PathBuf};

use regex::Regex;

use super::files::{Kind, Origin, SourceFile};
use super::line_reader::LineReader;
use super::lines::Lines;
use super::rows::Rows;
use super::stream::Stream;
use super::text::TextPieces;
use super::{Boundary, DOCUMENT_BYTES_MAX, Document, SourceOptions};
use crate::Error;
use crate::layout::SourceRecord;

/// A checked [`Boundary`].
#[derive(Clone, Debug)]
pub(super) enum Border {
    AsStored,
    StartsAt(Regex),
    EndsAt(String),
}

impl Border {
    /// # Errors
    /// [`Error::Pattern`] for a pattern that is none.
    pub(super) fn new(boundary: &Boundary) -> Result<Self, Error> {
        Ok(match boundary {
            Boundary::AsStored => Self::AsStored,
            Boundary::EndsAt(line) => Self::EndsAt(line.clone()),
            Boundary::StartsAt(pattern) => {
                Self::StartsAt(Regex::new(pattern).map_err(|error| Error::Pattern {
                    pattern: pattern.clone(),
                    problem: error.to_string(),
                })?)
            }
        })
    }
}

/// A file being read.
#[derive(Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    name: String,
    reader: Reader,
    border: Border,
    /// The document that units are being joined to.
    joined: Option<Unit>,
    is_empty: bool,
}

#[derive(Debug)]
enum Reader {
    Pieces(TextPieces),
    TextLines(LineReader),
    Lines(Lines),
    Rows(Box<Rows>),
}

/// A text and where it begins.
#[derive(Debug)]
struct Unit {
    place: Place,
    text: String,
}

#[derive(Debug)]
enum Place {
    Offset(u64),
    Number(u64),
}

impl OpenFile {
    pub(super) fn open(
        file: SourceFile,
        options: &SourceOptions,
        border: &Border,
    ) -> Result<Self, Error> {
        let SourceFile { origin, name, kind, compression, .. } = file;
        let field = || options.field.clone();
        let reader = match (kind, &origin) {
            (Kind::Rows, Origin::File(path)) => Reader::Rows(Box::new(Rows::open(path, field())?)),
            (Kind::Rows, Origin::StandardInput) => unreachable!("refused when it was named"),
            (Kind::Lines, _) => {
                Reader::Lines(Lines::new(Stream::open(&origin, compression)?, field()))
            }
            (Kind::Text, _) => {
                let stream = Stream::open(&origin, compression)?;
                match border {
                    Border::AsStored => {
                        Reader::Pieces(TextPieces::new(stream, options.text_bytes_max))
                    }
                    _ => Reader::TextLines(LineReader::new(stream)),
                }
            }
        };
        let (path, border) = (origin.path(), border.clone());
        Ok(Self { path, name, reader, border, joined: None, is_empty: true })
    }

    /// The next document, or `None` at the end of the file.
    pub(super) fn next_document(&mut self) -> Result<Option<Document>, Error> {
        let unit = match self.border {
            Border::AsStored => self.next_unit()?,
            _ => self.next_joined()?,
        };
        Ok(unit.map(|Unit { place, text }| {
            let name = match place {
                Place::Offset(0) => self.name.clone(),
                Place::Offset(offset) => format!("{}+{offset}", self.name),
                Place::Number(number) => format!("{}:{number}", self.name),
            };
            Document { name, text }
        }))
    }

    /// Units up to the next boundary, joined. White space alone is no document but goes with the next.
    fn next_joined(&mut self) -> Result<Option<Unit>, Error> {
        loop {
            let Some(unit) = self.next_unit()? else { return Ok(self.joined.take()) };
            let is_document = |unit: &Option<Unit>| {
                unit.as_ref().is_some_and(|unit| !unit.text.trim_ascii().is_empty())
            };
            match &self.border {
                Border::EndsAt(line) if unit.text.trim_end_matches(['\n', '\r']) == line => {
                    if is_document(&self.joined) {
                        return Ok(self.joined.take());
                    }
                    continue;
                }
                Border::StartsAt(pattern)
                    if is_document(&self.joined) && pattern.is_match(&unit.text) =>
                {
                    return Ok(self.joined.replace(unit));
                }
                _ => {}
            }
            match &mut self.joined {
                None => self.joined = Some(unit),
                Some(joined) if joined.text.len() + unit.text.len() > DOCUMENT_BYTES_MAX => {
                    let place = match joined.place {
                        Place::Offset(place) | Place::Number(place) => place,
                    };
                    let (path, bytes_max) = (self.path.clone(), DOCUMENT_BYTES_MAX as u64);
                    return Err(Error::DocumentTooLong { path, offset: place, bytes_max });
                }
                Some(joined) => joined.text.push_str(&unit.text),
            }
        }
    }

    fn next_unit(&mut self) -> Result<Option<Unit>, Error> {
        let empty_is_text = !matches!(self.border, Border::AsStored);
        let unit = match &mut self.reader {
            Reader::Pieces(pieces) => pieces
                .next_piece()?
                .map(|piece| Unit { place: Place::Offset(piece.offset), text: piece.text }),
            Reader::TextLines(lines) => {
                if lines.advance()? {
                    let text = lines.text()?.to_owned();
                    Some(Unit { place: Place::Offset(lines.offset()), text })
                } else {
                    None
                }
            }
            Reader::Lines(lines) => lines
                .next_text(empty_is_text)?
                .map(|line| Unit { place: Place::Number(line.number), text: line.text }),
            Reader::Rows(rows) => rows
                .next_text(empty_is_text)?
                .map(|row| Unit { place: Place::Number(row.number), text: row.text }),
        };
        self.is_empty &= unit.is_none();
        Ok(unit)
    }

    /// The file's path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no text has come out of it.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Stored bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        match &self.reader {
            Reader::Pieces(pieces) => pieces.stream().bytes_read(),
            Reader::TextLines(lines) => lines.stream().bytes_read(),
            Reader::Lines(lines) => lines.stream().bytes_read(),
            Reader::Rows(rows) => rows.bytes_read(),
        }
    }

    /// Reads what is left of the stored file, for its record.
    pub(super) fn finish(self) -> Result<SourceRecord, Error> {
        let (bytes, sha256) = match self.reader {
            Reader::Pieces(pieces) => pieces.into_stream().finish()?,
            Reader::TextLines(lines) => lines.into_stream().finish()?,
            Reader::Lines(lines) => lines.into_stream().finish()?,
            Reader::Rows(rows) => rows.finish()?,
        };
        Ok(SourceRecord { name: self.name, bytes, sha256 })
    }
}
