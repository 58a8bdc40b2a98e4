//! How long a run is: training tokens, updates, and which tokens each update reads.

use std::ops::Range;

use tape::reader::Tape;

use crate::config::{Length, RunSection};
use crate::error::Error;
use crate::schedule::{Schedule, Span, Unit};

/// Source bytes in one reference data quantum.
pub const RDQ_BYTES: f64 = 1e9;

/// The length of a run over one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Training tokens of the whole run; the last update may have fewer than the others.
    pub tokens: u64,
    /// Tokens of an update: batch * context * accumulation.
    pub update_tokens: u64,
    /// Training tokens that the tape has, one less than its length: the first token is never a target.
    pub tape_tokens: u64,
}

impl Budget {
    /// The length that `run` asks for, checked against the tape.
    ///
    /// # Errors
    ///
    /// A tape that is too short, or that has no byte lengths where the length is in source bytes.
    pub fn new(run: &RunSection, context: usize, tape: &Tape) -> Result<Self, Error> {
        let update_tokens = (run.batch * run.accumulation * context) as u64;
        let tape_tokens = (tape.len()).saturating_sub(1);
        let tokens = match run.length {
            Length::Updates(updates) => updates.saturating_mul(update_tokens),
            Length::Tokens(tokens) => tokens,
            Length::WholeTape => tape_tokens.max(1),
            Length::Rdq(quanta) => tokens_of_bytes(tape, quanta * RDQ_BYTES)?,
        };
        if tokens > tape_tokens {
            let tape = tape.files().tokens.clone();
            return Err(Error::TapeTooShort { tape, needed: tokens, held: tape_tokens });
        }
        Ok(Self { tokens, update_tokens, tape_tokens })
    }

    /// Updates of the whole run.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.tokens.div_ceil(self.update_tokens)
    }

    /// Updates that the tape allows in all, a shorter last one included.
    #[must_use]
    pub fn updates_allowed(&self) -> u64 {
        self.tape_tokens.div_ceil(self.update_tokens)
    }

    /// Positions in the tape of the tokens that the update after `done` updates reads.
    #[must_use]
    pub fn range(&self, done: u64) -> Range<u64> {
        let start = done * self.update_tokens;
        start..(start + self.update_tokens).min(self.tokens)
    }

    /// The learning rate of the update after `done` updates.
    #[must_use]
    pub fn learning_rate(&self, schedule: &Schedule, done: u64) -> f64 {
        let span = match schedule.unit {
            Unit::Updates => Span { start: done, end: done + 1, total: self.updates() },
            Unit::Tokens => {
                let Range { start, end } = self.range(done);
                Span { start, end, total: self.tokens }
            }
        };
        schedule.learning_rate(span)
    }
}

/// The fewest training tokens whose targets stand for at least `bytes` source bytes.
fn tokens_of_bytes(tape: &Tape, bytes: f64) -> Result<u64, Error> {
    let lengths = tape.byte_lengths().ok_or_else(|| Error::NoByteLengths {
        tape: tape.files().tokens.clone(),
        needed: "run.rdq counts source bytes, so the tape needs its *.byte-lengths.u16 file beside it",
    })?;
    // The first token is never a target, so its bytes come on top.
    let first = u64::from(lengths[0]);
    if let Some(tokens) = tape.tokens_for_source_bytes(first + bytes.ceil() as u64) {
        return Ok(tokens.saturating_sub(1).max(1));
    }
    // The tape falls short; say by about how many tokens, at its own mean bytes per token.
    let held = tape.source_bytes().unwrap_or(0).max(1);
    Ok((tape.len() as f64 * bytes / held as f64).ceil().max(tape.len() as f64) as u64)
}
