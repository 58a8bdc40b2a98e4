//! A text file as one document, or as several where it is long.

use std::io::Read;

use super::DOCUMENT_BYTES_MAX;
use super::stream::Stream;
use crate::Error;

/// UTF-8's byte-order mark, dropped at the start of a file.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The pieces of one text file. Put together they are the file without its byte-order mark.
#[derive(Debug)]
pub(super) struct TextPieces {
    stream: Stream,
    /// `None` for the whole file in one piece.
    piece_bytes_max: Option<usize>,
    /// Bytes read and not yet handed out.
    pending: Vec<u8>,
    /// Where `pending` begins in the decompressed file.
    offset: u64,
}

/// One piece.
pub(super) struct Piece {
    /// Where it begins in the decompressed file; 0 for the first, with or without a mark.
    pub(super) offset: u64,
    pub(super) text: String,
}

impl TextPieces {
    /// Pieces of at most `piece_bytes_max` bytes, or of 4 where that is less: a character's most.
    pub(super) fn new(stream: Stream, piece_bytes_max: Option<usize>) -> Self {
        let piece_bytes_max = piece_bytes_max.map(|bytes| bytes.clamp(4, DOCUMENT_BYTES_MAX));
        Self { stream, piece_bytes_max, pending: Vec::new(), offset: 0 }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    /// The next piece, or `None` at the end of the file.
    pub(super) fn next_piece(&mut self) -> Result<Option<Piece>, Error> {
        let begins = self.offset;
        if begins == 0 {
            self.fill_to(BYTE_ORDER_MARK.len())?;
            if self.pending == BYTE_ORDER_MARK {
                self.pending.clear();
                self.offset = BYTE_ORDER_MARK.len() as u64;
            }
        }
        // One byte more than fits tells whether the file goes on.
        let bytes_max = self.piece_bytes_max.unwrap_or(DOCUMENT_BYTES_MAX);
        self.fill_to(bytes_max + 1)?;
        if self.pending.is_empty() {
            return Ok(None);
        }
        let end = if self.pending.len() <= bytes_max {
            self.pending.len()
        } else if self.piece_bytes_max.is_some() {
            cut(&self.pending[..bytes_max])
        } else {
            let path = self.stream.path().to_owned();
            return Err(Error::DocumentTooLong { path, offset: 0, bytes_max: bytes_max as u64 });
        };
        let rest = self.pending.split_off(end);
        let bytes = std::mem::replace(&mut self.pending, rest);
        // A piece that is no text is behind us; the next one may be.
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        let text = String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            path: self.stream.path().to_owned(),
            offset: offset + error.utf8_error().valid_up_to() as u64,
        })?;
        Ok(Some(Piece { offset: begins, text }))
    }

    /// Reads until `pending` holds `bytes` bytes or the file ends.
    fn fill_to(&mut self, bytes: usize) -> Result<(), Error> {
        let missing = bytes.saturating_sub(self.pending.len()) as u64;
        let read = (&mut self.stream).take(missing).read_to_end(&mut self.pending);
        read.map(|_| ()).map_err(|source| self.stream.error(source))
    }
}

/// Where to end a piece that must not be longer than `bytes`: after the last blank line of the
/// second half, else after its last line, else after its last space, else between two characters.
fn cut(bytes: &[u8]) -> usize {
    let half = bytes.len() / 2;
    let after_last = |mark: &[u8]| {
        let start = bytes[half..].windows(mark.len()).rposition(|window| window == mark)?;
        Some(half + start + mark.len())
    };
    let blank_line = after_last(b"\n\n").max(after_last(b"\n\r\n"));
    blank_line.or_else(|| after_last(b"\n")).or_else(|| after_last(b" ")).unwrap_or_else(|| {
        // A character has at most three bytes after its first; more is no UTF-8 and found later.
        let is_inside = |byte: &u8| byte & 0xC0 == 0x80;
        let tail = bytes.iter().rev().take(3).take_while(|byte| is_inside(byte)).count();
        let before_last = bytes.len() - tail - 1;
        if before_last == 0 { bytes.len() } else { before_last }
    })
}
