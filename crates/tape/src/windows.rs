//! Sequential windows over a tape: read once, in order, never wrapped.
//!
//! With B rows of T tokens, the window at cursor c takes the B * T inputs `c .. c + B*T` and, one
//! token on, the B * T targets `c + 1 .. c + B*T + 1`; the next cursor is c + B * T. Rows lie one
//! after the other, row b at c + b * T, so a whole window is two slices of the tape and nothing is
//! copied. Every token but the first is a target exactly once.
//!
//! Training takes full windows only ([`Windows::count`]); validation takes them all, the last one
//! shorter ([`Windows::all`]). Shuffled or partial reading does not live here.

use crate::reader::{Tape, position};

/// The shape of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// B: rows.
    pub batch: usize,
    /// T: tokens in a row.
    pub context: usize,
}

/// The windows of one shape over one tape.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'t> {
    tape: &'t Tape,
    shape: WindowShape,
}

/// One micro-batch of a tape. The slices are equally long: at most B * T, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'t> {
    /// The position of the first input in the tape.
    pub cursor: u64,
    /// What the model reads.
    pub inputs: &'t [u32],
    /// What it should say: the token after each input. Their number is the number of valid
    /// targets; where it is below B * T, the caller masks the rest.
    pub targets: &'t [u32],
    /// How many bytes of text the targets stand for; `None` without byte lengths.
    pub source_bytes: Option<u64>,
    context: usize,
}

impl<'t> Window<'t> {
    /// Rows of T inputs and their targets; the last row of the last window may be shorter.
    pub fn rows(&self) -> impl Iterator<Item = (&'t [u32], &'t [u32])> + use<'t> {
        self.inputs.chunks(self.context).zip(self.targets.chunks(self.context))
    }

    /// The cursor of the next window: one past the last input.
    pub fn next_cursor(&self) -> u64 {
        self.cursor + self.inputs.len() as u64
    }
}

impl<'t> Windows<'t> {
    /// Windows of `shape` over `tape`.
    ///
    /// # Panics
    /// If B or T is 0, or B * T overflows: configurations are checked before.
    pub fn new(tape: &'t Tape, shape: WindowShape) -> Self {
        let tokens = shape.batch.checked_mul(shape.context);
        assert!(tokens.is_some_and(|tokens| tokens > 0), "{shape:?} holds no tokens, or too many");
        Self { tape, shape }
    }

    /// B * T: how far the cursor moves from window to window.
    pub fn tokens_per_window(&self) -> u64 {
        (self.shape.batch * self.shape.context) as u64
    }

    /// How many full windows the tape holds.
    pub fn count(&self) -> u64 {
        (self.tape.len() - 1) / self.tokens_per_window()
    }

    /// How many updates of `windows_per_update` full windows the tape allows.
    ///
    /// # Panics
    /// If `windows_per_update` is 0.
    pub fn updates(&self, windows_per_update: u64) -> u64 {
        self.count() / windows_per_update
    }

    /// The window at `cursor`: full, or shorter where the tape ends, or `None` where not even one
    /// token with a successor is left.
    pub fn at(&self, cursor: u64) -> Option<Window<'t>> {
        let last = self.tape.len() - 1;
        if cursor >= last {
            return None;
        }
        let end = last.min(cursor.saturating_add(self.tokens_per_window()));
        let tokens = &self.tape.tokens()[position(cursor)..=position(end)];
        Some(Window {
            cursor,
            inputs: &tokens[..tokens.len() - 1],
            targets: &tokens[1..],
            source_bytes: self.tape.source_bytes_of(cursor + 1..end + 1),
            context: self.shape.context,
        })
    }

    /// All windows from the start of the tape to its end, the last one possibly shorter.
    pub fn all(&self) -> impl Iterator<Item = Window<'t>> + use<'t> {
        let windows = *self;
        std::iter::successors(windows.at(0), move |window| windows.at(window.next_cursor()))
    }
}
