//! A tape opened for reading: checked, read by position into memory of our own, never written.
//!
//! [`Tape::open`] is the border between files and checked data: nothing behind it looks at sizes, ids or
//! vocabularies again. A tape is one file of tokens, or the files of a set read as if they were one.
//! Whatever is read later is verified block by block (see `blocks.rs`), so a file that
//! changes under a reader is an error with its name and place. Cutting the tape into windows is the
//! matter of [`windows`](crate::windows) and [`loader`](crate::loader).

mod check;
mod shard;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::checksum::Checksum;
use crate::layout::set::{SET_ENDING, TapeSet};
use crate::layout::{Element, Sidecar, TapeFiles, TokenizerRecord};
use check::Findings;
use shard::{OpenShard, Shard};

/// Passes over a tape take runs of this many tokens.
const RUN_TOKENS: u64 = 1 << 20;

/// Where a tape is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapeSource {
    /// One file of tokens and its companions.
    Files(TapeFiles),
    /// The list of a set.
    Set(PathBuf),
}

impl TapeSource {
    /// The set whose list `path` is, or else the tape whose tokens it is, with its companions.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if name.ends_with(SET_ENDING) {
            Self::Set(path)
        } else {
            Self::Files(TapeFiles::beside(path))
        }
    }

    /// The path that names it: that of the tokens or of the list.
    pub fn path(&self) -> &Path {
        match self {
            Self::Files(files) => &files.tokens,
            Self::Set(list) => list,
        }
    }
}

impl From<TapeFiles> for TapeSource {
    fn from(files: TapeFiles) -> Self {
        Self::Files(files)
    }
}

/// When the content of a tape is held against its hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// All of it at opening, in one pass over the files.
    Now,
    /// Each block when it is read. Opening then takes no longer for a longer tape. Where a sidecar has
    /// no hashes of blocks, the pass is made all the same.
    WhenRead,
}

/// An open tape: token ids, and byte lengths and a sidecar where there are any.
#[derive(Debug)]
pub struct Tape {
    source: TapeSource,
    element: Element,
    shards: Vec<Shard>,
    /// Where each shard ends, in tokens.
    ends: Vec<u64>,
    set: Option<TapeSet>,
    checksum: Checksum,
    source_bytes: Option<u64>,
    /// The shard that was read last; at most one has its files open.
    open: Mutex<Option<(usize, OpenShard)>>,
}

impl Tape {
    /// Opens the tape in `files` and checks all of it; `vocabulary` is V of the model that will read it.
    ///
    /// Checked are: sizes; one byte length per token; every id below `vocabulary` and below the
    /// sidecar's; and against the sidecar: both counts, both SHA-256, the number of documents, the
    /// sum of byte lengths, and that exactly the ends of documents have byte length 0.
    ///
    /// This reads both files whole, once: about 1.5 seconds per 1.5 GB (a tape of 1 RDQ) from the page
    /// cache on two cores with SHA instructions.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::TapeEmpty`], [`Error::TapeSize`], [`Error::TapeCounts`],
    /// [`Error::TokenOutOfRange`], [`Error::ByteLength`], [`Error::Vocabulary`],
    /// [`Error::TapeMismatch`], and those of [`Sidecar::load`].
    pub fn open(files: &TapeFiles, vocabulary: Option<u32>) -> Result<Self, Error> {
        Self::open_with(&files.clone().into(), vocabulary, Verify::Now)
    }

