//! Blocks of `n4l4`: 4-bit codes of the normalised first moment, second moments on 4-bit grids of
//! logarithms.

use formats::half_floats::bf16_to_f32;
use formats::n4l4::{self, V_BITS};

use super::arrays::N4l4Mut;
use super::blocks::{BlockCodec, Room, within};
use super::grid;
use super::random::BlockRandom;
use crate::scalars::BlockScalars;

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
    fn decode(&self, start: usize, m: &mut [f32], v: &mut [f32], room: &mut Room) {
        let (m_block, v_block) = (self.arrays.options.m_block as usize, self.block());
        let ratio_max = self.scalars.ratio_max_before;
        for from in (0..m.len()).step_by(v_block) {
            let to = (from + v_block).min(m.len());
            let number = (start + from) / v_block;
            let ends = &self.arrays.v_endpoints;
            let codes = &self.arrays.codes[start + from..start + to];
            let v_codes = &mut room.codes[..codes.len()];
            for (v_code, &code) in v_codes.iter_mut().zip(codes) {
                *v_code = u32::from(code >> 4);
            }
            let roots = &mut room.roots[from..to];
            let ends = [ends[2 * number], ends[2 * number + 1]];
            grid::decode::<true>(ends, V_BITS, v_codes, &mut v[from..to], roots);
            for from in (from..to).step_by(m_block) {
                let to = (from + m_block).min(to);
                let unit = n4l4::unit(self.arrays.m_absmax[(start + from) / m_block]);
                let codes = &self.arrays.codes[start + from..start + to];
                for ((m, &r), &code) in m[from..to].iter_mut().zip(&room.roots[from..to]).zip(codes)
                {
                    let q = n4l4::integer(u32::from(code)) as f32 * unit;
                    *m = within(q * r, ratio_max * r);
                }
            }
        }
    }

    #[inline(always)]
    fn encode(&mut self, start: usize, m: &[f32], v: &[f32], room: &mut Room) {
        let [first, second] = &mut room.uniforms;
        let (first, second) = (&mut first[..m.len()], &mut second[..m.len()]);
        self.random.fill::<true>(start, first, second);
        if self.arrays.options.is_nearest {
            first.fill(0.5);
        }
        let (m_block, v_block) = (self.arrays.options.m_block as usize, self.block());
        for from in (0..m.len()).step_by(v_block) {
            let to = (from + v_block).min(m.len());
            let number = (start + from) / v_block;
            let v_codes = &mut room.codes[..to - from];
            let (stored, roots) = (&mut room.stored[..to - from], &mut room.roots[..to - from]);
            let inputs = (&v[from..to], &second[from..to]);
            let ends = grid::encode::<true>(V_BITS, inputs, v_codes, stored, roots);
            [self.arrays.v_endpoints[2 * number], self.arrays.v_endpoints[2 * number + 1]] = ends;
            for offset in (0..to - from).step_by(m_block) {
                let end = (offset + m_block).min(to - from);
                let range = from + offset..from + end;
                let absmax = self.encode_first(
                    start + from + offset,
                    &m[range.clone()],
                    &v_codes[offset..end],
                    &roots[offset..end],
                    &first[range],
                );
                self.arrays.m_absmax[(start + from + offset) / m_block] = absmax;
            }
        }
    }
}

impl N4l4Codec<'_> {
    /// The codes of one block of first moments, packed with those of the second; returns the absmax.
    #[inline(always)]
    fn encode_first(
        &mut self,
        start: usize,
        m: &[f32],
        v_codes: &[u32],
        roots: &[f32],
        uniforms: &[f32],
    ) -> u16 {
        let mut quotients = [0.0; 256];
        let quotients = &mut quotients[..m.len()];
        let mut absmax = 0;
        for ((q, &m), &r) in quotients.iter_mut().zip(m).zip(roots) {
            let bounded = within(m / r, self.scalars.ratio_max);
            *q = if r == 0.0 { 0.0 } else { bounded };
            absmax = absmax.max(q.to_bits() & 0x7FFF_FFFF);
        }
        let absmax = n4l4::stored_absmax(f32::from_bits(absmax));
        debug_assert!(bf16_to_f32(absmax).is_finite());
        let inverse_unit = n4l4::inverse_unit(absmax);
        let packed = &mut self.arrays.codes[start..start + m.len()];
        for (((packed, &q), &v_code), &uniform) in
            packed.iter_mut().zip(&*quotients).zip(v_codes).zip(uniforms)
        {
            *packed = (n4l4::code(q, inverse_unit, uniform) | v_code << 4) as u8;
        }
        absmax
    }
}
