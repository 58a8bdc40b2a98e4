//! How a loop reads and writes the stored moments of an element: one small type for
//! each way to store them, all inlined into the loop.
//!
//! What a state word means is said in `formats`; here its codecs meet the arrays.

use formats::{Moments, WordCodec};

use crate::simd::prefetch;

/// How a format stores the moments of an element, inside a loop.
pub(crate) trait Codec: Copy {
    /// What is stored for one element.
    type Stored: Copy;

    /// The first and the second moment.
    fn decode(self, stored: Self::Stored) -> (f32, f32);

    /// What of the new second moment an encode wants: `v` itself or `r = sqrt(v)`.
    /// One is finite if the other is.
    fn second(self, v: f32, r: f32) -> f32;

    /// What to store. `index_low` is the lower half of the element's index in its
    /// tensor.
    fn encode(self, m: f32, second: f32, index_low: u32) -> Encoded<Self::Stored>;
}

/// An element encoded.
pub(crate) struct Encoded<Stored> {
    pub(crate) stored: Stored,
    pub(crate) saturated_m: bool,
    pub(crate) saturated_r: bool,
}

/// The stored moments of a run of elements.
pub(crate) trait Storage {
    /// What is stored for one element.
    type Stored: Copy;
    /// A part of the run.
    type Part<'a>: Storage<Stored = Self::Stored>
    where
        Self: 'a;

    /// The elements from `start`, `count` of them.
    fn part(&mut self, start: usize, count: usize) -> Self::Part<'_>;
    fn load(&self, index: usize) -> Self::Stored;
    fn store(&mut self, index: usize, stored: Self::Stored);
    /// Asks for the lines of the element at `index`, which may lie beyond the run.
    fn prefetch(&self, index: usize);
}

/// `m` and `v` as f32.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

/// Both moments in a state word.
#[derive(Clone, Copy)]
pub(crate) struct Word<W>(pub(crate) W);

/// The arrays of [`Plain`].
pub(crate) struct MomentArrays<'a> {
    pub(crate) m: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
}

/// The array of [`Word`].
pub(crate) struct WordArray<'a>(pub(crate) &'a mut [u32]);

impl Codec for Plain {
    type Stored = (f32, f32);

    #[inline(always)]
    fn decode(self, stored: (f32, f32)) -> (f32, f32) {
        stored
    }

    #[inline(always)]
    fn second(self, v: f32, _r: f32) -> f32 {
        v
    }

    #[inline(always)]
    fn encode(self, m: f32, v: f32, _index_low: u32) -> Encoded<(f32, f32)> {
        Encoded { stored: (m, v), saturated_m: false, saturated_r: false }
    }
}

impl<W: WordCodec> Codec for Word<W> {
    type Stored = u32;

    #[inline(always)]
    fn decode(self, stored: u32) -> (f32, f32) {
        let Moments { m, r } = self.0.decode(stored);
        (m, r * r)
    }

    #[inline(always)]
    fn second(self, _v: f32, r: f32) -> f32 {
        r
    }

    #[inline(always)]
    fn encode(self, m: f32, r: f32, index_low: u32) -> Encoded<u32> {
        let packed = self.0.encode(Moments { m, r }, index_low);
        Encoded {
            stored: packed.word,
            saturated_m: packed.saturated_m,
            saturated_r: packed.saturated_r,
        }
    }
}

impl Storage for MomentArrays<'_> {
    type Stored = (f32, f32);
    type Part<'a>
        = MomentArrays<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn part(&mut self, start: usize, count: usize) -> MomentArrays<'_> {
        let part = start..start + count;
        MomentArrays { m: &mut self.m[part.clone()], v: &mut self.v[part] }
    }

    #[inline(always)]
    fn load(&self, index: usize) -> (f32, f32) {
        (self.m[index], self.v[index])
    }

    #[inline(always)]
    fn store(&mut self, index: usize, (m, v): (f32, f32)) {
        self.m[index] = m;
        self.v[index] = v;
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.m, index);
        prefetch(self.v, index);
    }
}

impl Storage for WordArray<'_> {
    type Stored = u32;
    type Part<'a>
        = WordArray<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn part(&mut self, start: usize, count: usize) -> WordArray<'_> {
        WordArray(&mut self.0[start..start + count])
    }

    #[inline(always)]
    fn load(&self, index: usize) -> u32 {
        self.0[index]
    }

    #[inline(always)]
    fn store(&mut self, index: usize, word: u32) {
        self.0[index] = word;
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.0, index);
    }
}
