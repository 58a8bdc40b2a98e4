//! Points in time between the parts of a pass, when they are asked for. They are recorded with the
//! operations around them, so that they tell of every replay.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpu_kernels::{Event, Gpu};

use crate::Error;
use crate::parts::{Part, PartTimes};

/// The points since timing began; none while it is off.
#[derive(Default)]
pub(super) struct Timing(Mutex<Option<Vec<Span>>>);

struct Span {
    part: Part,
    start: Event,
    end: Event,
}

impl Timing {
    /// Begins anew, or ends.
    pub(super) fn set(&self, is_timed: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = is_timed.then(Vec::new);
    }

    /// Queues an operation, with a point before and behind it if they are asked for.
    pub(super) fn around(
        &self,
        gpu: &Gpu,
        part: Part,
        operation: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(spans) = spans.as_mut() else { return operation() };
        let (start, end) = (Event::timed(gpu)?, Event::timed(gpu)?);
        start.record_in_work(gpu)?;
        operation()?;
        end.record_in_work(gpu)?;
        spans.push(Span { part, start, end });
        Ok(())
    }

    /// The time of each part when it last ran, after waiting for it.
    pub(super) fn times(&self) -> Result<PartTimes, gpu_kernels::Error> {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = PartTimes::default();
        for Span { part, start, end } in spans.iter().flatten() {
            let ms = start.elapsed_ms(end)?;
            *times.of(*part) += Duration::from_secs_f64(ms / 1e3);
        }
        Ok(times)
    }
}
