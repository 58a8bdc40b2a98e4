//! Blocks of `n4l4`: 4-bit codes of the normalised first moment, roots of second moments on 4-bit grids.

use formats::half_floats::bf16_to_f32;
use formats::n4l4::{self, Extent, Grid, ROOT_ZERO_MAX};

use super::arrays::N4l4Mut;
use super::blocks::{BlockCodec, MomentRuns, Room};
use super::random::BlockRandom;
use crate::scalars::BlockScalars;
use crate::simd::Vectors;

/// The codec of a run of blocks.
pub(crate) struct N4l4Codec<'a> {
    pub(crate) arrays: N4l4Mut<'a>,
    pub(crate) scalars: BlockScalars,
    pub(crate) random: BlockRandom,
}

impl BlockCodec for N4l4Codec<'_> {
    const DECAYS_LAST: bool = false;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.v_block as usize
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, start: usize, m: &mut [f32], v: &mut [f32], _room: &mut Room<'_>) {
        let (m_block, v_block) = (self.arrays.options.m_block as usize, self.block());
        for from in (0..m.len()).step_by(v_block) {
            let to = (from + v_block).min(m.len());
            let number = (start + from) / v_block;
            let ends = &self.arrays.r_endpoints;
            let grid = Grid::new([ends[2 * number], ends[2 * number + 1]]);
            for from in (from..to).step_by(m_block) {
                let to = (from + m_block).min(to);
                let unit = bf16_to_f32(self.arrays.m_units[(start + from) / m_block]);
                let codes = &self.arrays.codes[start + from..start + to];
                for ((m, v), &code) in m[from..to].iter_mut().zip(&mut v[from..to]).zip(codes) {
                    let r = grid.root(u32::from(code >> 4));
                    *m = (n4l4::multiple(u32::from(code)) * unit) * r;
                    *v = r * r;
                }
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>) {
        let MomentRuns { m, r, .. } = moments;
        let [dithers, uniforms] = &mut room.uniforms;
        let (dithers, uniforms) = (&mut dithers[..m.len()], &mut uniforms[..m.len()]);
        self.random.fill::<true>(start, dithers, uniforms);
        if self.arrays.options.is_nearest {
            dithers.fill(0.5);
        }
        let (m_block, v_block) = (self.arrays.options.m_block as usize, self.block());
        for from in (0..m.len()).step_by(v_block) {
            let to = (from + v_block).min(m.len());
            let number = (start + from) / v_block;
            let r = &r[from..to];
            let endpoints = endpoints(r);
            [self.arrays.r_endpoints[2 * number], self.arrays.r_endpoints[2 * number + 1]] =
                endpoints;
            let codes = &mut room.codes[..to - from];
            let quotients = &mut room.stored[..to - from];
            encode_roots(endpoints, (r, &m[from..to], &uniforms[from..to]), codes, quotients);
            for offset in (0..to - from).step_by(m_block) {
                let end = (offset + m_block).min(to - from);
                let (first, last) = (start + from + offset, start + from + end);
                self.arrays.m_units[first / m_block] = encode_first(
                    self.scalars.ratio_max,
                    (&quotients[offset..end], &dithers[from + offset..from + end]),
                    &codes[offset..end],
                    &mut self.arrays.codes[first..last],
                );
            }
        }
    }
}

#[inline(always)]
fn endpoints(roots: &[f32]) -> [u16; 2] {
    let (mut least, mut extent) = (u32::MAX, Extent::NONE);
    for &root in roots {
        extent = extent.with(root);
        least = least.min(root.to_bits());
    }
    extent.endpoints(least <= ROOT_ZERO_MAX.to_bits())
}

/// The codes of second moments, and the normalised first moments over what they store.
#[inline(always)]
fn encode_roots(
    endpoints: [u16; 2],
    (roots, m, uniforms): (&[f32], &[f32], &[f32]),
    codes: &mut [u32],
    quotients: &mut [f32],
) {
    let grid = Grid::new(endpoints);
    let inputs = roots.iter().zip(m).zip(uniforms);
    for (((&root, &m), &uniform), (code, q)) in inputs.zip(codes.iter_mut().zip(quotients)) {
        let (own, stored) = grid.code(root, uniform);
        *code = own;
        *q = if stored == 0.0 { 0.0 } else { m * (1.0 / stored) };
    }
}

/// The codes of one block of first moments, packed with those of the second; returns the unit.
#[inline(always)]
fn encode_first(
    ratio_max: f32,
    (quotients, dithers): (&[f32], &[f32]),
    v_codes: &[u32],
    packed: &mut [u8],
) -> u16 {
    let bits = quotients.iter().map(|q| q.to_bits() & 0x7FFF_FFFF);
    let absmax = f32::from_bits(bits.fold(0, u32::max));
    let unit = n4l4::stored_unit(absmax, ratio_max);
    let inverse_unit = n4l4::inverse_unit(unit);
    for (((packed, &q), &v_code), &dither) in
        packed.iter_mut().zip(quotients).zip(v_codes).zip(dithers)
    {
        *packed = (n4l4::code(q, inverse_unit, dither) | v_code << 4) as u8;
    }
    unit
}
