//! What a tape must be, each rule with the error that names its first breach.

use std::path::Path;

use rayon::prelude::*;

use super::{Mapped, RUN_ELEMENTS};
use crate::Error;
use crate::checksum::Checksum;
use crate::layout::{FileRecord, Sidecar, TapeFiles};

/// A mapped tape before it is trusted.
pub(super) struct Candidate<'t> {
    pub(super) files: &'t TapeFiles,
    pub(super) tokens: &'t Mapped<u32>,
    /// With its path.
    pub(super) byte_lengths: Option<(&'t Path, &'t Mapped<u16>)>,
    /// With its path.
    pub(super) sidecar: Option<(&'t Path, &'t Sidecar)>,
}

/// What the checks learn on their way.
pub(super) struct Findings {
    pub(super) tokens_checksum: Checksum,
    pub(super) source_bytes: Option<u64>,
}

impl Candidate<'_> {
    /// All checks of [`super::Tape::open`], the cheap ones first.
    pub(super) fn check(&self, vocabulary: Option<u32>) -> Result<Findings, Error> {
        self.check_counts()?;
        self.check_vocabulary(vocabulary)?;
        let (tokens_checksum, lengths_checksum) = rayon::join(
            || Checksum::of(self.tokens.bytes()),
            || self.byte_lengths.map(|(_, lengths)| Checksum::of(lengths.bytes())),
        );
        if let Some((_, sidecar)) = self.sidecar {
            self.check_record(&self.files.tokens, tokens_checksum, &sidecar.tokens)?;
            if let (Some((path, _)), Some(checksum)) = (self.byte_lengths, lengths_checksum) {
                self.check_record(path, checksum, &sidecar.byte_lengths)?;
            }
        }
        let of_tape = self.sidecar.map(|(_, sidecar)| sidecar.tokenizer.vocabulary);
        if let Some(vocabulary) = of_tape.or(vocabulary) {
            self.check_ids(vocabulary)?;
        }
        let source_bytes = self.byte_lengths.map(|(_, lengths)| sum(lengths.as_slice()));
        self.check_documents(source_bytes)?;
        Ok(Findings { tokens_checksum, source_bytes })
    }

    fn check_counts(&self) -> Result<(), Error> {
        let Some((path, lengths)) = self.byte_lengths else { return Ok(()) };
        let (tokens, byte_lengths) = (self.tokens.as_slice().len(), lengths.as_slice().len());
        if tokens == byte_lengths {
            return Ok(());
        }
        Err(Error::TapeCounts {
            tokens_path: self.files.tokens.clone(),
            tokens: tokens as u64,
            byte_lengths_path: path.to_owned(),
            byte_lengths: byte_lengths as u64,
        })
    }

    /// A model may know more ids than the tape (a padded vocabulary), never fewer.
    fn check_vocabulary(&self, vocabulary: Option<u32>) -> Result<(), Error> {
        let (Some(expected), Some((path, sidecar))) = (vocabulary, self.sidecar) else {
            return Ok(());
        };
        let found = sidecar.tokenizer.vocabulary;
        if found <= expected {
            return Ok(());
        }
        Err(Error::Vocabulary { path: path.to_owned(), expected, found })
    }

    /// The file at `path` against its record; both files have as many elements.
    fn check_record(&self, path: &Path, found: Checksum, record: &FileRecord) -> Result<(), Error> {
        let count = self.tokens.as_slice().len() as u64;
        if record.count != count {
            return Err(self.mismatch(path, "the count", record.count, count));
        }
        if record.sha256 != found {
            return Err(self.mismatch(path, "the SHA-256", record.sha256, found));
        }
        Ok(())
    }

    fn check_ids(&self, vocabulary: u32) -> Result<(), Error> {
        let tokens = self.tokens.as_slice();
        // The maximum of a run vectorises; a search for the first wrong id would not.
        let is_wrong = |run: &[u32]| run.iter().fold(0, |most, &id| most.max(id)) >= vocabulary;
        let Some(run) = tokens.par_chunks(RUN_ELEMENTS).position_first(is_wrong) else {
            return Ok(());
        };
        let start = run * RUN_ELEMENTS;
        let offset = tokens[start..].iter().position(|&id| id >= vocabulary);
        let position = start + offset.expect("the run has a wrong id");
        Err(Error::TokenOutOfRange {
            path: self.files.tokens.clone(),
            position: position as u64,
            id: tokens[position],
            vocabulary,
        })
    }

    /// What the sidecar says of ends of documents and of bytes.
    fn check_documents(&self, source_bytes: Option<u64>) -> Result<(), Error> {
        let Some((_, sidecar)) = self.sidecar else { return Ok(()) };
        let end = sidecar.end_of_document.id;
        let ends = |run: &[u32]| run.iter().filter(|&&id| id == end).count() as u64;
        let documents: u64 = self.tokens.as_slice().par_chunks(RUN_ELEMENTS).map(ends).sum();
        if documents != sidecar.documents {
            let (path, what) = (&self.files.tokens, "the number of end-of-document ids");
            return Err(self.mismatch(path, what, sidecar.documents, documents));
        }
        let (Some((path, lengths)), Some(sum)) = (self.byte_lengths, source_bytes) else {
            return Ok(());
        };
        self.check_lengths(path, lengths.as_slice(), end)?;
        if sum != sidecar.source_bytes {
            let what = "the sum of byte lengths";
            return Err(self.mismatch(path, what, sidecar.source_bytes, sum));
        }
        Ok(())
    }

    /// Exactly the ends of documents stand for no text.
    fn check_lengths(&self, path: &Path, lengths: &[u16], end: u32) -> Result<(), Error> {
        let tokens = self.tokens.as_slice();
        let is_wrong = |(&id, &length): (&u32, &u16)| (id == end) != (length == 0);
        let any_wrong = |(ids, lengths): (&[u32], &[u16])| {
            ids.iter().zip(lengths).fold(false, |any, pair| any | is_wrong(pair))
        };
        let runs = tokens.par_chunks(RUN_ELEMENTS).zip(lengths.par_chunks(RUN_ELEMENTS));
        let Some(run) = runs.position_first(any_wrong) else { return Ok(()) };
        let start = run * RUN_ELEMENTS;
        let offset = tokens[start..].iter().zip(&lengths[start..]).position(is_wrong);
        let position = start + offset.expect("the run has a wrong length");
        let is_end = tokens[position] == end;
        Err(Error::ByteLength {
            path: path.to_owned(),
            position: position as u64,
            byte_length: lengths[position],
            expected: if is_end { "0 for an end of document" } else { "at least 1 for text" },
        })
    }

    fn mismatch(
        &self,
        path: &Path,
        what: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        Error::TapeMismatch {
            path: path.to_owned(),
            sidecar: self.sidecar.map_or_else(Default::default, |(path, _)| path.to_owned()),
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

fn sum(lengths: &[u16]) -> u64 {
    lengths.par_chunks(RUN_ELEMENTS).map(super::sum).sum()
}
