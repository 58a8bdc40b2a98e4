//! Blocks of `block8`: 8-bit codes of two maps, an f32 absmax per block.

use formats::Maps;
use formats::dynamic_map::Quantizer;

use super::arrays::Block8Mut;
use super::blocks::{BlockCodec, Room, Scratch, at_least_ratio};
use crate::scalars::BlockScalars;

/// The codec of a run of blocks; `REPAIRED` says by which rules.
pub(crate) struct Block8Codec<'a, const REPAIRED: bool> {
    pub(crate) arrays: Block8Mut<'a>,
    pub(crate) maps: &'a Maps,
    pub(crate) scalars: BlockScalars,
}

impl<const REPAIRED: bool> BlockCodec for Block8Codec<'_, REPAIRED> {
    const DECAYS_LAST: bool = !REPAIRED;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.block as usize
    }

    #[inline(always)]
    fn decode(&self, start: usize, m: &mut [f32], v: &mut [f32], _room: &mut Room) {
        let block = self.block();
        for from in (0..m.len()).step_by(block) {
            let to = (from + block).min(m.len());
            let number = (start + from) / block;
            let m_codes = &self.arrays.m_codes[start + from..start + to];
            let v_codes = &self.arrays.v_codes[start + from..start + to];
            let (m_absmax, v_absmax) = (self.arrays.m_absmax[number], self.arrays.v_absmax[number]);
            look_up(&self.maps.first, m_codes, m_absmax, &mut m[from..to]);
            look_up(&self.maps.second, v_codes, v_absmax, &mut v[from..to]);
        }
        if REPAIRED {
            for (m, v) in m.iter().zip(v) {
                *v = at_least_ratio(*m, *v, self.scalars.inverse_ratio_max_before);
            }
        }
    }

    #[inline(always)]
    fn encode(&mut self, start: usize, m: &[f32], v: &[f32], room: &mut Room) {
        let block = self.block();
        for from in (0..m.len()).step_by(block) {
            let to = (from + block).min(m.len());
            let number = (start + from) / block;
            let m_codes = &mut self.arrays.m_codes[start + from..start + to];
            let v_codes = &mut self.arrays.v_codes[start + from..start + to];
            let scaled = &mut room.stored;
            let m_absmax = quantize(&self.maps.first, &m[from..to], m_codes, scaled);
            let v_absmax = quantize(&self.maps.second, &v[from..to], v_codes, scaled);
            self.arrays.m_absmax[number] = m_absmax;
            self.arrays.v_absmax[number] = v_absmax;
        }
    }
}

#[inline(always)]
fn look_up(quantizer: &Quantizer, codes: &[u8], absmax: f32, values: &mut [f32]) {
    for (value, &code) in values.iter_mut().zip(codes) {
        *value = quantizer.map[code as usize] * absmax;
    }
}

/// The codes of a block; returns its absmax.
#[inline(always)]
fn quantize(quantizer: &Quantizer, values: &[f32], codes: &mut [u8], scaled: &mut Scratch) -> f32 {
    // Magnitudes order as their bits do, and a maximum of integers vectorises.
    let bits = values.iter().map(|value| value.to_bits() & 0x7FFF_FFFF);
    let absmax = f32::from_bits(bits.fold(0, u32::max));
    if absmax == 0.0 {
        codes.fill(quantizer.code_of_zero());
        return absmax;
    }
    let scaled = &mut scaled[..values.len()];
    for (scaled, value) in scaled.iter_mut().zip(values) {
        *scaled = value / absmax;
    }
    if quantizer.is_fine() {
        for (code, &x) in codes.iter_mut().zip(&*scaled) {
            *code = quantizer.code_by_table(x);
        }
    } else {
        for (code, &x) in codes.iter_mut().zip(&*scaled) {
            *code = quantizer.code(x);
        }
    }
    absmax
}
