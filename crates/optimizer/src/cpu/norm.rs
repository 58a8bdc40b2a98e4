//! The global gradient norm by its pinned sum tree.
//!
//! Squares and sums are f64, and a square of an f32 is exact there. A chunk is
//! 16,384 elements of one tensor, the last one shorter. In it, element `i` belongs
//! to lane `i mod 1024`; each lane adds its squares in ascending order, then lanes
//! fold by halves: 512, 256, ..., 1. The chunk sums of all tensors, in order, go into
//! such lanes once more. Elements that are not finite count as zero.
//!
//! The lanes are many so that a GPU block has one for each thread and a CPU has
//! enough independent sums for any vector width.

use super::kernel::Counts;
use super::tiles::{Numbers, TILE};
use crate::simd::{Kernel, Vectors};

/// Elements of a chunk: the grain of the sum tree and of parallel work.
pub(crate) const CHUNK_ELEMENTS: usize = 16_384;
/// Lanes of a chunk.
const LANES: usize = 1_024;

/// The sums of one chunk, lane by lane; no register of them crosses a line of memory.
#[repr(align(64))]
pub(crate) struct SquareLanes([f64; LANES]);

/// The sum of the squares of one chunk, and what in it is not finite.
pub(crate) struct Look<'a> {
    /// At most [`CHUNK_ELEMENTS`] elements.
    pub(crate) gradients: &'a [f32],
}

impl SquareLanes {
    pub(crate) const ZERO: SquareLanes = SquareLanes([0.0; LANES]);

    /// Adds the squares of elements of the chunk, the first of which is element
    /// `start`. They must not reach over a multiple of the number of lanes.
    #[inline(always)]
    pub(crate) fn add(&mut self, start: usize, gradients: &[f32]) {
        let first = start % LANES;
        for (lane, &g) in self.0[first..first + gradients.len()].iter_mut().zip(gradients) {
            let g = if g.is_finite() { f64::from(g) } else { 0.0 };
            *lane += g * g;
        }
    }

    /// The same of a whole tile whose elements are finite.
    #[inline(always)]
    pub(crate) fn add_finite<V: Vectors>(&mut self, start: usize, gradients: &Numbers) {
        let (tiles, _) = self.0.as_chunks_mut::<TILE>();
        let lanes = tiles[start / TILE % (LANES / TILE)].as_chunks_mut::<16>().0;
        for (lanes, run) in lanes.iter_mut().zip(gradients.as_chunks::<16>().0) {
            V::add_squares(run, lanes);
        }
    }

    /// The sum over the lanes.
    #[inline(always)]
    pub(crate) fn fold(mut self) -> f64 {
        let mut rest = &mut self.0[..];
        while rest.len() > 1 {
            let (low, high) = rest.split_at_mut(rest.len() / 2);
            for (low, high) in low.iter_mut().zip(high) {
                *low += *high;
            }
            rest = low;
        }
        rest[0]
    }
}

impl Kernel for Look<'_> {
    type Output = (f64, Counts);

    #[inline(always)]
    fn run<V: Vectors>(self) -> (f64, Counts) {
        let mut lanes = SquareLanes::ZERO;
        let mut counts = Counts::NONE;
        for row in self.gradients.chunks(LANES) {
            lanes.add(0, row);
            counts.nonfinite += row.iter().map(|g| u32::from(!g.is_finite())).sum::<u32>();
        }
        if counts.nonfinite > 0 {
            counts.first_nonfinite = self.gradients.iter().position(|g| !g.is_finite());
        }
        (lanes.fold(), counts)
    }
}

/// `min(1, clip_norm / norm)`, rounded once to f32.
pub(crate) fn clip_scale(clip_norm: f64, norm: f64) -> f32 {
    (clip_norm / norm).min(1.0) as f32
}

/// The sum over chunks, which come in order.
pub(crate) fn square_sum(chunk_sums: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = SquareLanes::ZERO;
    for (chunk, sum) in chunk_sums.enumerate() {
        lanes.0[chunk % LANES] += sum;
    }
    lanes.fold()
}
