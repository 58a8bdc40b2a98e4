//! Two streams for one sequence of operations: the main one, and one for work that the operations
//! after it do not need, such as gradients of parameters beside the gradients that go on. And a third for what follows a
//! part of both and need not wait for the rest.
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
    far: Gpu,
    state: Mutex<State>,
}

/// What is under way.
struct State {
    /// Work aside, in order.
    pending: Vec<Pending>,
    /// Whether there may be main work that work aside does not follow yet.
    is_behind: bool,
    /// Points that work on the third stream begins behind.
    side_mark: Option<Event>,
    main_mark: Option<Event>,
    /// Whether there is work on it.
    is_far: bool,
}

impl State {
    fn new() -> State {
        State {
            pending: Vec::new(),
            is_behind: true,
            side_mark: None,
            main_mark: None,
            is_far: false,
        }
    }
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
        Ok(Lanes { main, side, far: gpu.fork_behind()?, state: Mutex::new(State::new()) })
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

    /// Marks what work aside there is so far for [`Lanes::beyond`].
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn mark_side(&self) -> Result<(), Error> {
        let state = &mut *self.state();
        // Without work aside the second stream may be no part of a recording, and the main lane has waited for all of it.
        state.side_mark =
            if state.pending.is_empty() { None } else { Some(recorded(self.side.gpu())?) };
        Ok(())
    }

    /// Marks what main work there is so far likewise.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn mark_main(&self) -> Result<(), Error> {
        self.state().main_mark = Some(recorded(self.main.gpu())?);
        Ok(())
    }

    /// Queues work on the third stream, after what was marked last of both lanes; [`Lanes::join`] follows.
    ///
    /// # Errors
    ///
    /// What `work` and the driver refuse.
    ///
    /// # Panics
    ///
    /// If nothing of the main lane was marked.
    pub fn beyond(&self, work: impl FnOnce(&Gpu) -> Result<(), Error>) -> Result<(), Error> {
        {
            let state = &mut *self.state();
            self.far.wait_for_event(state.main_mark.as_ref().expect("a mark"))?;
            if let Some(mark) = &state.side_mark {
                self.far.wait_for_event(mark)?;
            }
            state.is_far = true;
        }
        work(&self.far)
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

    /// Makes later main work wait for all other work.
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
        if std::mem::take(&mut state.is_far) {
            self.main.gpu().wait_for(&self.far)?;
        }
        (state.side_mark, state.main_mark) = (None, None);
        Ok(())
    }

    /// Forgets what was under way when a recording failed.
    pub fn forget(&self) {
        *self.state() = State::new();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point behind all work of a stream so far.
fn recorded(gpu: &Gpu) -> Result<Event, Error> {
    let event = Event::new(gpu)?;
    event.record(gpu)?;
    Ok(event)
}
