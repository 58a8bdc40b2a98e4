//! The update of a run of elements in a format of blocks: the same arithmetic as in
//! [`kernel`](super::kernel), between a decode and an encode of whole blocks.
//!
//! ```text
//! decode a block -> m0, v0    update -> p, m, v    encode the block
//! ```
//!
//! All three go through small arrays, a unit of some blocks at a time. Encode and decode are written with
//! [`Vectors`], since they look codes up in tables. An element that would not be finite enters the new
//! block with the moments that it had.

use super::kernel::{Counts, Found, Mode, PREFETCH_ELEMENTS, Run};
use super::norm::SquareLanes;
use super::tiles::TILE;
use crate::simd::{Kernel, Vectors, prefetch};

/// The largest block.
pub(crate) const BLOCK_MAX: usize = 4096;
/// Elements that go through together at least, where blocks are smaller: enough for the steps of several
/// blocks to be done side by side, and few enough for all arrays to stay in the nearest cache.
const UNIT_MIN: usize = 512;
/// Numbers of a register.
const RUN: usize = 16;
/// Elements between which squares of gradients must not reach.
const ROW: usize = 256;
/// Tables of a unit: five for each of the smallest blocks, of 16 elements.
const TABLES: usize = 5 * UNIT_MIN / 16;

/// Room for what codecs need between their loops, a number for each element.
pub(crate) struct Room<'a> {
    /// Roots of second moments, or what first moments are multiplied by to be stored.
    pub(crate) units: &'a mut [f32],
    /// Normalised first moments.
    pub(crate) quotients: &'a mut [f32],
    /// What they are dithered by.
    pub(crate) dithers: &'a mut [f32],
    /// Codes of second moments; as floats, where they go through vectors.
    pub(crate) codes: &'a mut [f32],
    /// What codes stand for, some tables for each block.
    pub(crate) tables: &'a mut [[f32; 16]],
}

/// The memory of a [`Room`] for units of `N` elements. It is made once for a run, since making it costs
/// more than a block. No register of it crosses a line of memory.
#[repr(C, align(64))]
pub(crate) struct Memory<const N: usize> {
    units: [f32; N],
    quotients: [f32; N],
    dithers: [f32; N],
    codes: [f32; N],
    tables: [[f32; 16]; TABLES],
}

/// The moments of some elements; r is the root of v.
#[derive(Clone, Copy)]
pub(crate) struct MomentRuns<'a> {
    pub(crate) m: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) r: &'a [f32],
}

/// Elements of a run: so many, from one on.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) count: usize,
}

/// How a format stores blocks of moments, inside a loop over units of whole blocks.
pub(crate) trait BlockCodec {
    /// Whether parameters decay after the update.
    const DECAYS_LAST: bool;

    /// Elements of a block.
    fn block(&self) -> usize;

    /// The moments of some elements. There is room for whole tiles; what lies beyond the
    /// last element means nothing.
    fn decode<V: Vectors>(&self, span: Span, m: &mut [f32], v: &mut [f32], room: &mut Room<'_>);

    /// Stores moments of the elements from `start` on, as many as there are, all of them finite.
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>);
}

/// A visit to every element of a run, which is part of one chunk.
pub(crate) struct BlockVisit<'a, C> {
    pub(crate) run: Run<'a>,
    pub(crate) codec: C,
}

/// What a unit is and becomes, aligned as [`Memory`] is.
#[repr(C, align(64))]
struct Unit<const N: usize> {
    m0: [f32; N],
    v0: [f32; N],
    p: [f32; N],
    m: [f32; N],
    v: [f32; N],
    r: [f32; N],
    memory: Memory<N>,
}

impl<const N: usize> Memory<N> {
    #[inline(always)]
    pub(crate) fn new() -> Memory<N> {
        Memory {
            units: [0.0; N],
            quotients: [0.0; N],
            dithers: [0.0; N],
            codes: [0.0; N],
            tables: [[0.0; 16]; TABLES],
        }
    }

