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
use crate::simd::{Kernel, prefetch};

/// The largest block.
pub(crate) const BLOCK_MAX: usize = 4096;
/// Elements that are decoded together at least, where blocks are smaller.
const UNIT_MIN: usize = 128;

/// Room for what a unit of elements becomes.
pub(crate) type Scratch = [f32; BLOCK_MAX];

/// Room for what codecs need between their loops. It is made once for a run, since making it
/// costs more than a block.
pub(crate) struct Room {
    /// Random numbers, or a block's numbers over its absmax.
    pub(crate) uniforms: [Scratch; 2],
    /// Second moments as they are stored.
    pub(crate) stored: Scratch,
    /// Their roots.
    pub(crate) roots: Scratch,
    pub(crate) codes: [u32; BLOCK_MAX],
}

/// How a format stores blocks of moments, inside a loop over units of whole blocks.
pub(crate) trait BlockCodec {
    /// Whether parameters decay after the update.
    const DECAYS_LAST: bool;

    /// Elements of a block.
    fn block(&self) -> usize;

    /// The moments of the elements from `start` on, as many as `m` and `v` have.
    fn decode(&self, start: usize, m: &mut [f32], v: &mut [f32], room: &mut Room);

    /// Stores moments of the elements from `start` on, all of them finite.
    fn encode(&mut self, start: usize, m: &[f32], v: &[f32], room: &mut Room);
}

/// A visit to every element of a run, which is part of one chunk.
pub(crate) struct BlockVisit<'a, C> {
    pub(crate) run: Run<'a>,
    pub(crate) codec: C,
}

/// What a unit is and becomes.
struct Unit {
    m0: Scratch,
    v0: Scratch,
    p: Scratch,
    m: Scratch,
    v: Scratch,
    room: Room,
}

impl Room {
    #[inline(always)]
    pub(crate) fn new() -> Room {
        Room {
            uniforms: [[0.0; BLOCK_MAX]; 2],
            stored: [0.0; BLOCK_MAX],
            roots: [0.0; BLOCK_MAX],
            codes: [0; BLOCK_MAX],
        }
    }
}

impl<C: BlockCodec> Kernel for BlockVisit<'_, &mut C> {
    type Output = Found;

    #[inline(always)]
    fn run(mut self) -> Found {
        let mut unit = Unit {
            m0: [0.0; BLOCK_MAX],
            v0: [0.0; BLOCK_MAX],
            p: [0.0; BLOCK_MAX],
            m: [0.0; BLOCK_MAX],
            v: [0.0; BLOCK_MAX],
            room: Room::new(),
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
            self.visit_unit(start, count, &mut unit, &mut counts);
        }
        Found { counts, square_sum: squares.map(SquareLanes::fold) }
    }
}

impl<C: BlockCodec> BlockVisit<'_, &mut C> {
    #[inline(always)]
    fn visit_unit(&mut self, start: usize, count: usize, unit: &mut Unit, counts: &mut Counts) {
        let (m0, v0) = (&mut unit.m0[..count], &mut unit.v0[..count]);
        self.codec.decode(start, m0, v0, &mut unit.room);
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
                }
            }
        }
        parameters.copy_from_slice(&unit.p[..count]);
        self.codec.encode(start, &unit.m[..count], &unit.v[..count], &mut unit.room);
    }

    /// What the elements become, and how many of them are finite.
    #[inline(always)]
    fn compute(&self, start: usize, count: usize, unit: &mut Unit) -> u32 {
        let s = self.run.scalars;
        let parameters = &self.run.parameters[start..start + count];
        let gradients = &self.run.gradients[start..start + count];
        let (m0, v0) = (&unit.m0[..count], &unit.v0[..count]);
        let (p_new, m_new, v_new) =
            (&mut unit.p[..count], &mut unit.m[..count], &mut unit.v[..count]);
        let mut finite = 0;
        for i in 0..count {
            let g = gradients[i] * self.run.clip_scale;
            let m = s.beta1.mul_add(m0[i], s.one_minus_beta1 * g);
            let v = s.beta2.mul_add(v0[i], (s.one_minus_beta2 * g) * g);
            let direction = m / v.sqrt().mul_add(s.rms_scale, s.eps);
            let p = if C::DECAYS_LAST {
                (-s.step).mul_add(direction, parameters[i]) * s.decay
            } else {
                (-s.step).mul_add(direction, parameters[i] * s.decay)
            };
            p_new[i] = p;
            m_new[i] = m;
            v_new[i] = v;
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
