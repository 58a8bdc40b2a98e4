//! A pass over all chunks of all tensors, in parallel, without allocation.
//!
//! A [`Span`] is a run of tensors with everything that belongs to them. It splits
//! in two, tensors first, then the chunks of the last tensor, and the halves go to
//! the current thread pool. Which thread runs a chunk changes nothing: chunks are
//! fixed by the lengths of the tensors, and each has its own place for results.

use formats::Bias;

use super::arrays::{Arrays, ArraysMut};
use super::kernel::Counts;
use super::norm::CHUNK_ELEMENTS;
use super::slices::{Gradients, Parameters};
use super::ustate1q::Spread;

/// The state of one tensor on the CPU.
#[derive(Clone, Debug)]
pub(crate) struct TensorState {
    pub(crate) arrays: Arrays,
    /// `None` until it is chosen from a gradient.
    pub(crate) bias: Option<Bias>,
    pub(crate) length: usize,
}

/// What the passes of a step found in one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkResult {
    pub(crate) square_sum: f64,
    pub(crate) gradient_max: f32,
    pub(crate) counts: Counts,
    pub(crate) spread: Spread,
}

/// A run of tensors, with their results chunk by chunk.
pub(crate) struct Span<'a, 'b> {
    /// The position of the first of them among all.
    pub(crate) first_tensor: usize,
    pub(crate) tensors: &'a mut [TensorState],
    pub(crate) parameters: Parameters<'a, 'b>,
    pub(crate) gradients: Gradients<'a>,
    pub(crate) results: &'a mut [ChunkResult],
}

/// A run of chunks of one tensor; in a pass, one chunk.
pub(crate) struct Chunk<'a> {
    pub(crate) tensor: usize,
    /// The position of its first element in the tensor.
    pub(crate) start: usize,
    pub(crate) bias: Option<Bias>,
    pub(crate) arrays: ArraysMut<'a>,
    pub(crate) parameters: &'a mut [f32],
    pub(crate) gradients: &'a [f32],
    results: &'a mut [ChunkResult],
}

impl TensorState {
    pub(crate) fn chunk_count(&self) -> usize {
        self.length.div_ceil(CHUNK_ELEMENTS)
    }
}

impl ChunkResult {
    pub(crate) const NONE: ChunkResult = ChunkResult {
        square_sum: 0.0,
        gradient_max: 0.0,
        counts: Counts::NONE,
        spread: Spread::NONE,
    };
}

impl Span<'_, '_> {
    /// Calls `work` once for every chunk, from any thread of the current pool.
    pub(crate) fn for_each_chunk(self, work: &(impl Fn(Chunk<'_>) + Sync)) {
        let Span { first_tensor, tensors, parameters, gradients, results } = self;
        match tensors {
            [] => {}
            [tensor] => {
                let chunk = Chunk {
                    tensor: first_tensor,
                    start: 0,
                    bias: tensor.bias,
                    arrays: tensor.arrays.view_mut(),
                    parameters: parameters.only(),
                    gradients: gradients.only(),
                    results,
                };
                chunk.for_each(work);
            }
            _ => {
                let half = tensors.len() / 2;
                let (left, right) = tensors.split_at_mut(half);
                let elements = left.iter().map(|tensor| tensor.length).sum();
                let chunks = left.iter().map(TensorState::chunk_count).sum();
                let (left_parameters, right_parameters) = parameters.split_at(half, elements);
                let (left_gradients, right_gradients) = gradients.split_at(half, elements);
                let (left_results, right_results) = results.split_at_mut(chunks);
                let left = Span {
                    first_tensor,
                    tensors: left,
                    parameters: left_parameters,
                    gradients: left_gradients,
                    results: left_results,
                };
                let right = Span {
                    first_tensor: first_tensor + half,
                    tensors: right,
                    parameters: right_parameters,
                    gradients: right_gradients,
                    results: right_results,
                };
                rayon::join(|| left.for_each_chunk(work), || right.for_each_chunk(work));
            }
        }
    }
}

impl Chunk<'_> {
    /// Where the results of this chunk belong.
    pub(crate) fn result(&mut self) -> &mut ChunkResult {
        &mut self.results[0]
    }

    fn for_each(self, work: &(impl Fn(Chunk<'_>) + Sync)) {
        match self.results.len() {
            0 => {}
            1 => work(self),
            chunks => {
                let half = chunks / 2;
                let elements = half * CHUNK_ELEMENTS;
                let Chunk { tensor, start, bias, arrays, parameters, gradients, results } = self;
                let (left_arrays, right_arrays) = arrays.split_at(elements);
                // Parameters may be absent.
                let (left_parameters, right_parameters) =
                    parameters.split_at_mut(elements.min(parameters.len()));
                let (left_gradients, right_gradients) = gradients.split_at(elements);
                let (left_results, right_results) = results.split_at_mut(half);
                let left = Chunk {
                    tensor,
                    start,
                    bias,
                    arrays: left_arrays,
                    parameters: left_parameters,
                    gradients: left_gradients,
                    results: left_results,
                };
                let right = Chunk {
                    tensor,
                    start: start + elements,
                    bias,
                    arrays: right_arrays,
                    parameters: right_parameters,
                    gradients: right_gradients,
                    results: right_results,
                };
                rayon::join(|| left.for_each(work), || right.for_each(work));
            }
        }
    }
}