    /// Opens a tape or a set of tapes and checks it, now or as it is read.
    ///
    /// Whatever `verify` says, sizes, counts and vocabularies are checked now. With [`Verify::WhenRead`] ids
    /// are those that the writer of the sidecar checked, for the blocks must have its hashes.
    ///
    /// # Errors
    /// Those of [`Tape::open`] and, for a set, of [`TapeSet::load`], and [`Error::NotOfTheSet`].
    pub fn open_with(
        source: &TapeSource,
        vocabulary: Option<u32>,
        verify: Verify,
    ) -> Result<Self, Error> {
        let (set, files) = match source {
            TapeSource::Files(files) => (None, vec![files.clone()]),
            TapeSource::Set(list) => {
                let set = TapeSet::load(list)?;
                let files = set.files(list);
                (Some(set), files)
            }
        };
        let element = match &set {
            Some(set) => set.element,
            None => Element::of_name(&files[0].tokens),
        };
        let mut shards = Vec::with_capacity(files.len());
        for (index, files) in files.into_iter().enumerate() {
            let shard = Shard::open(files, element)?;
            if let Some(set) = &set {
                shard.check_listed(source.path(), set, index)?;
            }
            shard.check_vocabulary(vocabulary)?;
            shards.push(shard);
        }
        let mut findings = Vec::new();
        for shard in &mut shards {
            let wants_pass = verify == Verify::Now || !shard.has_hashes();
            findings.push(if wants_pass { shard.check(vocabulary)? } else { shard.trusted() });
        }
        Ok(Self::of_shards(source.clone(), element, set, shards, &findings))
    }

    fn of_shards(
        source: TapeSource,
        element: Element,
        set: Option<TapeSet>,
        shards: Vec<Shard>,
        findings: &[Findings],
    ) -> Self {
        let ends = shards.iter().scan(0, |sum, shard| {
            *sum += shard.count();
            Some(*sum)
        });
        Self {
            ends: ends.collect(),
            checksum: set.as_ref().map_or(findings[0].checksum, |set| set.sha256),
            source_bytes: findings.iter().map(|found| found.source_bytes).sum(),
            source,
            element,
            shards,
            set,
            open: Mutex::default(),
        }
    }

    /// Reads the ids at `range` into `ids`, in place of what is there.
    ///
    /// # Errors
    /// [`Error::TapeChanged`] where a file is not what it was, [`Error::Read`] or [`Error::ReadAt`] where
    /// it cannot be read.
    ///
    /// # Panics
    /// If the range reaches beyond the tape, or its length beyond the address space.
    pub fn read(&self, range: Range<u64>, ids: &mut Vec<u32>) -> Result<(), Error> {
        ids.clear();
        ids.reserve(usize::try_from(range.end - range.start).expect("ids fit in memory"));
        let element = self.element;
        self.for_each_shard(range, &mut |open, start, end| {
            open.tokens.read(start, end, &mut |bytes| append_ids(bytes, element, ids))
        })
    }

    /// Reads, for each token at `range`, how many bytes of UTF-8 source text it stands for; false, and
    /// nothing, without byte lengths.
    ///
    /// # Errors
    /// As for [`Tape::read`].
    ///
    /// # Panics
    /// As for [`Tape::read`].
    pub fn read_byte_lengths(
        &self,
        range: Range<u64>,
        lengths: &mut Vec<u16>,
    ) -> Result<bool, Error> {
        lengths.clear();
        if self.source_bytes.is_none() {
            return Ok(false);
        }
        self.for_each_shard(range, &mut |open, start, end| {
            let file = open.byte_lengths.as_ref().expect("every shard has byte lengths");
            file.read(start, end, &mut |bytes| append_lengths(bytes, lengths))
        })?;
        Ok(true)
    }

