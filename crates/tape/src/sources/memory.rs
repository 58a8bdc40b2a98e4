//! Documents that a program makes itself, such as stories.

use super::{Document, DocumentSource, SourceProgress};
use crate::Error;
use crate::checksum::Hasher;
use crate::layout::SourceRecord;

/// Documents out of an iterator of texts.
///
/// Their record counts the bytes of text and has the SHA-256 of the texts in order, each followed
/// by a byte 0xFF, which UTF-8 never holds.
#[derive(Debug)]
pub struct InMemory<I> {
    name: String,
    texts: I,
    count: u64,
    bytes: u64,
    hasher: Hasher,
}

impl<I: Iterator<Item: Into<String>>> InMemory<I> {
    /// The documents of `texts`; `name` says what makes them, such as `stories, seed 1`.
    pub fn new(name: impl Into<String>, texts: impl IntoIterator<IntoIter = I>) -> Self {
        let (name, texts) = (name.into(), texts.into_iter());
        Self { name, texts, count: 0, bytes: 0, hasher: Hasher::default() }
    }
}

impl<I: Iterator<Item: Into<String>>> Iterator for InMemory<I> {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let text: String = self.texts.next()?.into();
        self.count += 1;
        self.bytes += text.len() as u64;
        self.hasher.update(text.as_bytes());
        self.hasher.update(&[0xFF]);
        Some(Ok(Document { name: format!("{}:{}", self.name, self.count), text }))
    }
}

impl<I: Iterator<Item: Into<String>>> DocumentSource for InMemory<I> {
    fn records(&self) -> Vec<SourceRecord> {
        let sha256 = self.hasher.clone().finish();
        vec![SourceRecord { name: self.name.clone(), bytes: self.bytes, sha256 }]
    }

    fn progress(&self) -> SourceProgress {
        SourceProgress { bytes_read: self.bytes, ..SourceProgress::default() }
    }
}
