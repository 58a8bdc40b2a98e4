//! The tokens of one micro-batch, cut from a tape.

use std::ops::Range;

use model::IGNORED;

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

    /// Fills the batch with the inputs at `range` of `tape`, row after row, each with the token after it as
    /// its target. Where the range ends early, the rest has no targets.
    ///
    /// # Panics
    ///
    /// When the range is longer than the batch or has no target for its last input.
    pub fn fill(&mut self, tape: &[u32], range: Range<u64>) {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(end - start <= self.tokens.len(), "the range is longer than the batch");
        let valid = end - start;
        self.tokens[..valid].copy_from_slice(&tape[start..end]);
        self.targets[..valid].copy_from_slice(&tape[start + 1..=end]);
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
        let tape = [5, 6, 7, 8, 9, 10];
        let mut batch = Batch::new(model::Batch { rows: 2, time: 2 });
        batch.fill(&tape, 1..4);
        assert_eq!(batch.tokens, [6, 7, 8, 0]);
        assert_eq!(batch.targets, [7, 8, 9, IGNORED]);
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let cut: Vec<Range<u64>> = pieces(3..10, 3).collect();
        assert_eq!(cut, [3..6, 6..9, 9..10]);
    }
}
