//! The tokens of each update: the next ones of a tape, or windows in a shuffled order.
//!
//! Which tokens an update has follows from its number alone. A run that goes on asks for the next update
//! and reads nothing before it but the range that this is in.

use std::ops::Range;
use std::sync::Arc;

use tape::loader::Loader;
use tape::order::{Order, OrderOptions};
use tape::reader::Tape;

use crate::budget::Budget;
use crate::config::{Config, DataOrder};
use crate::corpus::Corpus;
use crate::error::Error;
use crate::pool::{RangeKey, RangeShape};
use crate::stage::{Row, Source};

/// Tokens of the ranges that a tape is read in, about; reading one takes less time than the updates that are
/// queued meanwhile.
const RANGE_TOKENS: u64 = 1 << 17;

/// Where the tokens of updates come from.
#[derive(Debug)]
pub struct Feed {
    kind: Kind,
    context: usize,
}

#[derive(Debug)]
enum Kind {
    Sequential(Sequential),
    Shuffled(Loader),
}

/// A tape that is read in order.
#[derive(Debug)]
struct Sequential {
    tape: Arc<Tape>,
    /// Inputs of a range, whole rows.
    range_tokens: u64,
    /// The range that was read last: where it begins, its tokens, and their byte lengths if there are any.
    start: Option<u64>,
    ids: Vec<u32>,
    lengths: Vec<u16>,
    has_lengths: bool,
}

/// The updates of a run.
pub struct Updates<'a> {
    /// Where their tokens come from.
    pub feed: &'a mut Feed,
    /// Which tokens each has.
    pub budget: &'a Budget,
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
        let kind = match &config.data.order {
            DataOrder::Sequential => {
                let [tape] = &corpus.train[..] else { panic!("one tape is read in order") };
                Kind::Sequential(Sequential::new(Arc::clone(tape), context as u64))
            }
            DataOrder::Shuffled(shuffled) => {
                let options = OrderOptions {
                    context,
                    range_tokens: shuffled.range_tokens,
                    seed: shuffled.seed,
                    weights: shuffled.weights.clone(),
                };
                let tapes = corpus.train.clone();
                Kind::Shuffled(Loader::new(tapes, &options, shuffled.prefetch)?)
            }
        };
        Ok(Self { kind, context })
    }

    /// The order of windows, if it is a shuffled one.
    #[must_use]
    pub fn order(&self) -> Option<&Arc<Order>> {
        match &self.kind {
            Kind::Sequential(_) => None,
            Kind::Shuffled(loader) => Some(loader.order()),
        }
    }

    /// What the ranges of a run are like.
    #[must_use]
    pub fn shape(&self, budget: &Budget) -> RangeShape {
        let rows = budget.update_tokens / self.context as u64;
        match &self.kind {
            Kind::Sequential(sequential) => {
                let Sequential { tape, range_tokens, .. } = sequential;
                let ranges = budget.tokens.div_ceil(*range_tokens).max(1);
                let update_ranges = budget.update_tokens.div_ceil(*range_tokens) + 1;
                RangeShape {
                    ids: tape.len().min(range_tokens + 1),
                    ranges,
                    update_ranges: update_ranges.min(ranges),
                }
            }
            Kind::Shuffled(loader) => {
                let order = loader.order();
                RangeShape {
                    ids: order.range_ids(),
                    ranges: order.ranges(),
                    update_ranges: order.ranges_of(rows),
                }
            }
        }
    }
}

impl Source for Updates<'_> {
    fn shape(&self) -> RangeShape {
        self.feed.shape(self.budget)
    }

    fn updates(&self) -> u64 {
        self.budget.updates()
    }

    fn row_count(&self, done: u64) -> usize {
        match &self.feed.kind {
            Kind::Sequential(_) => {
                let range = self.budget.range(done);
                (range.end - range.start).div_ceil(self.feed.context as u64) as usize
            }
            Kind::Shuffled(_) => {
                let windows = self.budget.windows(done);
                (windows.end - windows.start) as usize
            }
        }
    }

    fn rows(
        &mut self,
        done: u64,
        take: &mut dyn FnMut(Row<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let context = self.feed.context;
        let range = self.budget.range(done);
        match &mut self.feed.kind {
            Kind::Sequential(sequential) => {
                for start in range.clone().step_by(context) {
                    take(sequential.row(start..range.end.min(start + context as u64))?)?;
                }
                Ok(())
            }
            Kind::Shuffled(loader) => {
                let mut missing = (range.end - range.start) as usize;
                let mut outcome = Ok(());
                loader.read(self.budget.windows(done), &mut |row| {
                    // The last update of a run may end inside a window.
                    let count = missing.min(row.inputs.len());
                    missing -= count;
                    let row = Row {
                        range: RangeKey { tape: row.tape, start: row.range_start },
                        ids: row.range,
                        start: (row.cursor - row.range_start) as usize,
                        count,
                        bytes: row.byte_lengths.map(|lengths| sum(&lengths[..count])),
                    };
                    if outcome.is_ok() {
                        outcome = take(row);
                    }
                })?;
                outcome
            }
        }
    }
}

impl Sequential {
    fn new(tape: Arc<Tape>, context: u64) -> Self {
        Self {
            tape,
            range_tokens: context * (RANGE_TOKENS / context).max(1),
            start: None,
            ids: Vec::new(),
            lengths: Vec::new(),
            has_lengths: false,
        }
    }

    /// The row of these inputs, which do not cross the border of a range: both begin at multiples of a
    /// row's length.
    fn row(&mut self, inputs: Range<u64>) -> Result<Row<'_>, Error> {
        let range_start = inputs.start / self.range_tokens * self.range_tokens;
        if self.start != Some(range_start) {
            self.start = None;
            let tokens = range_start..self.tape.len().min(range_start + self.range_tokens + 1);
            self.tape.read(tokens.clone(), &mut self.ids)?;
            self.has_lengths = self.tape.read_byte_lengths(tokens, &mut self.lengths)?;
            self.start = Some(range_start);
        }
        let start = (inputs.start - range_start) as usize;
        let count = (inputs.end - inputs.start) as usize;
        Ok(Row {
            range: RangeKey { tape: 0, start: range_start },
            ids: &self.ids,
            start,
            count,
            bytes: self.has_lengths.then(|| sum(&self.lengths[start + 1..=start + count])),
        })
    }
}

fn sum(lengths: &[u16]) -> u64 {
    lengths.iter().map(|&length| u64::from(length)).sum()
}