    /// All of it.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Room<'_> {
        let Memory { units, quotients, dithers, codes, tables } = self;
        Room { units, quotients, dithers, codes, tables }
    }
}

impl<C: BlockCodec> Kernel for BlockVisit<'_, &mut C> {
    type Output = Found;

    #[inline(always)]
    fn run<V: Vectors>(self) -> Found {
        if self.codec.block() <= UNIT_MIN {
            self.run_in::<V, UNIT_MIN>()
        } else {
            self.run_in::<V, BLOCK_MAX>()
        }
    }
}

impl<C: BlockCodec> BlockVisit<'_, &mut C> {
    /// Visits the run in units that fit `N`.
    #[inline(always)]
    fn run_in<V: Vectors, const N: usize>(mut self) -> Found {
        let mut unit = Unit {
            m0: [0.0; N],
            v0: [0.0; N],
            p: [0.0; N],
            m: [0.0; N],
            v: [0.0; N],
            r: [0.0; N],
            memory: Memory::new(),
        };
        let mut counts = Counts::NONE;
        let mut squares = self.run.sums_squares.then_some(SquareLanes::ZERO);
        let elements = self.run.parameters.len();
        let unit_elements = self.codec.block().max(UNIT_MIN);
        for start in (0..elements).step_by(unit_elements) {
            let count = unit_elements.min(elements - start);
            for index in (start..start + count).step_by(16) {
                prefetch(self.run.parameters, index + PREFETCH_ELEMENTS);
                prefetch(self.run.gradients, index + PREFETCH_ELEMENTS);
            }
            if let Some(squares) = &mut squares {
                // A lane's rows must not be crossed.
                for row in (start..start + count).step_by(ROW) {
                    let end = (row + ROW).min(start + count);
                    squares.add(row, &self.run.gradients[row..end]);
                }
            }
            self.visit_unit::<V, N>(start, count, &mut unit, &mut counts);
        }
        Found { counts, square_sum: squares.map(SquareLanes::fold) }
    }

    #[inline(always)]
    fn visit_unit<V: Vectors, const N: usize>(
        &mut self,
        start: usize,
        count: usize,
        unit: &mut Unit<N>,
        counts: &mut Counts,
    ) {
        let room = count.next_multiple_of(TILE);
        let (m0, v0) = (&mut unit.m0[..room], &mut unit.v0[..room]);
        self.codec.decode::<V>(Span { start, count }, m0, v0, &mut unit.memory.room());
        let finite = self.compute::<V, N>(start, count, unit);
        let nonfinite = count as u32 - finite;
        if nonfinite > 0 {
            counts.nonfinite += nonfinite;
            let is_finite = |index: &usize| is_finite(unit.p[*index], unit.v[*index]);
            let first = (0..count).find(|index| !is_finite(index)).map(|index| start + index);
            counts.first_nonfinite = counts.first_nonfinite.or(first);
        }
        if self.run.mode == Mode::Check {
            return;
        }
        let parameters = &mut self.run.parameters[start..start + count];
        if nonfinite > 0 {
            for (index, parameter) in parameters.iter().enumerate() {
                if !is_finite(unit.p[index], unit.v[index]) {
                    unit.p[index] = *parameter;
                    unit.m[index] = unit.m0[index];
                    unit.v[index] = unit.v0[index];
                    unit.r[index] = unit.v0[index].sqrt();
                }
            }
        }
        parameters.copy_from_slice(&unit.p[..count]);
        let Unit { m, v, r, memory, .. } = unit;
        let moments = MomentRuns { m: &m[..count], v: &v[..count], r: &r[..count] };
        self.codec.encode::<V>(start, moments, &mut memory.room());
    }

    /// What the elements become, and how many of them are finite.
    #[inline(always)]
    fn compute<V: Vectors, const N: usize>(
        &self,
        start: usize,
        count: usize,
        unit: &mut Unit<N>,
    ) -> u32 {
        let parameters = &self.run.parameters[start..start + count];
        let gradients = &self.run.gradients[start..start + count];
        let whole = count - count % RUN;
        let (p_new, m_new) = (unit.p.as_chunks_mut::<RUN>().0, unit.m.as_chunks_mut::<RUN>().0);
        let (v_new, r_new) = (unit.v.as_chunks_mut::<RUN>().0, unit.r.as_chunks_mut::<RUN>().0);
        let (m0, v0) = (unit.m0.as_chunks::<RUN>().0, unit.v0.as_chunks::<RUN>().0);
        let inputs = parameters.as_chunks::<RUN>().0.iter().zip(gradients.as_chunks::<RUN>().0);
        let inputs = inputs.zip(m0.iter().zip(v0));
        let outputs = p_new.iter_mut().zip(m_new).zip(v_new.iter_mut().zip(r_new));
        let magnitude = V::words(0x7FFF_FFFF);
        let mut largest = V::words(0);
        for (((p, g), (m0, v0)), ((p_new, m_new), (v_new, r_new))) in inputs.zip(outputs) {
            let before = [V::load(p), V::load(m0), V::load(v0)];
            let [p, m, v, r] = self.updated::<V>(before, V::load(g));
            // Bits of what is not finite are the largest ones; v has no sign, unless it is NaN.
            largest = V::larger(largest, V::larger(V::and(V::bits(p), magnitude), V::bits(v)));
            V::store(p, p_new);
            V::store(m, m_new);
            V::store(v, v_new);
            V::store(r, r_new);
        }
        if whole < count {
            let tail = |numbers: &[f32]| {
                let mut tail = [0.0; RUN];
                tail[..count - whole].copy_from_slice(&numbers[whole..count]);
                tail
            };
            let (p, m0, v0) = (tail(parameters), tail(&unit.m0), tail(&unit.v0));
            let before = [V::load(&p), V::load(&m0), V::load(&v0)];
            let after = self.updated::<V>(before, V::load(&tail(gradients)));
            largest = V::words(u32::MAX);
            let arrays = [&mut unit.p, &mut unit.m, &mut unit.v, &mut unit.r];
            for (array, after) in arrays.into_iter().zip(after) {
                let mut tail = [0.0; RUN];
                V::store(after, &mut tail);
                array[whole..count].copy_from_slice(&tail[..count - whole]);
            }
        }
        if V::largest(largest) < f32::INFINITY.to_bits() {
            return count as u32;
        }
        let both = unit.p[..count].iter().zip(&unit.v[..count]);
        both.map(|(&p, &v)| u32::from(is_finite(p, v))).sum()
    }

    /// Parameter, moments and the root of the second one, from those before: p, m, v.
    #[inline(always)]
    fn updated<V: Vectors>(
        &self,
        [p, m0, v0]: [V::Floats; 3],
        gradient: V::Floats,
    ) -> [V::Floats; 4] {
        let s = self.run.scalars;
        let g = V::mul(gradient, V::splat(self.run.clip_scale));
        let m = V::fused(V::splat(s.beta1), m0, V::mul(V::splat(s.one_minus_beta1), g));
        let v = V::mul(V::mul(V::splat(s.one_minus_beta2), g), g);
        let v = V::fused(V::splat(s.beta2), v0, v);
        let r = V::sqrt(v);
        let direction = V::div(m, V::fused(r, V::splat(s.rms_scale), V::splat(s.eps)));
        let (step, decay) = (V::splat(-s.step), V::splat(s.decay));
        let p = if C::DECAYS_LAST {
            V::mul(V::fused(step, direction, p), decay)
        } else {
            V::fused(step, direction, V::mul(p, decay))
        };
        [p, m, v, r]
    }
}

/// As in [`kernel`](super::kernel): a finite parameter proves a finite first moment.
#[inline(always)]
fn is_finite(p: f32, v: f32) -> bool {
    p.is_finite() & (v < f32::INFINITY)
}
