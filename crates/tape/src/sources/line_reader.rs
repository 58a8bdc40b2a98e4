//! The lines of one file as bytes, each with its number and place.

use std::io::{BufRead, BufReader, Read};

use super::DOCUMENT_BYTES_MAX;
use super::stream::Stream;
use super::text::BYTE_ORDER_MARK;
use crate::Error;

/// Reads line after line into one buffer.
#[derive(Debug)]
pub(super) struct LineReader {
    reader: BufReader<Stream>,
    line: Vec<u8>,
    /// The number of the line, counted from 1.
    number: u64,
    /// Where the line begins in the decompressed file, its byte-order mark left out.
    offset: u64,
    /// Where the next line begins.
    next_offset: u64,
}

impl LineReader {
    pub(super) fn new(stream: Stream) -> Self {
        let reader = BufReader::with_capacity(1 << 16, stream);
        Self { reader, line: Vec::new(), number: 0, offset: 0, next_offset: 0 }
    }

    pub(super) fn stream(&self) -> &Stream {
        self.reader.get_ref()
    }

    pub(super) fn into_stream(self) -> Stream {
        self.reader.into_inner()
    }

    /// Reads the next line, with its line end, without a byte-order mark; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        self.line.clear();
        let mut bounded = (&mut self.reader).take(DOCUMENT_BYTES_MAX as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line);
        let count = read.map_err(|source| self.stream().error(source))?;
        self.offset = self.next_offset;
        self.next_offset += count as u64;
        self.number += 1;
        if self.line.len() > DOCUMENT_BYTES_MAX {
            let (path, bytes_max) = (self.stream().path().to_owned(), DOCUMENT_BYTES_MAX as u64);
            return Err(Error::DocumentTooLong { path, offset: self.offset, bytes_max });
        }
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
            self.offset = BYTE_ORDER_MARK.len() as u64;
        }
        Ok(count > 0)
    }

    /// The line that was read last.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Its number, counted from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Where it begins in the decompressed file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The line as text.
    pub(super) fn text(&self) -> Result<&str, Error> {
        str::from_utf8(&self.line).map_err(|error| Error::NotUtf8 {
            path: self.stream().path().to_owned(),
            offset: self.offset + error.valid_up_to() as u64,
        })
    }
}
