//! Watching over ranks while a device waits for them.
//!
//! A process whose device waits for another rank cannot look after that rank itself. A thread does: it looks several
//! times a second, and when a rank is gone it breaks the work of the device off, so that the process goes on, to end with
//! the reason. Should it be stuck nevertheless, somebody else ends it after a few seconds.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// Time between looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long a process may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(6);

/// A watch; clones are one. Without [`Guard::start`] there is nothing to break off.
#[derive(Clone, Default)]
pub struct Guard {
    state: Arc<Mutex<State>>,
    is_cut: Arc<AtomicBool>,
}

type Cut = Arc<dyn Fn() + Send + Sync>;
type LastResort = Arc<dyn Fn(&ranks::Error) + Send + Sync>;

#[derive(Default)]
struct State {
    fault: Option<ranks::Error>,
    cut: Option<Cut>,
    last_resort: Option<LastResort>,
    /// The watching thread ends when this does.
    watching: Option<Sender<()>>,
}

impl Guard {
    /// Who ends the process when nothing else helps.
    pub fn set_last_resort(&self, end: impl Fn(&ranks::Error) + Send + Sync + 'static) {
        self.lock().last_resort = Some(Arc::new(end));
    }

    /// Begins to watch: `look` says what is wrong, or that there is nothing left to watch.
    ///
    /// # Errors
    ///
    /// A thread that cannot be started.
    pub fn start(
        &self,
        look: impl Fn() -> Option<Result<(), ranks::Error>> + Send + 'static,
        cut: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let (watching, ended) = channel();
        {
            let mut state = self.lock();
            state.cut = Some(Arc::new(cut));
            state.watching = Some(watching);
        }
        let guard = Self { state: Arc::clone(&self.state), is_cut: Arc::clone(&self.is_cut) };
        // A thread that holds the state would keep itself alive.
        let (state, is_cut) = (Arc::downgrade(&guard.state), Arc::clone(&guard.is_cut));
        drop(guard);
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
                match look() {
                    Some(Ok(())) => {}
                    Some(Err(fault)) => {
                        let Some(state) = state.upgrade() else { return };
                        let guard = Self { state, is_cut };
                        return guard.found(fault);
                    }
                    None => return,
                }
            }
        };
        let started = thread::Builder::new().name("watch".into()).spawn(watch);
        started
            .map(drop)
            .map_err(|source| Error::Ranks(ranks::Error::Io { action: "start a thread", source }))
    }

    /// Ends the watch: from here on nothing of the ranks matters.
    pub fn stop(&self) {
        let mut state = self.lock();
        (state.cut, state.watching) = (None, None);
    }

    /// What was found; told once.
    #[must_use]
    pub fn fault(&self) -> Option<ranks::Error> {
        self.lock().fault.take()
    }

    /// Whether the work of devices was broken off.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Breaks it off.
    pub fn cut(&self) {
        let cut = self.lock().cut.clone();
        if let Some(cut) = cut
            && !self.is_cut.swap(true, Ordering::SeqCst)
        {
            cut();
        }
    }

    fn found(&self, fault: ranks::Error) {
        let words = fault.to_string();
        self.lock().fault = Some(fault);
        self.cut();
        thread::sleep(PATIENCE);
        let (last_resort, fault) = {
            let mut state = self.lock();
            (state.last_resort.clone(), state.fault.take())
        };
        // The process may be about to end, with the fault in its hands.
        let fault = fault.unwrap_or(ranks::Error::Device { rank: 0, message: words });
        if let Some(end) = last_resort {
            end(&fault);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({})", if self.is_cut() { "cut" } else { "watching" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_fault_breaks_the_work_off_and_is_told_once() {
        let (guard, cuts) = (Guard::default(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&cuts);
        let look = || Some(Err(ranks::Error::Ended { rank: 3, operation: "a test".into() }));
        let cut = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        guard.start(look, cut).unwrap();
        let begun = Instant::now();
        while !guard.is_cut() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(guard.fault().unwrap().to_string(), "rank 3 ended during a test");
        assert!(guard.fault().is_none());
        guard.cut();
        assert_eq!(cuts.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn nothing_is_broken_off_without_a_watch() {
        let guard = Guard::default();
        guard.cut();
        assert!(!guard.is_cut());
    }
}
