//! The tokens of one update, and the micro-batches cut from them.

use std::ops::Range;

use model::IGNORED;
use tape::reader::Tape;

use crate::error::Error;

/// Inputs and targets, row after row, of any number of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    inputs: Vec<u32>,
    /// [`IGNORED`] where there is none.
    targets: Vec<u32>,
    /// Targets that are not ignored.
    valid: u64,
    /// What was read from a tape.
    run: Vec<u32>,
}

impl Tokens {
    /// The inputs `run[..n - 1]` with the token after each as its target.
    ///
    /// # Panics
    ///
    /// When the run is empty.
    #[must_use]
    pub fn of_run(run: Vec<u32>) -> Self {
        let mut tokens = Self { run, ..Self::default() };
        tokens.take_run();
        tokens
    }

    /// Reads the inputs at `range` of `tape`, each with the token after it as its target, in place of what
    /// is there.
    ///
    /// # Errors
    ///
    /// A tape that cannot be read, or that has changed.
    ///
    /// # Panics
    ///
    /// When the range has no target for its last input.
    pub fn read(&mut self, tape: &Tape, range: Range<u64>) -> Result<(), Error> {
        tape.read(range.start..range.end + 1, &mut self.run)?;
        self.take_run();
        Ok(())
    }

    fn take_run(&mut self) {
        let count = self.run.len() - 1;
        self.clear();
        self.inputs.extend_from_slice(&self.run[..count]);
        self.targets.extend_from_slice(&self.run[1..]);
        self.valid = count as u64;
    }

    /// Leaves no rows.
    pub fn clear(&mut self) {
        self.inputs.clear();
        self.targets.clear();
        self.valid = 0;
    }

    /// Adds a row of `time` tokens of which the first ones are given; the rest has no targets.
    ///
    /// # Panics
    ///
    /// When there are more than `time`, or not one target an input.
    pub fn push_row(&mut self, time: usize, inputs: &[u32], targets: &[u32]) {
        assert!(inputs.len() == targets.len() && inputs.len() <= time, "a row has {time} tokens");
        let end = self.inputs.len() + time;
        self.inputs.extend_from_slice(inputs);
        self.inputs.resize(end, 0);
        self.targets.extend_from_slice(targets);
        self.targets.resize(end, IGNORED);
        self.valid += targets.len() as u64;
    }

    /// Inputs, those without a target included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inputs.len() as u64
    }

    /// Targets, those that are ignored left out.
    #[must_use]
    pub fn valid(&self) -> u64 {
        self.valid
    }
}

/// Inputs and targets of B sequences of T tokens.
#[derive(Debug)]
pub struct Batch {
    /// Inputs, B T.
    pub tokens: Vec<u32>,
    /// Targets, B T; [`IGNORED`] where there is none.
    pub targets: Vec<u32>,
}

impl Batch {
    /// An empty batch of the given shape.
    #[must_use]
    pub fn new(shape: model::Batch) -> Self {
        let size = shape.tokens();
        Self { tokens: vec![0; size], targets: vec![IGNORED; size] }
    }

    /// Tokens of a full batch.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Fills the batch with those of `tokens` at `range`. Where the range ends early, the rest has no targets.
    ///
    /// # Panics
    ///
    /// When the range is longer than the batch or reaches beyond the tokens.
    pub fn fill(&mut self, tokens: &Tokens, range: Range<u64>) {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(end - start <= self.tokens.len(), "the range is longer than the batch");
        let valid = end - start;
        self.tokens[..valid].copy_from_slice(&tokens.inputs[start..end]);
        self.targets[..valid].copy_from_slice(&tokens.targets[start..end]);
        self.tokens[valid..].fill(0);
        self.targets[valid..].fill(IGNORED);
    }
}

/// Cuts `range` into pieces of at most `size`.
pub fn pieces(range: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(size as usize).map(move |start| start..(start + size).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_range_leaves_targets_out() {
        let tokens = Tokens::of_run(vec![5, 6, 7, 8, 9, 10]);
        assert_eq!((tokens.len(), tokens.valid()), (5, 5));
        let mut batch = Batch::new(model::Batch { rows: 2, time: 2 });
        batch.fill(&tokens, 1..4);
        assert_eq!(batch.tokens, [6, 7, 8, 0]);
        assert_eq!(batch.targets, [7, 8, 9, IGNORED]);
    }

    #[test]
    fn a_short_row_leaves_targets_out() {
        let mut tokens = Tokens::default();
        tokens.push_row(3, &[1, 2], &[2, 3]);
        tokens.push_row(3, &[4, 5, 6], &[5, 6, 7]);
        assert_eq!((tokens.len(), tokens.valid()), (6, 5));
        let mut batch = Batch::new(model::Batch { rows: 2, time: 3 });
        batch.fill(&tokens, 0..6);
        assert_eq!(batch.tokens, [1, 2, 0, 4, 5, 6]);
        assert_eq!(batch.targets, [2, 3, IGNORED, 5, 6, 7]);
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let cut: Vec<Range<u64>> = pieces(3..10, 3).collect();
        assert_eq!(cut, [3..6, 6..9, 9..10]);
    }
}
