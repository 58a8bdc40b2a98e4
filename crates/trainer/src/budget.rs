//! How long a run is: training tokens, updates, and which tokens each update reads.

use std::ops::Range;
use std::sync::Arc;

use tape::order::Order;
use tape::reader::Tape;

use crate::config::{Config, DataOrder, Length};
use crate::corpus::Corpus;
use crate::error::Error;
use crate::feed::Feed;
use crate::schedule::{Schedule, Span, Unit};

/// Source bytes in one reference data quantum.
pub const RDQ_BYTES: f64 = 1e9;

/// The length of a run over its tapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Training tokens of the whole run; the last update may have fewer than the others.
    pub tokens: u64,
    /// Tokens of an update: batch * context * accumulation. Where a window is shorter than the context, an
    /// update of a shuffled run has a few less.
    pub update_tokens: u64,
    /// Training tokens that the tapes have in all epochs allowed; in one pass, one less than the length of a
    /// tape: the first token is never a target.
    pub tape_tokens: u64,
    shuffled: Option<Shuffled>,
}

/// What is known of a shuffled run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shuffled {
    order: Arc<Order>,
    /// Windows of an update.
    rows: u64,
    /// Windows of the run.
    windows: u64,
    /// Tokens after which a virtual epoch ends.
    epoch_tokens: u64,
}

impl Budget {
    /// The length that `config` asks for, checked against the tapes that `feed` reads.
    ///
    /// # Errors
    ///
    /// Tapes that are too short, or that have no byte lengths where the length is in source bytes.
    pub fn new(config: &Config, corpus: &Corpus, feed: &Feed) -> Result<Self, Error> {
        let run = &config.run;
        let rows = (run.batch * run.accumulation) as u64;
        let update_tokens = rows * config.model.context as u64;
        match (feed.order(), &config.data.order) {
            (Some(order), DataOrder::Shuffled(shuffled)) => {
                let tokens = match run.length {
                    Length::Updates(updates) => order.tokens_before(updates.saturating_mul(rows)),
                    Length::Tokens(tokens) => tokens,
                    Length::WholeTape => order.epoch_tokens(),
                    Length::Rdq(quanta) => shuffled_tokens(corpus, order, quanta * RDQ_BYTES)?,
                };
                let windows = order.windows_for(tokens);
                let needed = order.epochs(windows);
                for (tape, needed) in corpus.train.iter().zip(needed) {
                    let allowed = shuffled.epochs;
                    if needed > allowed {
                        let tape = tape.path().to_owned();
                        return Err(Error::TooFewEpochs { tape, needed, allowed });
                    }
                }
                let epoch_tokens = config.data.epoch_tokens.unwrap_or(order.epoch_tokens());
                let tape_tokens = order.epoch_tokens().saturating_mul(shuffled.epochs);
                let order = Arc::clone(order);
                let shuffled = Some(Shuffled { order, rows, windows, epoch_tokens });
                Ok(Self { tokens, update_tokens, tape_tokens, shuffled })
            }
            _ => Self::sequential(run.length, update_tokens, &corpus.train[0]),
        }
    }

    fn sequential(length: Length, update_tokens: u64, tape: &Tape) -> Result<Self, Error> {
        let tape_tokens = tape.len().saturating_sub(1);
        let tokens = match length {
            Length::Updates(updates) => updates.saturating_mul(update_tokens),
            Length::Tokens(tokens) => tokens,
            Length::WholeTape => tape_tokens.max(1),
            Length::Rdq(quanta) => tokens_of_bytes(tape, quanta * RDQ_BYTES)?,
        };
        if tokens > tape_tokens {
            let tape = tape.path().to_owned();
            return Err(Error::TapeTooShort { tape, needed: tokens, held: tape_tokens });
        }
        Ok(Self { tokens, update_tokens, tape_tokens, shuffled: None })
    }

    /// Updates of the whole run.
    #[must_use]
    pub fn updates(&self) -> u64 {
        match &self.shuffled {
            Some(shuffled) => shuffled.windows.div_ceil(shuffled.rows),
            None => self.tokens.div_ceil(self.update_tokens),
        }
    }

    /// Updates that the tapes allow in all, a shorter last one included.
    #[must_use]
    pub fn updates_allowed(&self) -> u64 {
        self.tape_tokens.div_ceil(self.update_tokens)
    }

    /// Training tokens of the run before and after the update that follows `done` others. Of a tape that is
    /// read in order, these are positions.
    #[must_use]
    pub fn range(&self, done: u64) -> Range<u64> {
        match &self.shuffled {
            Some(Shuffled { order, .. }) => {
                let Range { start, end } = self.windows(done);
                order.tokens_before(start)..order.tokens_before(end).min(self.tokens)
            }
            None => {
                let start = done * self.update_tokens;
                start..(start + self.update_tokens).min(self.tokens)
            }
        }
    }

    /// The windows of the update after `done` others.
    ///
    /// # Panics
    ///
    /// When the run is not shuffled.
    #[must_use]
    pub fn windows(&self, done: u64) -> Range<u64> {
        let Shuffled { rows, windows, .. } = self.shuffled.as_ref().expect("the run is shuffled");
        done * rows..((done + 1) * rows).min(*windows)
    }

    /// The virtual epoch, counted from 1, that the run is in after so many training tokens; none where a tape
    /// is read in order, once.
    #[must_use]
    pub fn epoch(&self, tokens: u64) -> Option<u64> {
        self.shuffled.as_ref().map(|shuffled| tokens.div_ceil(shuffled.epoch_tokens).max(1))
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

fn no_byte_lengths(tape: &Tape) -> Error {
    Error::NoByteLengths {
        tape: tape.path().to_owned(),
        needed: "run.rdq counts source bytes, so the tape needs its *.byte-lengths.u16 file beside it",
    }
}

/// The fewest training tokens whose targets stand for at least `bytes` source bytes.
fn tokens_of_bytes(tape: &Tape, bytes: f64) -> Result<u64, Error> {
    // The first token is never a target, so its bytes come on top.
    let first = tape.source_bytes_of(0..1)?.ok_or_else(|| no_byte_lengths(tape))?;
    if let Some(tokens) = tape.tokens_for_source_bytes(first + bytes.ceil() as u64)? {
        return Ok(tokens.saturating_sub(1).max(1));
    }
    // The tape falls short; say by about how many tokens, at its own mean bytes per token.
    let held = tape.source_bytes().unwrap_or(0).max(1);
    Ok((tape.len() as f64 * bytes / held as f64).ceil().max(tape.len() as f64) as u64)
}

/// The training tokens that stand for `bytes` source bytes on average: in a shuffled order the exact number
/// would take reading everything first.
fn shuffled_tokens(corpus: &Corpus, order: &Order, bytes: f64) -> Result<u64, Error> {
    let mut bytes_per_token = 0.0;
    for (tape, share) in corpus.train.iter().zip(order.shares()) {
        let source_bytes = tape.source_bytes().ok_or_else(|| no_byte_lengths(tape))?;
        bytes_per_token += share * source_bytes as f64 / tape.len() as f64;
    }
    Ok((bytes / bytes_per_token).ceil().max(1.0) as u64)
}
