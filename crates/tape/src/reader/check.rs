//! What the content of a tape must be, each rule with the error that names its first breach.

use std::path::Path;

use super::shard::{OpenShard, mismatch};
use super::{RUN_TOKENS, append_ids, append_lengths, sum_of};
use crate::Error;
use crate::blocks::BlockHasher;
use crate::checksum::Checksum;
use crate::layout::{Element, Sidecar};

/// What a tape is known by after the checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Findings {
    pub(super) checksum: Checksum,
    pub(super) source_bytes: Option<u64>,
}

/// One pass over the files of a shard.
pub(super) struct Pass<'t> {
    pub(super) open: &'t OpenShard,
    pub(super) element: Element,
    /// With its path.
    pub(super) sidecar: Option<(&'t Path, &'t Sidecar)>,
    pub(super) vocabulary: Option<u32>,
}

/// What the pass sees.
#[derive(Default)]
struct Seen {
    ids: Vec<u32>,
    lengths: Vec<u16>,
    documents: u64,
    source_bytes: u64,
    /// Position and id of the first one beyond the vocabulary.
    wrong_id: Option<(u64, u32)>,
    /// Position, length and id of the first token whose length cannot be.
    wrong_length: Option<(u64, u16, u32)>,
}

impl Pass<'_> {
    /// All checks, and the hashes of all blocks of tokens and of byte lengths.
    pub(super) fn run(&self) -> Result<(Findings, [Vec<Checksum>; 2]), Error> {
        let mut seen = Seen::default();
        let (mut tokens, mut lengths) = (BlockHasher::default(), BlockHasher::default());
        let (mut token_bytes, mut length_bytes) = (Vec::new(), Vec::new());
        let count = self.open.tokens.count();
        let mut start = 0;
        while start < count {
            let end = count.min(start + RUN_TOKENS);
            let size = self.element.bytes() as u64;
            self.open.tokens.read_unverified(start * size, end * size, &mut token_bytes)?;
            if let Some(file) = &self.open.byte_lengths {
                file.read_unverified(start * 2, end * 2, &mut length_bytes)?;
            }
            rayon::join(
                || tokens.update(&token_bytes),
                || {
                    lengths.update(&length_bytes);
                    self.look(start, &token_bytes, &length_bytes, &mut seen);
                },
            );
            start = end;
        }
        let (checksum, token_blocks) = tokens.finish();
        let (lengths_checksum, length_blocks) = lengths.finish();
        self.judge(&seen, checksum, lengths_checksum)?;
        let source_bytes = self.open.byte_lengths.as_ref().map(|_| seen.source_bytes);
        Ok((Findings { checksum, source_bytes }, [token_blocks, length_blocks]))
    }

    /// Looks at one run of tokens.
    fn look(&self, start: u64, token_bytes: &[u8], length_bytes: &[u8], seen: &mut Seen) {
        seen.ids.clear();
        append_ids(token_bytes, self.element, &mut seen.ids);
        seen.lengths.clear();
        append_lengths(length_bytes, &mut seen.lengths);
        seen.source_bytes += sum_of(&seen.lengths);
        let of_tape = self.sidecar.map(|(_, sidecar)| sidecar.tokenizer.vocabulary);
        // The maximum of a run vectorises; a search for the first wrong id would not.
        if let Some(vocabulary) = of_tape.or(self.vocabulary)
            && seen.wrong_id.is_none()
            && seen.ids.iter().fold(0, |most, &id| most.max(id)) >= vocabulary
        {
            let wrong = seen.ids.iter().zip(start..).find(|&(&id, _)| id >= vocabulary);
            seen.wrong_id = wrong.map(|(&id, position)| (position, id));
        }
        let Some((_, sidecar)) = self.sidecar else { return };
        let end = sidecar.end_of_document.id;
        seen.documents += seen.ids.iter().filter(|&&id| id == end).count() as u64;
        // Exactly the ends of documents stand for no text.
        let is_wrong = |(&id, &length): (&u32, &u16)| (id == end) != (length == 0);
        let pairs = || seen.ids.iter().zip(&seen.lengths);
        if seen.wrong_length.is_none() && pairs().fold(false, |any, pair| any | is_wrong(pair)) {
            let wrong = pairs().zip(start..).find(|&(pair, _)| is_wrong(pair));
            seen.wrong_length = wrong.map(|((&id, &length), position)| (position, length, id));
        }
    }

    /// The first rule that does not hold, hashes before what they explain.
    fn judge(
        &self,
        seen: &Seen,
        checksum: Checksum,
        lengths_checksum: Checksum,
    ) -> Result<(), Error> {
        let OpenShard { tokens, byte_lengths } = self.open;
        if let Some((path, sidecar)) = self.sidecar {
            let sha256 = "the SHA-256";
            if sidecar.tokens.sha256 != checksum {
                let expected = sidecar.tokens.sha256;
                return Err(mismatch(tokens.path(), path, sha256, expected, checksum));
            }
            if let Some(file) = byte_lengths
                && sidecar.byte_lengths.sha256 != lengths_checksum
            {
                let expected = sidecar.byte_lengths.sha256;
                return Err(mismatch(file.path(), path, sha256, expected, lengths_checksum));
            }
        }
        if let Some((position, id)) = seen.wrong_id {
            let of_tape = self.sidecar.map(|(_, sidecar)| sidecar.tokenizer.vocabulary);
            return Err(Error::TokenOutOfRange {
                path: tokens.path().to_owned(),
                position,
                id,
                vocabulary: of_tape.or(self.vocabulary).expect("an id was beyond it"),
            });
        }
        let Some((path, sidecar)) = self.sidecar else { return Ok(()) };
        if seen.documents != sidecar.documents {
            let what = "the number of end-of-document ids";
            return Err(mismatch(tokens.path(), path, what, sidecar.documents, seen.documents));
        }
        let Some(file) = byte_lengths else { return Ok(()) };
        if let Some((position, byte_length, id)) = seen.wrong_length {
            let is_end = id == sidecar.end_of_document.id;
            return Err(Error::ByteLength {
                path: file.path().to_owned(),
                position,
                byte_length,
                expected: if is_end { "0 for an end of document" } else { "at least 1 for text" },
            });
        }
        if seen.source_bytes != sidecar.source_bytes {
            let (what, expected) = ("the sum of byte lengths", sidecar.source_bytes);
            return Err(mismatch(file.path(), path, what, expected, seen.source_bytes));
        }
        Ok(())
    }
}
