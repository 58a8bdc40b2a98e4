//! The random numbers of the elements of a chunk, for formats that round both moments.

use formats::RandomStream;
use formats::counter_hash::{MIX_INCREMENT, MIX_MULTIPLIERS};
use formats::published_random::{Place, PublishedStream};

use super::tiles::{Fours, TILE};
use crate::simd::Vectors;

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

    /// What second moments are rounded by and what first moments are dithered by, in the tile from element `start` of
    /// the chunk on, a multiple of four.
    #[inline(always)]
    pub(crate) fn both_by<V: Vectors, const REPAIRED: bool>(self, start: usize) -> [Fours<V>; 2] {
        if REPAIRED {
            return self.both::<V>(start).into();
        }
        let [first, second] = self.published;
        [
            self.published::<V>(start, |index| second.uniform(index)),
            self.published::<V>(start, |index| first.dither(index)),
        ]
    }

    /// The latter alone.
    #[inline(always)]
    pub(crate) fn dithers<V: Vectors, const REPAIRED: bool>(self, start: usize) -> Fours<V> {
        if REPAIRED {
            return self.both::<V>(start).1;
        }
        self.published::<V>(start, |index| self.published[0].dither(index))
    }

    #[inline(always)]
    fn published<V: Vectors>(self, start: usize, number: impl Fn(u32) -> f32) -> Fours<V> {
        let begin = self.first_index_low.wrapping_add(start as u32);
        let mut numbers = [0.0; TILE];
        for (index, own) in (0..).zip(&mut numbers) {
            *own = number(begin.wrapping_add(index));
        }
        V::fours(&numbers)
    }

    /// Uniforms and dithers of the mended formats, as `formats::counter_hash` has them.
    #[inline(always)]
    pub(crate) fn both<V: Vectors>(self, start: usize) -> (Fours<V>, Fours<V>) {
        let [uniforms, dithers] = of_words::<V>(self.words::<V>(start));
        (uniforms, dithers)
    }

    /// The words of these.
    #[inline(always)]
    pub(crate) fn words<V: Vectors>(self, start: usize) -> [V::Words; 2] {
        let begin = self.first_index_low.wrapping_add(start as u32) / 4;
        let [inner, outer] = self.stream.keys();
        let four = V::plus(V::four_numbers(), V::words(begin));
        let s = V::plus(V::times(four, V::words(MIX_INCREMENT)), V::words(inner));
        let [to_second, to_first] = MIX_MULTIPLIERS;
        let mixed = V::folded(s, V::xor(s, V::words(outer)));
        let first = V::folded(mixed, V::words(to_first));
        [first, V::folded(first, V::words(to_second))]
    }
}

/// Uniforms and dithers, given their words.
#[inline(always)]
pub(crate) fn of_words<V: Vectors>([first, second]: [V::Words; 2]) -> [Fours<V>; 2] {
    let (a, b) = (uniform::<V>(first), uniform::<V>(V::turned(first)));
    let (c, d) = (uniform::<V>(second), uniform::<V>(V::turned(second)));
    [[a, b, c, d], [b, a, d, c]]
}

/// As `formats::counter_hash::uniform`.
#[inline(always)]
fn uniform<V: Vectors>(word: V::Words) -> V::Floats {
    const HALF_BELOW_ONE: f32 = 1.0 - 1.0 / 16_777_216.0;
    let above_one = V::or(V::shr::<9>(word), V::words(1f32.to_bits()));
    V::sub(V::float(above_one), V::splat(HALF_BELOW_ONE))
}
