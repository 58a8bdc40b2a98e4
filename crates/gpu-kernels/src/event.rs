//! Points in a stream of work: to wait for, to ask about, and to measure between.

#![expect(unsafe_code, reason = "a call that the bindings have in no safe form")]

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::{self, CUevent_flags};

use crate::gpu::During;
use crate::{Error, Gpu};

/// Makes an event that is recorded with other work a part of it.
const RECORD_EXTERNAL: u32 = 1;

/// A point in a stream. Until it is recorded it counts as reached.
pub struct Event(CudaEvent);

impl Event {
    /// A point that is only waited for.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<Event, Error> {
        Event::with_flags(gpu, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// A point that time is measured from or to.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn timed(gpu: &Gpu) -> Result<Event, Error> {
        Event::with_flags(gpu, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(gpu: &Gpu, flags: CUevent_flags) -> Result<Event, Error> {
        let event = gpu.device.context.new_event(Some(flags));
        event.map(Event).during(|| "making an event".to_owned())
    }

    /// Puts it behind the work that the stream of `gpu` has been given so far.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn record(&self, gpu: &Gpu) -> Result<(), Error> {
        self.0.record(&gpu.stream).during(|| "recording an event".to_owned())
    }

    /// The same, also where work is being recorded: then every replay records the event anew.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn record_in_work(&self, gpu: &Gpu) -> Result<(), Error> {
        let operation = || "recording an event".to_owned();
        gpu.bind(operation)?;
        let flags = if gpu.is_recording()? { RECORD_EXTERNAL } else { 0 };
        // SAFETY: the event and the stream live and are of one context.
        unsafe {
            sys::cuEventRecordWithFlags(self.0.cu_event(), gpu.stream.cu_stream(), flags).result()
        }
        .during(operation)
    }

    /// Holds up later work of the stream of `gpu` until it is reached.
    pub(crate) fn hold(&self, gpu: &Gpu) -> Result<(), Error> {
        gpu.stream.wait(&self.0).during(|| "ordering two streams".to_owned())
    }

    /// Whether the work before it is done.
    ///
    /// # Errors
    ///
    /// What went wrong in that work.
    pub fn is_reached(&self) -> Result<bool, Error> {
        self.0.try_is_complete().during(|| "asking for an event".to_owned())
    }

    /// Waits until it is.
    ///
    /// # Errors
    ///
    /// What went wrong in that work.
    pub fn wait(&self) -> Result<(), Error> {
        self.0.synchronize().during(|| "waiting for an event".to_owned())
    }

    /// Milliseconds from this event to `end`, both timed, after waiting for them.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before them, and events that are not timed.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f64, Error> {
        let elapsed = self.0.elapsed_ms(&end.0).during(|| "measuring between events".to_owned());
        elapsed.map(f64::from)
    }
}
