//! Blocks of `block8`: 8-bit codes of two maps, an f32 absmax per block.

use formats::Maps;
use formats::dynamic_map::Quantizer;

use super::arrays::Block8Mut;
use super::blocks::{BlockCodec, MomentRuns, Room, at_least_ratio};
use crate::scalars::BlockScalars;
use crate::simd::Vectors;

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
    fn decode<V: Vectors>(&self, start: usize, m: &mut [f32], v: &mut [f32], _room: &mut Room<'_>) {
        let block = self.block();
        for from in (0..m.len()).step_by(block) {
            let to = (from + block).min(m.len());
            let number = (start + from) / block;
            let m_codes = &self.arrays.m_codes[start + from..start + to];
            let v_codes = &self.arrays.v_codes[start + from..start + to];
            let (m_absmax, v_absmax) = (self.arrays.m_absmax[number], self.arrays.v_absmax[number]);
            look_up::<V>(&self.maps.first, m_codes, m_absmax, &mut m[from..to]);
            look_up::<V>(&self.maps.second, v_codes, v_absmax, &mut v[from..to]);
        }
        if REPAIRED {
            for (m, v) in m.iter().zip(v) {
                *v = at_least_ratio(*m, *v, self.scalars.inverse_ratio_max_before);
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>) {
        let MomentRuns { m, v, .. } = moments;
        let block = self.block();
        for from in (0..m.len()).step_by(block) {
            let to = (from + block).min(m.len());
            let number = (start + from) / block;
            let m_codes = &mut self.arrays.m_codes[start + from..start + to];
            let v_codes = &mut self.arrays.v_codes[start + from..start + to];
            let m_absmax = quantize::<V>(&self.maps.first, &m[from..to], m_codes, room);
            let v_absmax = quantize::<V>(&self.maps.second, &v[from..to], v_codes, room);
            self.arrays.m_absmax[number] = m_absmax;
            self.arrays.v_absmax[number] = v_absmax;
        }
    }
}

#[inline(always)]
fn look_up<V: Vectors>(quantizer: &Quantizer, codes: &[u8], absmax: f32, values: &mut [f32]) {
    V::look_up_256(&quantizer.map, codes, values);
    for value in values {
        *value *= absmax;
    }
}

/// The codes of a block; returns its absmax.
#[inline(always)]
fn quantize<V: Vectors>(
    quantizer: &Quantizer,
    values: &[f32],
    codes: &mut [u8],
    room: &mut Room<'_>,
) -> f32 {
    // Magnitudes order as their bits do, and a maximum of integers vectorises.
    let bits = values.iter().map(|value| value.to_bits() & 0x7FFF_FFFF);
    let absmax = f32::from_bits(bits.fold(0, u32::max));
    if absmax == 0.0 {
        codes.fill(quantizer.code_of_zero());
        return absmax;
    }
    match (quantizer.is_fine(), quantizer.is_signed()) {
        (true, true) => look_codes_up::<V, true>(quantizer, (values, absmax), codes, room),
        (true, false) => look_codes_up::<V, false>(quantizer, (values, absmax), codes, room),
        (false, _) => {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = quantizer.bisected(value / absmax);
            }
        }
    }
    absmax
}

#[inline(always)]
fn look_codes_up<V: Vectors, const SIGNED: bool>(
    quantizer: &Quantizer,
    (values, absmax): (&[f32], f32),
    codes: &mut [u8],
    room: &mut Room<'_>,
) {
    let words = &mut room.codes[..values.len()];
    let addends = &mut room.addends[..values.len()];
    for ((word, addend), value) in words.iter_mut().zip(&mut *addends).zip(values) {
        (*word, *addend) = Quantizer::cell::<SIGNED>(value / absmax);
    }
    V::look_up_4096(quantizer.cells(), words);
    for ((code, word), addend) in codes.iter_mut().zip(words).zip(addends) {
        *code = (word.wrapping_add(*addend) >> 24) as u8;
    }
}
