//! Blocks of `block8`: 8-bit codes of two maps, an f32 absmax per block.

use formats::dynamic_map::Quantizer;
use formats::map_lines::Lines;

use super::arrays::Block8Mut;
use super::blocks::{BlockCodec, MomentRuns, Room, Span};
use super::maps::{MapTable, MapTables};
use super::tiles::{self, Fours, TILE, WordFours, block_of, of_four};
use crate::scalars::BlockScalars;
use crate::simd::{Table, Vectors};

/// The codec of a run of blocks; `REPAIRED` says by which rules.
pub(crate) struct Block8Codec<'a, const REPAIRED: bool> {
    pub(crate) arrays: Block8Mut<'a>,
    pub(crate) maps: &'a MapTables,
    pub(crate) scalars: BlockScalars,
}

impl<const REPAIRED: bool> BlockCodec for Block8Codec<'_, REPAIRED> {
    const DECAYS_LAST: bool = !REPAIRED;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.block as usize
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, span: Span, m: &mut [f32], v: &mut [f32], _room: &mut Room<'_>) {
        let (block, MapTables { first, second, .. }) = (self.block(), self.maps);
        let inverse_ratio_max = V::splat(self.scalars.inverse_ratio_max_before);
        let (m_tiles, v_tiles) = (m.as_chunks_mut::<TILE>().0, v.as_chunks_mut::<TILE>().0);
        for (number, (m, v)) in m_tiles.iter_mut().zip(v_tiles).enumerate() {
            let from = span.start + number * TILE;
            let m_absmax = V::splat(self.arrays.m_absmax[block_of(from, block)]);
            let v_absmax = V::splat(self.arrays.v_absmax[block_of(from, block)]);
            let m_codes = tiles::bytes(self.arrays.m_codes, from);
            let v_codes = tiles::bytes(self.arrays.v_codes, from);
            let m_entries = V::look_up_256(&first.entries, &m_codes);
            let v_entries = V::look_up_256(&second.entries, &v_codes);
            let stores = m.as_chunks_mut::<16>().0.iter_mut().zip(v.as_chunks_mut::<16>().0);
            for ((m, v), (m_entry, v_entry)) in stores.zip(m_entries.into_iter().zip(v_entries)) {
                let (m_own, v_own) = (V::mul(m_entry, m_absmax), V::mul(v_entry, v_absmax));
                V::store(m_own, m);
                // Where exact moments could have m beside it.
                let root = V::mul(m_own, inverse_ratio_max);
                V::store(if REPAIRED { V::max(V::mul(root, root), v_own) } else { v_own }, v);
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, _room: &mut Room<'_>) {
        let MomentRuns { m, v, .. } = moments;
        let (block, MapTables { maps, first, second }) = (self.block(), self.maps);
        for from in tiles::steps(0, m.len(), block) {
            let to = (from + block).min(m.len());
            let number = block_of(start + from, block);
            let m_codes = &mut self.arrays.m_codes[start + from..start + to];
            let v_codes = &mut self.arrays.v_codes[start + from..start + to];
            self.arrays.m_absmax[number] =
                quantize::<V>((&maps.first, first), &m[from..to], m_codes);
            self.arrays.v_absmax[number] =
                quantize::<V>((&maps.second, second), &v[from..to], v_codes);
        }
    }
}

/// The codes of a block; returns its absmax.
#[inline(always)]
fn quantize<V: Vectors>(
    (quantizer, table): (&Quantizer, &MapTable),
    values: &[f32],
    codes: &mut [u8],
) -> f32 {
    let absmax = largest::<V>(values);
    match quantizer.lines() {
        _ if absmax == 0.0 => codes.fill(quantizer.code_of_zero()),
        Some(lines) if V::FUSES && absmax.is_finite() => {
            if quantizer.is_signed() {
                guessed::<V, true>((lines, &table.thresholds), (values, absmax), codes);
            } else {
                guessed::<V, false>((lines, &table.thresholds), (values, absmax), codes);
            }
        }
        _ => {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = quantizer.code(value / absmax);
            }
        }
    }
    absmax
}

/// The largest magnitude, or NaN. Magnitudes order as their bits do.
#[inline(always)]
fn largest<V: Vectors>(values: &[f32]) -> f32 {
    let magnitude = V::words(0x7FFF_FFFF);
    let mut largest = [V::words(0); 4];
    for from in tiles::steps(0, values.len(), TILE) {
        let to = (from + TILE).min(values.len());
        let runs = tiles::load_runs::<V>(values, from, to);
        for (largest, run) in largest.iter_mut().zip(runs) {
            *largest = V::larger(*largest, V::and(V::bits(run), magnitude));
        }
    }
    let [a, b, c, d] = largest;
    f32::from_bits(V::largest(V::larger(V::larger(a, b), V::larger(c, d))))
}

/// Codes as `formats::map_lines` guesses and settles them.
#[inline(always)]
fn guessed<V: Vectors, const SIGNED: bool>(
    (lines, thresholds): (&Lines, &Table),
    (values, absmax): (&[f32], f32),
    codes: &mut [u8],
) {
    let absmax = V::splat(absmax);
    for from in tiles::steps(0, values.len(), TILE) {
        let to = (from + TILE).min(values.len());
        let runs = tiles::load_runs::<V>(values, from, to);
        let quotients: Fours<V> = of_four!(|k| V::div(runs[k], absmax));
        let guesses: WordFours<V> = of_four!(|k| guess::<V, SIGNED>(lines, quotients[k]));
        let settled = V::settle(thresholds, guesses, quotients);
        tiles::store_bytes(settled, codes, from, to - from);
    }
}

#[inline(always)]
fn guess<V: Vectors, const SIGNED: bool>(lines: &Lines, x: V::Floats) -> V::Words {
    let bits = V::bits(x);
    let magnitude = if SIGNED { V::float(V::and(bits, V::words(0x7FFF_FFFF))) } else { x };
    let mut lowest = V::splat(255.0);
    for (&slope, &start) in lines.slopes.iter().zip(&lines.starts) {
        lowest = V::min(V::fused(V::splat(slope), magnitude, V::splat(start)), lowest);
    }
    let guess = V::whole(lowest);
    if !SIGNED {
        return guess;
    }
    // Of numbers below zero 253 - guess, or 0: the guess turned over is -1 - guess.
    let sign = V::sar::<31>(bits);
    let bounded = V::smaller(guess, V::minus(V::words(255), V::and(sign, V::words(2))));
    V::plus(V::xor(bounded, sign), V::and(sign, V::words(254)))
}
