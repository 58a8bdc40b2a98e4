//! Signs of life: how a rank shows the others, between operations, that it gets somewhere.
//!
//! A thread sends each other rank a pulse now and then, with a count that grows as work is done. A process that was
//! stopped sends none; one that is caught in a loop sends pulses whose count stands still. Work that takes long and
//! cannot count, such as writing a checkpoint, is announced, and then being alive is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What a rank shows of itself; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps of work done.
    steps: AtomicU64,
    /// Pieces of long work under way.
    busy: AtomicUsize,
    /// Whether an operation waits for other ranks.
    waits: AtomicBool,
}

/// Long work under way; ends when dropped.
#[derive(Debug)]
pub struct Busy {
    pulse: Pulse,
}

/// A wait for others under way; ends when dropped.
#[derive(Debug)]
pub struct Waiting {
    pulse: Pulse,
}

impl Pulse {
    /// Counts a step of work.
    pub fn beat(&self) {
        self.state.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Announces work that cannot count its steps.
    #[must_use]
    pub fn busy(&self) -> Busy {
        self.state.busy.fetch_add(1, Ordering::Relaxed);
        Busy { pulse: self.clone() }
    }

    /// Tells, until it is dropped, that this rank waits for others, or for a device that does.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.set_waits(true);
        Waiting { pulse: self.clone() }
    }

    pub(crate) fn set_waits(&self, waits: bool) {
        self.state.waits.store(waits, Ordering::Relaxed);
    }

    /// The count to send, and whether this rank waits for others.
    pub(crate) fn show(&self) -> (u64, bool) {
        if self.state.busy.load(Ordering::Relaxed) > 0 {
            self.beat();
        }
        (self.state.steps.load(Ordering::Relaxed), self.state.waits.load(Ordering::Relaxed))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.pulse.state.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pulse.beat();
        self.pulse.set_waits(false);
    }
}
