//! The CPU: memory, the clock of its parts, and one file per operation under `cpu/`.
//!
//! Buffers are plain vectors and a view is a slice. The element type is `f32` for work and `f64`
//! for checking; the operations are the same text for both. Work is spread over rayon's current
//! pool; the bits do not depend on how many threads that has.

mod simd;

mod element;
mod lanes;

mod attention;
mod beside;
mod branch;
mod chain;
mod decode;
mod embedding;
mod exchange;
mod gelu;
mod layernorm;
mod linear;
mod loss;

mod ceiling;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use ceiling::product_ceiling_gflops;
pub use element::Element;

use crate::ops::{Device, GatherShape};
use crate::parts::{Part, PartTimes};
use crate::{Error, IGNORED};

/// The CPU with elements of type `T`.
///
/// It adds up the time spent in each kind of operation, at the price of two clock readings per
/// call; see [`Cpu::take_part_times`].
#[derive(Clone, Debug, Default)]
pub struct Cpu<T> {
    clock: Arc<Clock>,
    element: PhantomData<T>,
}

impl<T: Element> Cpu<T> {
    /// The CPU, with its clock at zero.
    pub fn new() -> Self {
        Self { clock: Arc::default(), element: PhantomData }
    }

    /// Time spent in each kind of operation since the last call, over all models on this device.
    pub fn take_part_times(&self) -> PartTimes {
        let take = |part: Part| {
            Duration::from_nanos(self.clock.nanoseconds[part as usize].swap(0, Ordering::Relaxed))
        };
        PartTimes {
            embedding: take(Part::Embedding),
            layernorm: take(Part::LayerNorm),
            linear: take(Part::Linear),
            attention: take(Part::Attention),
            gelu: take(Part::Gelu),
            loss: take(Part::Loss),
        }
    }

    /// Runs an operation and adds its time to that of its part.
    fn timed(&self, part: Part, operation: impl FnOnce()) -> Result<(), Error> {
        let start = Instant::now();
        operation();
        let elapsed = start.elapsed().as_nanos() as u64;
        self.clock.nanoseconds[part as usize].fetch_add(elapsed, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Clock {
    nanoseconds: [AtomicU64; Part::COUNT],
}

impl<T: Element> Device for Cpu<T> {
    type Floats = Vec<T>;
    type View<'a> = &'a [T];
    type ViewMut<'a> = &'a mut [T];
    type Activations = Vec<T>;
    type Tokens = Vec<u32>;
    type Copy = ();
    type Recording = ();

    fn float_bytes(&self) -> usize {
        size_of::<T>()
    }

    fn activation_bytes(&self) -> usize {
        size_of::<T>()
    }

    fn floats(&self, length: usize) -> Result<Vec<T>, Error> {
        filled(T::ZERO, length)
    }

    fn activations(&self, length: usize) -> Result<Vec<T>, Error> {
        filled(T::ZERO, length)
    }

    fn tokens(&self, length: usize) -> Result<Vec<u32>, Error> {
        filled(0, length)
    }

    fn length(&self, floats: &Vec<T>) -> usize {
        floats.len()
    }

    fn upload(&self, to: &mut Vec<T>, from: &[f32]) -> Result<(), Error> {
        check_room(to.len(), from.len())?;
        for (to, &from) in to.iter_mut().zip(from) {
            *to = T::from_f64(f64::from(from));
        }
        Ok(())
    }

    fn upload_tokens(&self, to: &mut Vec<u32>, start: usize, from: &[u32]) -> Result<(), Error> {
        check_room(to.len().saturating_sub(start), from.len())?;
        to[start..start + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn gather(
        &self,
        [tokens, targets]: [&mut Vec<u32>; 2],
        ids: &Vec<u32>,
        schedule: &mut Vec<u32>,
        shape: GatherShape,
    ) -> Result<(), Error> {
        let GatherShape { rows, time, first_row, update_rows, advances } = shape;
        check_room(tokens.len().min(targets.len()), rows * time)?;
        check_room(schedule.len(), 1 + 2 * update_rows)?;
        let first_entry = 1 + 2 * (schedule[0] as usize * update_rows + first_row);
        let batch = tokens.chunks_exact_mut(time).zip(targets.chunks_exact_mut(time));
        for (row, (tokens, targets)) in batch.take(rows).enumerate() {
            let entry = schedule.get(first_entry + 2 * row..first_entry + 2 * row + 2);
            let (start, count) = entry.map_or((0, 0), |e| (e[0] as usize, e[1] as usize));
            let there = count.min(time).min(ids.len().saturating_sub(start + 1));
            tokens[..there].copy_from_slice(&ids[start..start + there]);
            tokens[there..].fill(0);
            targets[..there].copy_from_slice(&ids[start + 1..start + 1 + there]);
            targets[there..].fill(IGNORED);
        }
        schedule[0] += u32::from(advances);
        Ok(())
    }

    fn download(&self, from: &Vec<T>, to: &mut [f32]) -> Result<(), Error> {
        check_room(from.len(), to.len())?;
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.to_f64() as f32;
        }
        Ok(())
    }

    fn parameter_copy(&self, _: &Vec<T>) -> Option<()> {
        None
    }

    fn view<'a>(&'a self, floats: &'a Vec<T>, range: Range<usize>) -> &'a [T] {
        &floats[range]
    }

    fn view_mut<'a>(&self, floats: &'a mut Vec<T>, range: Range<usize>) -> &'a mut [T] {
        &mut floats[range]
    }

    fn two_views_mut<'a>(
        &self,
        floats: &'a mut Vec<T>,
        [first, second]: [Range<usize>; 2],
    ) -> [&'a mut [T]; 2] {
        let (front, back) = floats.split_at_mut(second.start);
        [&mut front[first], &mut back[..second.len()]]
    }

    /// Calls the closure every time, on a thread of rayon's current pool, so that the operations in
    /// it need not each cross from a thread outside.
    fn record<F, E>(&self, (): &mut (), step: F) -> Result<(), E>
    where
        F: FnOnce() -> Result<(), E> + Send,
        E: From<Error> + Send,
    {
        rayon::scope(|_| step())
    }

    fn launches(&self, (): &()) -> u64 {
        0
    }
}

fn filled<E: Clone>(value: E, length: usize) -> Result<Vec<E>, Error> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).map_err(|_| Error::OutOfMemory {
        bytes: (length as u64).saturating_mul(size_of::<E>() as u64),
    })?;
    buffer.resize(length, value);
    Ok(buffer)
}

fn check_room(room: usize, needed: usize) -> Result<(), Error> {
    if needed <= room {
        Ok(())
    } else {
        Err(Error::Length { what: "a copy between host and device", expected: needed, found: room })
    }
}
