//! The random numbers of the elements of a chunk, for formats that round both moments.

use formats::RandomStream;
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

    /// The numbers of the elements from `start` of the chunk on, a multiple of four: what second moments
    /// are rounded by, and what first moments are dithered by.
    #[inline(always)]
    pub(crate) fn fill<const REPAIRED: bool>(
        self,
        start: usize,
        dithers: &mut [f32],
        uniforms: &mut [f32],
    ) {
        let begin = self.first_index_low.wrapping_add(start as u32);
        if REPAIRED {
            self.fill_fours(begin / 4, dithers, uniforms);
            return;
        }
        let [first, second] = self.published;
        for (index, (dither, uniform)) in (0u32..).zip(dithers.iter_mut().zip(uniforms)) {
            let index = begin.wrapping_add(index);
            (*dither, *uniform) = (first.dither(index), second.uniform(index));
        }
    }

    #[inline(always)]
    fn fill_fours(self, first_four: u32, dithers: &mut [f32], uniforms: &mut [f32]) {
        let (dithers, dithers_rest) = dithers.as_chunks_mut::<4>();
        let (uniforms, uniforms_rest) = uniforms.as_chunks_mut::<4>();
        let draw = |four: u32| {
            let words = self.stream.words_of_four(first_four.wrapping_add(four));
            formats::counter_hash::uniforms(words)
        };
        let whole = dithers.len() as u32;
        for (four, (dithers, uniforms)) in (0..whole).zip(dithers.iter_mut().zip(uniforms)) {
            let [a, b, c, d] = draw(four);
            *uniforms = [a, b, c, d];
            *dithers = [b, a, d, c];
        }
        if !dithers_rest.is_empty() {
            let [a, b, c, d] = draw(whole);
            let count = dithers_rest.len();
            uniforms_rest.copy_from_slice(&[a, b, c, d][..count]);
            dithers_rest.copy_from_slice(&[b, a, d, c][..count]);
        }
    }
}
