//! Recorded work: queued once, replayed by one call as often as wanted.
//!
//! A replay works on the same device memory as the recording, and reads there what changes from
//! one replay to the next. Whoever records keeps that memory for the last replay: after it is freed,
//! a replay writes into memory of others on the device, or loses the device. It never touches host
//! memory, since copies from and to it are refused in a recording.

#![expect(unsafe_code, reason = "a recording may move between threads")]

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::gpu::During;
use crate::{Error, Gpu};

/// Recorded work of one stream.
pub struct Graph(CudaGraph);

// SAFETY: the handles are names for the driver, which may be used from any thread of the context, by
// one at a time: replaying takes place on the stream alone, and `Graph` is not `Sync`.
unsafe impl Send for Graph {}

impl Gpu {
    /// Records the work that `work` queues on this stream, without doing it. What waits for the
    /// device, or allocates, is refused meanwhile.
    ///
    /// Other threads may do what they like meanwhile, on streams of their own, but wait for the whole
    /// device.
    ///
    /// # Errors
    ///
    /// What `work` or the driver refuses, and [`Error::EmptyRecording`].
    pub fn record<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        alone(|| self.record_now(work))
    }

    fn record_now<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).during(|| "beginning a recording".to_owned())?;
        let outcome = work();
        // Ended also after a failure, so that the stream works again.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let ended = self.stream.end_capture(flags);
        outcome?;
        match ended.during(|| "ending a recording".to_owned())? {
            Some(graph) => Ok(Graph(graph)),
            None => Err(Error::EmptyRecording.into()),
        }
    }
}

/// Does work while no other thread records, plans products, or closes a library.
///
/// A recording survives whatever other threads do on other streams: allocating and freeing, loading
/// modules, launching, replaying. It does not survive a wait for the whole device, which would have to wait
/// for the recording too: the driver breaks the recording off, or crashes. Closing cuBLASLt is such a wait.
/// Planning is alone so that timings do not disturb each other.
pub(crate) fn alone<R>(work: impl FnOnce() -> R) -> R {
    static LOCK: Mutex<()> = Mutex::new(());
    thread_local! {
        static IS_HELD: Cell<bool> = const { Cell::new(false) };
    }
    /// Lets go also when the work panics.
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            IS_HELD.set(false);
        }
    }
    if IS_HELD.get() {
        return work();
    }
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    IS_HELD.set(true);
    let _held = Held;
    work()
}

impl Graph {
    /// Queues the recorded work, on the stream that it was recorded from.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn replay(&self) -> Result<(), Error> {
        self.0.launch().during(|| "replaying a recording".to_owned())
    }

    /// How many operations a replay launches.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let mut count = 0;
        // SAFETY: the graph lives; without room for nodes the driver only counts them.
        let counted = unsafe {
            sys::cuGraphGetNodes(self.0.cu_graph(), std::ptr::null_mut(), &raw mut count).result()
        };
        counted.map_or(0, |()| count as u64)
    }
}
