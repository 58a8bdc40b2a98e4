//! Sequential windows over a tape: read once, in order, never wrapped.
//!
//! With B rows of T tokens, the window at cursor c takes the B * T inputs `c .. c + B*T` and, one
//! token on, the B * T targets `c + 1 .. c + B*T + 1`; the next cursor is c + B * T. Rows lie one
//! after the other, row b at c + b * T, so a whole window is one run of the tape. Every token but
//! the first is a target exactly once.
//!
//! Training takes full windows only ([`Windows::count`]); validation takes them all, the last one
//! shorter ([`Windows::all`]). Shuffled reading is the matter of [`loader`](crate::loader).

use crate::Error;
use crate::reader::Tape;

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

/// One micro-batch of a tape: at most B * T inputs, at least 1, and as many targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The position of the first input in the tape.
    pub cursor: u64,
    /// How many bytes of text the targets stand for; `None` without byte lengths.
    pub source_bytes: Option<u64>,
    context: usize,
    /// The inputs, and one token more: the last target.
    tokens: Vec<u32>,
}

impl Window {
    /// What the model reads.
    pub fn inputs(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - 1]
    }

    /// What it should say: the token after each input. Their number is the number of valid
    /// targets; where it is below B * T, the caller masks the rest.
    pub fn targets(&self) -> &[u32] {
        &self.tokens[1..]
    }

    /// Rows of T inputs and their targets; the last row of the last window may be shorter.
    pub fn rows(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        self.inputs().chunks(self.context).zip(self.targets().chunks(self.context))
    }

    /// The cursor of the next window: one past the last input.
    pub fn next_cursor(&self) -> u64 {
        self.cursor + self.inputs().len() as u64
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
    /// token with a successor is left. Nothing before the cursor is read.
    ///
    /// # Errors
    /// As for [`Tape::read`].
    pub fn at(&self, cursor: u64) -> Result<Option<Window>, Error> {
        let last = self.tape.len() - 1;
        if cursor >= last {
            return Ok(None);
        }
        let end = last.min(cursor.saturating_add(self.tokens_per_window()));
        let mut tokens = Vec::new();
        self.tape.read(cursor..end + 1, &mut tokens)?;
        let source_bytes = self.tape.source_bytes_of(cursor + 1..end + 1)?;
        Ok(Some(Window { cursor, source_bytes, context: self.shape.context, tokens }))
    }

    /// All windows from the start of the tape to its end, the last one possibly shorter; after an
    /// error there are no more.
    pub fn all(&self) -> impl Iterator<Item = Result<Window, Error>> + use<'t> {
        let windows = *self;
        let mut cursor = Some(0);
        std::iter::from_fn(move || {
            let window = windows.at(cursor.take()?).transpose()?;
            cursor = window.as_ref().ok().map(Window::next_cursor);
            Some(window)
        })
    }
}
