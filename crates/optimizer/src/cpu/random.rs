//! The random numbers of the elements of a chunk, for formats that round both moments.

use formats::RandomStream;
use formats::counter_hash::uniforms;
use formats::published_random::{Place, PublishedStream};

/// Where a chunk's random numbers come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRandom {
    stream: RandomStream,
    published: [PublishedStream; 2],
    /// The lower half of the index of the chunk's first element.
    first_index_low: u32,
}

impl BlockRandom {
    /// Those of the chunk that begins at element `start` of `tensor`.
    pub(crate) fn new(seed: u64, update: u64, tensor: u32, place: Place, start: u64) -> Self {
        BlockRandom {
            stream: RandomStream::new(seed, update, tensor, (start >> 32) as u32),
            published: PublishedStream::both(seed as u32, update, place),
            first_index_low: start as u32,
        }
    }

    /// The numbers of the elements from `start` of the chunk on, for first and second moments.
    #[inline(always)]
    pub(crate) fn fill<const REPAIRED: bool>(
        self,
        start: usize,
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let begin = self.first_index_low.wrapping_add(start as u32);
        for (index, (first, second)) in (0u32..).zip(first.iter_mut().zip(second)) {
            let index = begin.wrapping_add(index);
            [*first, *second] = if REPAIRED {
                uniforms(self.stream.word(index))
            } else {
                self.published.map(|stream| stream.uniform(index))
            };
        }
    }
}
