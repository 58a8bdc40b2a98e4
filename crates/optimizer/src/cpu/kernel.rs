//! The update of a run of elements: one text for every format and instruction set.
//!
//! ```text
//! m  = fma(beta1, m0, (1 - beta1) * g)
//! v  = fma(beta2, v0, ((1 - beta2) * g) * g)        v0 = r0 * r0 for RMS lanes
//! r  = sqrt(v)
//! p  = fma(-step, m / fma(r, s, eps), p0 * decay)
//! ```
//!
//! All f32, each operation rounded to nearest, in exactly this order; `g` is the
//! gradient times the clip scale.
//!
//! How it becomes fast: the elements go through in blocks, each in two loops (load,
//! decode, update; then encode, store, count) with the results between them in a
//! small array. The loops have no branch, so they vectorise, and each is short
//! enough for the processor to look several turns ahead. Lines of memory are asked
//! for well before their block, across page borders too, where the hardware's own
//! prefetching stops.

use super::codec::{Codec, Storage};
use super::norm::SquareLanes;
use crate::scalars::Scalars;
use crate::simd::{Kernel, Vectors, prefetch};

/// Elements of a block: enough to spread the cost of a block's end, few enough for
/// the lines that it asks for to be on their way together.
const BLOCK: usize = 128;
/// How far ahead of a block its lines are asked for: at some 0.3 ns an element,
/// a few times the latency of memory.
pub(crate) const PREFETCH_ELEMENTS: usize = 1024;
/// Elements of f32 in a line of memory.
pub(crate) const LINE_ELEMENTS: usize = 16;

/// Whether a visit writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Updates the elements in place.
    Update,
    /// Counts the elements that an update would find not finite, and writes nothing.
    Check,
}

/// A visit to every element of a run, which is part of one chunk.
pub(crate) struct Visit<'a, C, S> {
    pub(crate) run: Run<'a>,
    pub(crate) codec: C,
    pub(crate) storage: S,
}

/// What a visit needs, whatever the format.
pub(crate) struct Run<'a> {
    pub(crate) mode: Mode,
    pub(crate) scalars: Scalars,
    pub(crate) clip_scale: f32,
    pub(crate) parameters: &'a mut [f32],
    pub(crate) gradients: &'a [f32],
    /// The lower half of the first element's index in its tensor.
    pub(crate) first_index_low: u32,
    /// Whether the squares of the gradients are added up on the way.
    pub(crate) sums_squares: bool,
}

/// What a visit found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) counts: Counts,
    /// The sum of the squares of the gradients, if it was wanted.
    pub(crate) square_sum: Option<f64>,
}

/// What a visit counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counts {
    pub(crate) nonfinite: u32,
    pub(crate) saturated_m: u32,
    pub(crate) saturated_r: u32,
    /// The position of the first non-finite element, if there is one.
    pub(crate) first_nonfinite: Option<usize>,
}

/// The largest finite `|g * clip_scale|`, 0 if there is none.
pub(crate) struct GradientMax<'a> {
    pub(crate) gradients: &'a [f32],
    pub(crate) clip_scale: f32,
}

/// What a block becomes, between its two loops.
struct Results {
    p: [f32; BLOCK],
    m: [f32; BLOCK],
    second: [f32; BLOCK],
}

/// Counts of a block in one word, so that a loop has one sum to carry: finite
/// elements from bit 1, saturated m from bit 11, saturated r from bit 21.
///
/// Bit 0 stays free: adding twice a flag is one masked addition, where adding the
/// flag itself is compiled to three instructions.
#[derive(Clone, Copy)]
struct Events(u32);

impl Counts {
    pub(crate) const NONE: Counts =
        Counts { nonfinite: 0, saturated_m: 0, saturated_r: 0, first_nonfinite: None };
}

impl Events {
    /// Bits of one count, which is at most a block.
    const FIELD_BITS: u32 = 10;
    const FIELD_MASK: u32 = (1 << Events::FIELD_BITS) - 1;
    const FINITE_SHIFT: u32 = 1;
    const SATURATED_M_SHIFT: u32 = Events::FINITE_SHIFT + Events::FIELD_BITS;
    const SATURATED_R_SHIFT: u32 = Events::SATURATED_M_SHIFT + Events::FIELD_BITS;

    #[inline(always)]
    fn of(is_finite: bool, saturated_m: bool, saturated_r: bool) -> Events {
        let finite = u32::from(is_finite) << Events::FINITE_SHIFT;
        let m = u32::from(is_finite & saturated_m) << Events::SATURATED_M_SHIFT;
        let r = u32::from(is_finite & saturated_r) << Events::SATURATED_R_SHIFT;
        Events(finite + m + r)
    }

    fn finite(self) -> u32 {
        const { assert!(BLOCK <= Events::FIELD_MASK as usize) };
        self.0 >> Events::FINITE_SHIFT & Events::FIELD_MASK
    }

    fn saturated_m(self) -> u32 {
        self.0 >> Events::SATURATED_M_SHIFT & Events::FIELD_MASK
    }

    fn saturated_r(self) -> u32 {
        self.0 >> Events::SATURATED_R_SHIFT & Events::FIELD_MASK
    }
}