    /// Calls `work` for each shard that `range` touches, with the positions inside it.
    fn for_each_shard(
        &self,
        range: Range<u64>,
        work: &mut dyn FnMut(&OpenShard, u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        assert!(range.end <= self.len(), "the range is inside the tape");
        let mut position = range.start;
        let mut held = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while position < range.end {
            let index = self.ends.partition_point(|&end| end <= position);
            if held.as_ref().is_none_or(|&(open, _)| open != index) {
                *held = Some((index, self.shards[index].files_open()?));
            }
            let (_, open) = held.as_ref().expect("the shard was just opened");
            let end = range.end.min(self.ends[index]);
            let before = self.ends[index] - self.shards[index].count();
            work(open, position - before, end - before)?;
            position = end;
        }
        Ok(())
    }

    /// Hands over all of the tape in runs of about a million tokens: where the run begins, its ids, and
    /// its byte lengths where there are any.
    ///
    /// # Errors
    /// Those of reading, and the first that `take` gives.
    pub fn for_each_run<E: From<Error>>(
        &self,
        mut take: impl FnMut(u64, &[u32], Option<&[u16]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut ids, mut lengths) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < self.len() {
            let end = self.len().min(start + RUN_TOKENS);
            self.read(start..end, &mut ids)?;
            let has_lengths = self.read_byte_lengths(start..end, &mut lengths)?;
            take(start, &ids, has_lengths.then_some(&lengths))?;
            start = end;
        }
        Ok(())
    }

    /// The number of tokens; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty tape cannot be opened")]
    pub fn len(&self) -> u64 {
        *self.ends.last().expect("a tape has at least one shard")
    }

    /// The sum of all byte lengths.
    pub fn source_bytes(&self) -> Option<u64> {
        self.source_bytes
    }

    /// The sum of the byte lengths of `tokens` (positions, not targets: the targets of inputs
    /// `a..b` are `a + 1..b + 1`); `None` without byte lengths.
    ///
    /// # Errors
    /// As for [`Tape::read`].
    ///
    /// # Panics
    /// As for [`Tape::read`].
    pub fn source_bytes_of(&self, tokens: Range<u64>) -> Result<Option<u64>, Error> {
        let mut lengths = Vec::new();
        let mut sum = 0;
        let mut start = tokens.start;
        while start < tokens.end {
            let end = tokens.end.min(start + RUN_TOKENS);
            if !self.read_byte_lengths(start..end, &mut lengths)? {
                return Ok(None);
            }
            sum += sum_of(&lengths);
            start = end;
        }
        Ok(self.source_bytes.map(|_| sum))
    }

    /// The smallest number of tokens, from the start, that stands for at least `source_bytes`
    /// bytes of text. `None` if the tape holds fewer, or has no byte lengths.
    ///
    /// This is what turns a length in RDQ into a length in tokens. It reads the byte lengths up to there.
    ///
    /// # Errors
    /// As for [`Tape::read`].
    pub fn tokens_for_source_bytes(&self, source_bytes: u64) -> Result<Option<u64>, Error> {
        let mut missing = source_bytes;
        let mut lengths = Vec::new();
        let mut start = 0;
        while start < self.len() && missing > 0 {
            let end = self.len().min(start + RUN_TOKENS);
            if !self.read_byte_lengths(start..end, &mut lengths)? {
                return Ok(None);
            }
            for (&length, tokens) in lengths.iter().zip(start + 1..) {
                missing = missing.saturating_sub(length.into());
                if missing == 0 {
                    return Ok(Some(tokens));
                }
            }
            start = end;
        }
        Ok(self.source_bytes.filter(|_| missing == 0).map(|_| 0))
    }

    /// The sidecar, if the tape is one file and has one.
    pub fn sidecar(&self) -> Option<&Sidecar> {
        if self.set.is_some() { None } else { self.shards[0].sidecar() }
    }

    /// The list, if the tape is a set.
    pub fn set(&self) -> Option<&TapeSet> {
        self.set.as_ref()
    }

    /// What made the ids, as far as a sidecar tells.
    pub fn tokenizer(&self) -> Option<&TokenizerRecord> {
        self.shards[0].sidecar().map(|sidecar| &sidecar.tokenizer)
    }

    /// How an id is stored.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The SHA-256 of the tokens: which tape this is, for checkpoints. With [`Verify::WhenRead`], and for a
    /// set, it is what the sidecar or list says.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Where the tape was opened.
    pub fn source(&self) -> &TapeSource {
        &self.source
    }

    /// The path that names it in messages.
    pub fn path(&self) -> &Path {
        self.source.path()
    }
}

fn append_ids(bytes: &[u8], element: Element, ids: &mut Vec<u32>) {
    match element {
        Element::U16 => {
            ids.extend(
                bytes.as_chunks::<2>().0.iter().map(|&id| u32::from(u16::from_le_bytes(id))),
            );
        }
        Element::U32 => {
            ids.extend(bytes.as_chunks::<4>().0.iter().map(|&id| u32::from_le_bytes(id)));
        }
    }
}

fn append_lengths(bytes: &[u8], lengths: &mut Vec<u16>) {
    lengths.extend(bytes.as_chunks::<2>().0.iter().map(|&length| u16::from_le_bytes(length)));
}

/// The sum of byte lengths.
fn sum_of(lengths: &[u16]) -> u64 {
    lengths.iter().map(|&length| u64::from(length)).sum()
}
