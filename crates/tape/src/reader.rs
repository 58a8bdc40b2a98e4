//! A tape opened for reading: mapped, checked once, never written.
//!
//! [`Tape::open`] is the border between files and checked data: nothing behind it looks at sizes,
//! ids or hashes again. Cutting the tape into windows is the matter of
//! [`windows`](crate::windows).
//!
//! This file holds the crate's only unsafe code: the memory map, and its bytes seen as numbers. A
//! map is only as constant as the file under it. Nothing in this program writes to a tape:
//! preparation writes aside and renames, which leaves a mapped file as it was. If somebody else
//! rewrites a tape in place, the numbers change under a reader (wrong ids, so wrong training, and
//! a panic where an id no longer fits); if somebody cuts it short, reading past the new end ends
//! the process with SIGBUS. Both are the price of reading without a copy, and both are refused at
//! the next start by the sidecar's hashes.

mod check;

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::Error;
use crate::checksum::Checksum;
use crate::layout::{Sidecar, TapeFiles};
use check::{Candidate, Findings};

#[cfg(target_endian = "big")]
compile_error!("tapes are little-endian and mapped as they are: a big-endian host is unsupported");

/// Parallel passes over a tape take runs of this many elements.
const RUN_ELEMENTS: usize = 1 << 20;

/// An open tape: token ids, and byte lengths and a sidecar where there are any.
#[derive(Debug)]
pub struct Tape {
    files: TapeFiles,
    tokens: Mapped<u32>,
    byte_lengths: Option<Mapped<u16>>,
    sidecar: Option<Sidecar>,
    tokens_checksum: Checksum,
    source_bytes: Option<u64>,
}

impl Tape {
    /// Opens and checks the tape in `files`; `vocabulary` is V of the model that will read it.
    ///
    /// Checked are: sizes; one byte length per token; every id below `vocabulary` and below the
    /// sidecar's; and against the sidecar: both counts, both SHA-256, the number of documents, the
    /// sum of byte lengths, and that exactly the ends of documents have byte length 0.
    ///
    /// This reads both files whole, twice: about one second per 1.5 GB (a tape of 1 RDQ) from the
    /// page cache on two cores with SHA instructions; the hash of the tokens is the longest part
    /// and cannot be divided.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::TapeEmpty`], [`Error::TapeSize`], [`Error::TapeCounts`],
    /// [`Error::TokenOutOfRange`], [`Error::ByteLength`], [`Error::Vocabulary`],
    /// [`Error::TapeMismatch`], and those of [`Sidecar::load`].
    pub fn open(files: &TapeFiles, vocabulary: Option<u32>) -> Result<Self, Error> {
        let sidecar = files.sidecar.as_deref().map(Sidecar::load).transpose()?;
        let tokens = Mapped::<u32>::open(&files.tokens)?;
        let byte_lengths = files.byte_lengths.as_deref().map(Mapped::<u16>::open).transpose()?;

        let candidate = Candidate {
            files,
            tokens: &tokens,
            byte_lengths: files.byte_lengths.as_deref().zip(byte_lengths.as_ref()),
            sidecar: files.sidecar.as_deref().zip(sidecar.as_ref()),
        };
        let Findings { tokens_checksum, source_bytes } = candidate.check(vocabulary)?;
        let files = files.clone();
        Ok(Self { files, tokens, byte_lengths, sidecar, tokens_checksum, source_bytes })
    }

    /// The token ids.
    pub fn tokens(&self) -> &[u32] {
        self.tokens.as_slice()
    }

    /// For each token, how many bytes of UTF-8 source text it stands for.
    pub fn byte_lengths(&self) -> Option<&[u16]> {
        self.byte_lengths.as_ref().map(Mapped::as_slice)
    }

    /// The number of tokens; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty tape cannot be opened")]
    pub fn len(&self) -> u64 {
        self.tokens().len() as u64
    }

    /// The sum of all byte lengths.
    pub fn source_bytes(&self) -> Option<u64> {
        self.source_bytes
    }

