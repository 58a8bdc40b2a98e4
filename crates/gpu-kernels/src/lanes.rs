//! Two streams for one sequence of operations: the main one, and one for work that the operations
//! after it do not need, such as gradients of parameters beside the gradients that go on.
//!
//! Work aside is the less urgent of the two, and begins after all main work before it. What it touches is remembered with an event, and
//! main work that overwrites or reads any of that waits for it first. So the two can overtake each
//! other only where the result is the same.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Event, Gpu, Lane, Products};

/// The two streams, and what is under way on the second.
pub struct Lanes {
    main: Lane,
    side: Lane,
    state: Mutex<State>,
}

/// What is under way.
struct State {
    /// Work aside, in order.
    pending: Vec<Pending>,
    /// Whether there may be main work that work aside does not follow yet.
    is_behind: bool,
}

/// Work aside.
struct Pending {
    touched: Vec<Range<u64>>,
    done: Event,
}

impl Lanes {
    /// The stream of `gpu`, and a less urgent one.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn new(gpu: &Gpu, products: &Products) -> Result<Lanes, Error> {
        let (main, side) = (Lane::new(gpu, products)?, Lane::new(&gpu.fork_behind()?, products)?);
        Ok(Lanes { main, side, state: Mutex::new(State { pending: Vec::new(), is_behind: true }) })
    }

    /// The main lane.
    #[must_use]
    pub fn main(&self) -> &Lane {
        &self.main
    }

    /// Both lanes, for an operation that puts a part of itself aside; [`Lanes::note`] follows.
    #[must_use]
    pub fn both(&self) -> [&Lane; 2] {
        [&self.main, &self.side]
    }

    /// Queues work aside, after all main work so far. `touched` are the addresses that it reads and main
    /// work may overwrite, or that it writes.
    ///
    /// # Errors
    ///
    /// What `work` and the driver refuse.
    pub fn aside(
        &self,
        touched: &[Range<u64>],
        work: impl FnOnce(&Lane) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Each such point costs the main stream a little.
        if std::mem::take(&mut self.state().is_behind) {
            self.side.gpu().wait_for(self.main.gpu())?;
        }
        work(&self.side)?;
        self.note(touched)
    }

    /// Notes that the work aside so far touches these addresses.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn note(&self, touched: &[Range<u64>]) -> Result<(), Error> {
        let done = Event::new(self.side.gpu())?;
        done.record(self.side.gpu())?;
        self.state().pending.push(Pending { touched: touched.to_vec(), done });
        Ok(())
    }

    /// Makes later main work wait for the work aside that touches any of these addresses. Every
    /// operation of the main lane begins with it.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn settle(&self, addresses: &[u64]) -> Result<(), Error> {
        let state = &mut *self.state();
        let pending = &mut state.pending;
        state.is_behind = true;
        let touches = |pending: &Pending| {
            let mut ranges = pending.touched.iter();
            ranges.any(|range| addresses.iter().any(|address| range.contains(address)))
        };
        if let Some(last) = pending.iter().rposition(touches) {
            self.main.gpu().wait_for_event(&pending[last].done)?;
            // What came before it is done as well.
            pending.drain(..=last);
        }
        Ok(())
    }

    /// Makes later work of a third stream wait for all that both lanes have been given so far.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn hold(&self, third: &Gpu) -> Result<(), Error> {
        third.wait_for(self.main.gpu())?;
        // Without work aside the second stream may be no part of a recording.
        if self.state().pending.is_empty() { Ok(()) } else { third.wait_for(self.side.gpu()) }
    }

    /// Makes later main work wait for all work aside.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn join(&self) -> Result<(), Error> {
        let state = &mut *self.state();
        state.is_behind = true;
        if !state.pending.is_empty() {
            self.main.gpu().wait_for(self.side.gpu())?;
            state.pending.clear();
        }
        Ok(())
    }

    /// Forgets what was under way when a recording failed.
    pub fn forget(&self) {
        *self.state() = State { pending: Vec::new(), is_behind: true };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
