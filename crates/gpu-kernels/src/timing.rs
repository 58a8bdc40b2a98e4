//! How long queued work takes, measured before a run to choose among ways that compute the same.

use std::time::{Duration, Instant};

use crate::graph::Graph;
use crate::{Buffer, Error, Gpu};

/// Calls of one recording, and how long it should at least take.
const REPEATS_MAX: usize = 20;
const RECORDING_MS: f64 = 0.2;
/// Random bytes that scratch memory repeats.
const PATTERN_BYTES: usize = 1 << 20;

/// How long two ways are compared. A device that was idle needs some of that to get fast.
const COMPARED_FOR: Duration = Duration::from_millis(20);

/// Milliseconds of the work that one call queues: of a few calls in a recording, so that launches do
/// not count.
///
/// # Errors
///
/// What `queue` and the driver refuse.
pub(crate) fn ms(gpu: &Gpu, queue: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let recorded = Recorded::new(gpu, queue, None)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(recorded.ms(gpu)?);
    }
    gpu.synchronize()?;
    Ok(best)
}

/// Whether one way takes less time than another. They are timed in turn, equally many calls at once: a device that was idle
/// gets faster for a while, so that the first of two would seem the slower one, and fewer calls have more of a launch each.
///
/// # Errors
///
/// What either and the driver refuse.
pub(crate) fn is_faster(
    gpu: &Gpu,
    one: impl FnMut() -> Result<(), Error>,
    other: impl FnMut() -> Result<(), Error>,
) -> Result<bool, Error> {
    let first = Recorded::new(gpu, one, Some(REPEATS_MAX))?;
    let ways = [first, Recorded::new(gpu, other, Some(REPEATS_MAX))?];
    let mut best = [f64::INFINITY; 2];
    let begun = Instant::now();
    while begun.elapsed() < COMPARED_FOR {
        for (best, way) in best.iter_mut().zip(&ways) {
            *best = best.min(way.ms(gpu)?);
        }
    }
    gpu.synchronize()?;
    Ok(best[0] < best[1])
}

/// A few calls in a recording.
struct Recorded {
    graph: Graph,
    calls: usize,
}

impl Recorded {
    /// Of so many calls, or as many as take long enough.
    fn new(
        gpu: &Gpu,
        mut queue: impl FnMut() -> Result<(), Error>,
        calls: Option<usize>,
    ) -> Result<Recorded, Error> {
        queue()?;
        let once = gpu.elapsed_ms(&mut queue)?;
        let enough = (RECORDING_MS / once) as usize;
        let calls = calls.unwrap_or(enough.clamp(2, REPEATS_MAX));
        let graph = gpu.record(|| (0..calls).try_for_each(|_| queue()))?;
        graph.replay()?;
        Ok(Recorded { graph, calls })
    }

    /// Milliseconds of a call.
    fn ms(&self, gpu: &Gpu) -> Result<f64, Error> {
        Ok(gpu.elapsed_ms(|| self.graph.replay())? / self.calls as f64)
    }
}

/// Memory full of numbers that look random, as f32 and as bf16: of magnitudes around 1, since zeros
/// would be multiplied faster than data.
///
/// # Errors
///
/// [`Error::OutOfMemory`], and what the driver refuses.
pub(crate) fn scratch(gpu: &Gpu, bytes: usize) -> Result<Buffer<u8>, Error> {
    let mut buffer = gpu.zeros::<u8>(bytes.next_multiple_of(4).max(4))?;
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = (state >> 32) as u32;
        // Both halves are bf16 between 0.5 and 2, of either sign.
        word & 0x80FF_80FF | 0x3F00_3F00
    };
    let length = buffer.len();
    let pattern: Vec<u8> =
        (0..PATTERN_BYTES.min(length) / 4).flat_map(|_| number().to_le_bytes()).collect();
    for start in (0..length).step_by(PATTERN_BYTES) {
        let count = pattern.len().min(length - start);
        buffer.view_mut().part(start..start + count).upload(&pattern[..count])?;
    }
    Ok(buffer)
}