impl<C: Codec, S: Storage<Stored = C::Stored>> Kernel for Visit<'_, C, S> {
    type Output = Found;

    #[inline(always)]
    fn run<V: Vectors>(mut self) -> Found {
        let mut counts = Counts::NONE;
        let mut squares = self.run.sums_squares.then_some(SquareLanes::ZERO);
        let mut results = Results { p: [0.0; BLOCK], m: [0.0; BLOCK], second: [0.0; BLOCK] };
        let count = self.run.parameters.len();
        let whole = count - count % BLOCK;
        for start in (0..whole).step_by(BLOCK) {
            self.prefetch(start + PREFETCH_ELEMENTS);
            self.add_squares(start, BLOCK, &mut squares);
            // The length of a whole block is a constant to the compiler.
            self.visit_block(start, BLOCK, &mut results, &mut counts);
        }
        if whole < count {
            self.add_squares(whole, count - whole, &mut squares);
            self.visit_block(whole, count - whole, &mut results, &mut counts);
        }
        Found { counts, square_sum: squares.map(SquareLanes::fold) }
    }
}

impl<C: Codec, S: Storage<Stored = C::Stored>> Visit<'_, C, S> {
    /// Asks for the lines of the block at `start`.
    #[inline(always)]
    fn prefetch(&self, start: usize) {
        for index in (start..start + BLOCK).step_by(LINE_ELEMENTS) {
            prefetch(self.run.parameters, index);
            prefetch(self.run.gradients, index);
            self.storage.prefetch(index);
        }
    }

    #[inline(always)]
    fn add_squares(&self, start: usize, count: usize, squares: &mut Option<SquareLanes>) {
        if let Some(squares) = squares {
            squares.add(start, &self.run.gradients[start..start + count]);
        }
    }

    #[inline(always)]
    fn visit_block(
        &mut self,
        start: usize,
        count: usize,
        results: &mut Results,
        counts: &mut Counts,
    ) {
        self.compute(start, count, results);
        let events = match self.run.mode {
            Mode::Update => self.store(start, count, results),
            Mode::Check => results.events(count),
        };
        counts.saturated_m += events.saturated_m();
        counts.saturated_r += events.saturated_r();
        let nonfinite = count as u32 - events.finite();
        if nonfinite > 0 {
            counts.nonfinite += nonfinite;
            let first = (0..count).find(|&index| !results.is_finite(index));
            let first = first.map(|index| start + index);
            counts.first_nonfinite = counts.first_nonfinite.or(first);
        }
    }

    /// The first loop: what the elements become.
    #[inline(always)]
    fn compute(&mut self, start: usize, count: usize, results: &mut Results) {
        let s = self.run.scalars;
        let storage = self.storage.part(start, count);
        let parameters = &self.run.parameters[start..start + count];
        let gradients = &self.run.gradients[start..start + count];
        let p_results = &mut results.p[..count];
        let m_results = &mut results.m[..count];
        let second_results = &mut results.second[..count];
        for i in 0..count {
            let (m0, v0) = self.codec.decode(storage.load(i));
            let g = gradients[i] * self.run.clip_scale;
            let m = s.beta1.mul_add(m0, s.one_minus_beta1 * g);
            let v = s.beta2.mul_add(v0, (s.one_minus_beta2 * g) * g);
            let r = v.sqrt();
            let direction = m / r.mul_add(s.rms_scale, s.eps);
            p_results[i] = (-s.step).mul_add(direction, parameters[i] * s.decay);
            m_results[i] = m;
            second_results[i] = self.codec.second(v, r);
        }
    }

    /// The second loop: encodes and stores what is finite, leaves the rest.
    #[inline(always)]
    fn store(&mut self, start: usize, count: usize, results: &Results) -> Events {
        let first_index_low = self.run.first_index_low.wrapping_add(start as u32);
        let mut storage = self.storage.part(start, count);
        let parameters = &mut self.run.parameters[start..start + count];
        let (p, m, second) = (&results.p[..count], &results.m[..count], &results.second[..count]);
        let mut events = 0;
        for i in 0..count {
            let is_finite = is_finite(p[i], second[i]);
            let index_low = first_index_low.wrapping_add(i as u32);
            let encoded = self.codec.encode(m[i], second[i], index_low);
            parameters[i] = if is_finite { p[i] } else { parameters[i] };
            storage.store(i, if is_finite { encoded.stored } else { storage.load(i) });
            events += Events::of(is_finite, encoded.saturated_m, encoded.saturated_r).0;
        }
        Events(events)
    }
}

/// Whether gradient, m, v and p are finite, told by p and the second moment: a
/// gradient that is not makes m so, and m makes p so, whatever the denominator.
/// The second moment is NaN or not negative.
#[inline(always)]
pub(crate) fn is_finite(p: f32, second: f32) -> bool {
    p.is_finite() & (second < f32::INFINITY)
}

impl Results {
    #[inline(always)]
    fn is_finite(&self, index: usize) -> bool {
        is_finite(self.p[index], self.second[index])
    }

    /// The events of the first `count` elements, if nothing is encoded.
    #[inline(always)]
    fn events(&self, count: usize) -> Events {
        let flags = (0..count).map(|index| Events::of(self.is_finite(index), false, false).0);
        Events(flags.sum())
    }
}

impl Kernel for GradientMax<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vectors>(self) -> f32 {
        // Magnitudes order as their bits do, and a maximum of integers vectorises.
        let clipped = self.gradients.iter().map(|g| (g * self.clip_scale).abs());
        let bits = clipped.map(|g| if g.is_finite() { g.to_bits() } else { 0 });
        f32::from_bits(bits.fold(0, u32::max))
    }
}