    /// The sum of the byte lengths of `tokens` (positions, not targets: the targets of inputs
    /// `a..b` are `a + 1..b + 1`). The cost grows with the range, at several GB/s.
    ///
    /// # Panics
    /// If the range reaches beyond the tape.
    pub fn source_bytes_of(&self, tokens: Range<u64>) -> Option<u64> {
        let range = position(tokens.start)..position(tokens.end);
        self.byte_lengths().map(|lengths| sum(&lengths[range]))
    }

    /// The smallest number of tokens, from the start, that stands for at least `source_bytes`
    /// bytes of text. `None` if the tape holds fewer, or has no byte lengths.
    ///
    /// This is what turns a length in RDQ into a length in tokens.
    pub fn tokens_for_source_bytes(&self, source_bytes: u64) -> Option<u64> {
        let mut missing = source_bytes;
        let mut tokens = 0;
        for run in self.byte_lengths()?.chunks(RUN_ELEMENTS) {
            let bytes = sum(run);
            if bytes < missing {
                missing -= bytes;
                tokens += run.len() as u64;
                continue;
            }
            for &length in run {
                if missing == 0 {
                    break;
                }
                missing = missing.saturating_sub(length.into());
                tokens += 1;
            }
            return Some(tokens);
        }
        (missing == 0).then_some(tokens)
    }

    /// The sidecar, if the tape has one.
    pub fn sidecar(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
    }

    /// The SHA-256 of the tokens: which tape this is, for checkpoints.
    pub fn checksum(&self) -> Checksum {
        self.tokens_checksum
    }

    /// The files that were opened.
    pub fn files(&self) -> &TapeFiles {
        &self.files
    }
}

fn sum(lengths: &[u16]) -> u64 {
    lengths.iter().map(|&length| u64::from(length)).sum()
}

/// A position of this tape as an index; the whole tape is mapped, so its positions are indices.
pub(crate) fn position(tokens: u64) -> usize {
    usize::try_from(tokens).expect("a mapped tape fits in the address space")
}

/// A number that any bytes of its size make.
///
/// Implemented for exactly the element types of tapes; every bit pattern of them is valid.
trait Element: Copy {}
impl Element for u16 {}
impl Element for u32 {}

/// A file mapped read-only as `[T]`.
#[derive(Debug)]
struct Mapped<T> {
    map: Mmap,
    element: PhantomData<T>,
}

#[expect(unsafe_code, reason = "mapping a file and viewing its bytes as numbers")]
impl<T: Element> Mapped<T> {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] if it is no readable file, [`Error::TapeEmpty`] if it is empty,
    /// [`Error::TapeSize`] if it does not hold a whole number of elements.
    fn open(path: &Path) -> Result<Self, Error> {
        let wrong = |source| Error::read(path, source);
        let file = File::open(path).map_err(wrong)?;
        let metadata = file.metadata().map_err(wrong)?;
        if !metadata.is_file() {
            return Err(wrong(io::Error::other("not a file")));
        }
        let (bytes, element_bytes) = (metadata.len(), size_of::<T>());
        if bytes == 0 {
            return Err(Error::TapeEmpty { path: path.to_owned() });
        }
        if !bytes.is_multiple_of(element_bytes as u64) {
            return Err(Error::TapeSize { path: path.to_owned(), bytes, element_bytes });
        }
        // SAFETY: the duty is that the file does not change while it is mapped. It cannot be
        // enforced; the head of this file says who keeps it and what a breach means.
        let map = unsafe { Mmap::map(&file) }.map_err(wrong)?;
        Ok(Self { map, element: PhantomData })
    }

    /// The elements.
    fn as_slice(&self) -> &[T] {
        let bytes = self.bytes();
        let start = bytes.as_ptr().cast::<T>();
        assert!(start.is_aligned(), "a map begins at a page border");
        // SAFETY: `start` points at `bytes.len()` readable bytes that live as long as `self`, is
        // aligned (asserted), the length is rounded down to whole elements, and every bit pattern
        // is a valid `T` (what `Element` promises).
        unsafe { std::slice::from_raw_parts(start, bytes.len() / size_of::<T>()) }
    }

    /// The bytes as they are in the file.
    fn bytes(&self) -> &[u8] {
        &self.map
    }
}
