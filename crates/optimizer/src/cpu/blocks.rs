//! The update of a run of elements in a format of blocks: the same arithmetic as in
//! [`kernel`](super::kernel), between a decode and an encode of whole blocks.
//!
//! ```text
//! decode a block -> m0, v0    update -> p, m, v    encode the block
//! ```
//!
//! Each of the three is a few loops over numbers in small arrays, so that all of them
//! vectorise but those that look codes up in tables. An element that would not be finite enters the new
//! block with the moments that it had.

use super::kernel::{Counts, Found, Mode, PREFETCH_ELEMENTS, Run};
use super::norm::SquareLanes;
use crate::simd::{Kernel, Vectors, prefetch};

/// The largest block.
pub(crate) const BLOCK_MAX: usize = 4096;
/// Elements that are decoded together at least, where blocks are smaller; there is less room for such units, so that
/// it stays in the nearest cache.
const UNIT_MIN: usize = 256;

/// Room for what codecs need between their loops.
pub(crate) struct Room<'a> {
    /// What first moments are dithered by, and random numbers for second ones; or a block's numbers
    /// over its absmax.
    pub(crate) uniforms: [&'a mut [f32]; 2],
    /// Second moments as they are stored, or first moments over their roots.
    pub(crate) stored: &'a mut [f32],
    /// What first moments are divided by.
    pub(crate) units: &'a mut [f32],
    pub(crate) codes: &'a mut [u32],
    /// What is added to words of tables.
    pub(crate) addends: &'a mut [u32],
}

/// The memory of a [`Room`] for units of `N` elements. It is made once for a run, since making it costs
/// more than a block.
pub(crate) struct Memory<const N: usize> {
    uniforms: [[f32; N]; 2],
    stored: [f32; N],
    units: [f32; N],
    codes: [u32; N],
    addends: [u32; N],
}

/// The moments of some elements; r is the root of v.
#[derive(Clone, Copy)]
pub(crate) struct MomentRuns<'a> {
    pub(crate) m: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) r: &'a [f32],
}

/// How a format stores blocks of moments, inside a loop over units of whole blocks.
pub(crate) trait BlockCodec {
    /// Whether parameters decay after the update.
    const DECAYS_LAST: bool;

    /// Elements of a block.
    fn block(&self) -> usize;

    /// The moments of the elements from `start` on, as many as `m` and `v` have.
    fn decode<V: Vectors>(&self, start: usize, m: &mut [f32], v: &mut [f32], room: &mut Room<'_>);

    /// Stores moments of the elements from `start` on, all of them finite.
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>);
}

/// A visit to every element of a run, which is part of one chunk.
pub(crate) struct BlockVisit<'a, C> {
    pub(crate) run: Run<'a>,
    pub(crate) codec: C,
}

/// What a unit is and becomes.
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
            uniforms: [[0.0; N]; 2],
            stored: [0.0; N],
            units: [0.0; N],
            codes: [0; N],
            addends: [0; N],
        }
    }

    /// All of it.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Room<'_> {
        let Memory { uniforms: [first, second], stored, units, codes, addends } = self;
        Room { uniforms: [first, second], stored, units, codes, addends }
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
                for row in (start..start + count).step_by(UNIT_MIN) {
                    let end = (row + UNIT_MIN).min(start + count);
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
        let (m0, v0) = (&mut unit.m0[..count], &mut unit.v0[..count]);
        self.codec.decode::<V>(start, m0, v0, &mut unit.memory.room());
        let finite = self.compute(start, count, unit);
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
    fn compute<const N: usize>(&self, start: usize, count: usize, unit: &mut Unit<N>) -> u32 {
        let s = self.run.scalars;
        let parameters = &self.run.parameters[start..start + count];
        let gradients = &self.run.gradients[start..start + count];
        let (m0, v0) = (&unit.m0[..count], &unit.v0[..count]);
        let (p_new, m_new) = (&mut unit.p[..count], &mut unit.m[..count]);
        let (v_new, r_new) = (&mut unit.v[..count], &mut unit.r[..count]);
        let mut finite = 0;
        for i in 0..count {
            let g = gradients[i] * self.run.clip_scale;
            let m = s.beta1.mul_add(m0[i], s.one_minus_beta1 * g);
            let v = s.beta2.mul_add(v0[i], (s.one_minus_beta2 * g) * g);
            let r = v.sqrt();
            let direction = m / r.mul_add(s.rms_scale, s.eps);
            let p = if C::DECAYS_LAST {
                (-s.step).mul_add(direction, parameters[i]) * s.decay
            } else {
                (-s.step).mul_add(direction, parameters[i] * s.decay)
            };
            p_new[i] = p;
            m_new[i] = m;
            v_new[i] = v;
            r_new[i] = r;
            finite += u32::from(is_finite(p, v));
        }
        finite
    }
}

/// As in [`kernel`](super::kernel): a finite parameter proves a finite first moment.
#[inline(always)]
fn is_finite(p: f32, v: f32) -> bool {
    p.is_finite() & (v < f32::INFINITY)
}

/// A decoded v, raised to where exact moments could have m beside it.
#[inline(always)]
pub(crate) fn at_least_ratio(m: f32, v: f32, inverse_ratio_max: f32) -> f32 {
    let root = m * inverse_ratio_max;
    let least = root * root;
    if least > v { least } else { v }
}

/// What lies beyond a bound, moved there.
#[inline(always)]
pub(crate) fn within(x: f32, bound: f32) -> f32 {
    let x = if x < bound { x } else { bound };
    if x > -bound { x } else { -bound }
}
