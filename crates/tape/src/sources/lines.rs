//! Texts out of JSON lines: one object a line, one of its string fields the text.

use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, BufReader, Read};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::DOCUMENT_BYTES_MAX;
use super::stream::Stream;
use super::text::BYTE_ORDER_MARK;
use crate::Error;

/// The lines of one file.
#[derive(Debug)]
pub(super) struct Lines {
    reader: BufReader<Stream>,
    field: String,
    /// The line that `line` holds, counted from 1.
    number: u64,
    /// Where `line` ends and the next one begins in the decompressed file.
    offset: u64,
    line: Vec<u8>,
}

/// The text of one line.
pub(super) struct LineText {
    pub(super) number: u64,
    pub(super) text: String,
}

impl Lines {
    pub(super) fn new(stream: Stream, field: String) -> Self {
        let reader = BufReader::with_capacity(1 << 16, stream);
        Self { reader, field, number: 0, offset: 0, line: Vec::new() }
    }

    pub(super) fn stream(&self) -> &Stream {
        self.reader.get_ref()
    }

    pub(super) fn into_stream(self) -> Stream {
        self.reader.into_inner()
    }

    /// The text of the next line that is not blank, or `None` at the end of the file.
    pub(super) fn next_text(&mut self) -> Result<Option<LineText>, Error> {
        while self.read_line()? {
            let mut line = self.line.as_slice();
            if self.number == 1 {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let path = || self.stream().path().to_owned();
            let text = parse(line, &self.field).map_err(|error| match str::from_utf8(line) {
                Err(utf8) => {
                    let begin = self.offset - line.len() as u64;
                    Error::NotUtf8 { path: path(), offset: begin + utf8.valid_up_to() as u64 }
                }
                Ok(_) => Error::Line {
                    path: path(),
                    line: self.number,
                    field: self.field.clone(),
                    problem: problem(&error),
                },
            })?;
            if text.is_empty() {
                return Err(Error::EmptyDocument { path: path(), line: self.number });
            }
            return Ok(Some(LineText { number: self.number, text }));
        }
        Ok(None)
    }

    /// Reads the next line into `self.line`; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, Error> {
        self.line.clear();
        let mut bounded = (&mut self.reader).take(DOCUMENT_BYTES_MAX as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line);
        let count = read.map_err(|source| self.stream().error(source))?;
        if self.line.len() > DOCUMENT_BYTES_MAX {
            let (path, bytes_max) = (self.stream().path().to_owned(), DOCUMENT_BYTES_MAX as u64);
            return Err(Error::DocumentTooLong { path, offset: self.offset, bytes_max });
        }
        self.number += 1;
        self.offset += count as u64;
        Ok(count > 0)
    }
}

/// The string in `field` of the object that `line` is.
fn parse(line: &[u8], field: &str) -> Result<String, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let text = TextOf { field }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(text)
}

/// What is wrong, with the column. Each line is parsed alone, so "line 1" would mislead.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    format!("{what} (column {})", error.column())
}

/// Takes one field out of an object without building the others.
struct TextOf<'f> {
    field: &'f str,
}

impl<'de> DeserializeSeed<'de> for TextOf<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextOf<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a string field {:?}", self.field)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        use serde::de::Error as _;

        let mut text = None;
        while let Some(Key(key)) = map.next_key()? {
            if key != self.field {
                map.next_value::<IgnoredAny>()?;
            } else if text.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("the field is there twice"));
            }
        }
        text.ok_or_else(|| A::Error::custom("the field is missing"))
    }
}

/// A field's name, borrowed from the line where it has no escapes.
#[derive(serde::Deserialize)]
struct Key<'k>(#[serde(borrow)] Cow<'k, str>);
