//! Runs of a validation tape, and the batches cut from them.

use std::ops::Range;

use model::IGNORED;
use tape::reader::Tape;

use crate::error::Error;

/// Inputs, each with the token after it as its target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Inputs, and one token more.
    run: Vec<u32>,
}

impl Tokens {
    /// Reads the inputs at `range` of `tape`, and the target of the last one, in place of what is there.
    ///
    /// # Errors
    ///
    /// A tape that cannot be read, or that has changed.
    ///
    /// # Panics
    ///
    /// When the range has no target for its last input.
    pub fn read(&mut self, tape: &Tape, range: Range<u64>) -> Result<(), Error> {
        Ok(tape.read(range.start..range.end + 1, &mut self.run)?)
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

    /// Fills the batch with `tokens`. Where there are fewer, the rest has no targets.
    ///
    /// # Panics
    ///
    /// When there are none, or more than the batch has.
    pub fn fill(&mut self, tokens: &Tokens) {
        let (targets, inputs) = (&tokens.run[1..], &tokens.run[..tokens.run.len() - 1]);
        let valid = inputs.len();
        assert!(valid <= self.tokens.len(), "{valid} tokens in a batch of {}", self.tokens.len());
        self.tokens[..valid].copy_from_slice(inputs);
        self.targets[..valid].copy_from_slice(targets);
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
    fn a_short_run_leaves_targets_out() {
        let mut batch = Batch::new(model::Batch { rows: 2, time: 2 });
        batch.fill(&Tokens { run: vec![6, 7, 8, 9] });
        assert_eq!(batch.tokens, [6, 7, 8, 0]);
        assert_eq!(batch.targets, [7, 8, 9, IGNORED]);
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let cut: Vec<Range<u64>> = pieces(3..10, 3).collect();
        assert_eq!(cut, [3..6, 6..9, 9..10]);
    }
}
