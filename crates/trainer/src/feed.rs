//! The tokens of each update: the next ones of a tape, or windows in a shuffled order.
//!
//! Which tokens an update has follows from its number alone. A run that goes on asks for the next update
//! and reads nothing before it.

use std::sync::Arc;

use tape::loader::Loader;
use tape::order::{Order, OrderOptions};
use tape::reader::Tape;

use crate::batch::Tokens;
use crate::budget::Budget;
use crate::config::{Config, DataOrder};
use crate::corpus::Corpus;
use crate::error::Error;

/// Where the tokens of updates come from.
#[derive(Debug)]
pub struct Feed {
    source: Source,
    context: usize,
    tokens: Tokens,
}

#[derive(Debug)]
enum Source {
    Sequential(Arc<Tape>),
    Shuffled(Loader),
}

impl Feed {
    /// The tokens of `corpus` in the order that `config` asks for.
    ///
    /// # Errors
    ///
    /// Weights that are no shares, and a tape without targets.
    ///
    /// # Panics
    ///
    /// When a sequential corpus has several tapes, which the configuration rules out.
    pub fn new(config: &Config, corpus: &Corpus) -> Result<Self, Error> {
        let context = config.model.context;
        let source = match &config.data.order {
            DataOrder::Sequential => {
                let [tape] = &corpus.train[..] else { panic!("one tape is read in order") };
                Source::Sequential(Arc::clone(tape))
            }
            DataOrder::Shuffled(shuffled) => {
                let options = OrderOptions {
                    context,
                    range_tokens: shuffled.range_tokens,
                    seed: shuffled.seed,
                    weights: shuffled.weights.clone(),
                };
                let tapes = corpus.train.clone();
                Source::Shuffled(Loader::new(tapes, &options, shuffled.prefetch)?)
            }
        };
        Ok(Self { source, context, tokens: Tokens::default() })
    }

    /// The order of windows, if it is a shuffled one.
    #[must_use]
    pub fn order(&self) -> Option<&Arc<Order>> {
        match &self.source {
            Source::Sequential(_) => None,
            Source::Shuffled(loader) => Some(loader.order()),
        }
    }

    /// Brings the tokens of the update after `done` others; the source bytes of its targets, where they are
    /// known.
    ///
    /// # Errors
    ///
    /// A tape that cannot be read, or that has changed.
    pub fn bring(&mut self, budget: &Budget, done: u64) -> Result<Option<u64>, Error> {
        let range = budget.range(done);
        let Self { source, context, tokens } = self;
        match source {
            Source::Sequential(tape) => {
                tokens.read(tape, range.clone())?;
                Ok(tape.source_bytes_of(range.start + 1..range.end + 1)?)
            }
            Source::Shuffled(loader) => {
                tokens.clear();
                let mut missing = (range.end - range.start) as usize;
                let mut bytes = Some(0);
                loader.read(budget.windows(done), &mut |row| {
                    // The last update of a run may end inside a window.
                    let count = missing.min(row.inputs.len());
                    missing -= count;
                    tokens.push_row(*context, &row.inputs[..count], &row.targets[..count]);
                    let lengths = row.byte_lengths.map(|lengths| &lengths[..count]);
                    let sum = lengths.map(|l| l.iter().map(|&n| u64::from(n)).sum::<u64>());
                    bytes = bytes.zip(sum).map(|(all, row)| all + row);
                })?;
                Ok(bytes)
            }
        }
    }

    /// The tokens that were brought last.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }
}
