//! Texts out of JSON lines: one object a line, one of its string fields the text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::line_reader::LineReader;
use super::stream::Stream;
use crate::Error;

/// The lines of one file.
#[derive(Debug)]
pub(super) struct Lines {
    reader: LineReader,
    field: String,
}

/// The text of one line.
pub(super) struct LineText {
    pub(super) number: u64,
    pub(super) text: String,
}

impl Lines {
    pub(super) fn new(stream: Stream, field: String) -> Self {
        Self { reader: LineReader::new(stream), field }
    }

    pub(super) fn stream(&self) -> &Stream {
        self.reader.stream()
    }

    pub(super) fn into_stream(self) -> Stream {
        self.reader.into_stream()
    }

    /// The text of the next line that is not blank, or `None` at the end of the file. Where
    /// `empty_is_text` is false, a line without text is an error.
    pub(super) fn next_text(&mut self, empty_is_text: bool) -> Result<Option<LineText>, Error> {
        while self.reader.advance()? {
            let line = self.reader.line();
            if line.trim_ascii().is_empty() {
                continue;
            }
            let (path, number) = (self.stream().path(), self.reader.number());
            let text = match parse(line, &self.field) {
                Ok(text) => text,
                Err(error) => {
                    // Bytes that are no text explain the rest.
                    self.reader.text()?;
                    return Err(Error::Line {
                        path: path.to_owned(),
                        line: number,
                        field: self.field.clone(),
                        problem: problem(&error),
                    });
                }
            };
            if text.is_empty() && !empty_is_text {
                return Err(Error::EmptyDocument { path: path.to_owned(), line: number });
            }
            return Ok(Some(LineText { number, text }));
        }
        Ok(None)
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
