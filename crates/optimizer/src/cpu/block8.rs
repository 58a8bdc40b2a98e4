//! Blocks of `block8`: 8-bit codes of two maps, an f32 absmax per block.

use formats::dynamic_map::Quantizer;
use formats::map_lines::Lines;

use super::ahead::Ahead;
use super::arrays::Block8Mut;
use super::blocks::{BlockCodec, Kept, Ready, Room, Span, TileMoments};
use super::kernel::PREFETCH_ELEMENTS;
use super::maps::{MapTable, MapTables};
use super::tiles::{self, Fours, Numbers, TILE, Tile, WordFours, block_of, blocks_of, of_four};
use crate::scalars::BlockScalars;
use crate::simd::{Table, Vectors, prefetch};

/// The codec of a run of blocks; `REPAIRED` says by which rules.
pub(crate) struct Block8Codec<'a, const REPAIRED: bool> {
    pub(crate) arrays: Block8Mut<'a>,
    pub(crate) maps: &'a MapTables,
    pub(crate) scalars: BlockScalars,
}

impl<const REPAIRED: bool> BlockCodec for Block8Codec<'_, REPAIRED> {
    const DECAYS_LAST: bool = !REPAIRED;
    const BY_FOURS: bool = false;
    // Blocks share nothing, and what is asked for ahead needs the nearest cache as well.
    const TILES: usize = 8;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.block as usize
    }

    #[inline(always)]
    fn tile_block(&self) -> usize {
        TILE
    }

    #[inline(always)]
    fn prepare<V: Vectors>(&self, _: Span, _: &mut Room<'_>) {}

    #[inline(always)]
    fn decode<V: Vectors>(&self, start: usize, tile: Tile, _: Ready<'_>) -> [Fours<V>; 2] {
        let (at, MapTables { first, second, .. }) = (start + tile.from, self.maps);
        prefetch(self.arrays.m_codes, at + PREFETCH_ELEMENTS);
        prefetch(self.arrays.v_codes, at + PREFETCH_ELEMENTS);
        let number = block_of(at, self.block());
        let m_absmax = V::splat(self.arrays.m_absmax[number]);
        let v_absmax = V::splat(self.arrays.v_absmax[number]);
        let m = V::look_up_256(&first.entries, tiles::bytes(self.arrays.m_codes, at, &mut None));
        let v = V::look_up_256(&second.entries, tiles::bytes(self.arrays.v_codes, at, &mut None));
        let m: Fours<V> = of_four!(|k| V::mul(m[k], m_absmax));
        let inverse_ratio_max = V::splat(self.scalars.inverse_ratio_max_before);
        let v: Fours<V> = of_four!(|k| {
            let own = V::mul(v[k], v_absmax);
            // Where exact moments could have m beside it.
            let root = V::mul(m[k], inverse_ratio_max);
            if REPAIRED { V::max(V::mul(root, root), own) } else { own }
        });
        [m, v]
    }

    /// Moments, and bits of which the largest one is that of their magnitudes.
    #[inline(always)]
    fn keep<V: Vectors>(&self, moments: TileMoments<V>, to: Kept<'_>) {
        let TileMoments { m, v, .. } = moments;
        tiles::put::<V>(m, to.first);
        tiles::put::<V>(v, to.second);
        let magnitude = V::words(0x7FFF_FFFF);
        let [m_largest, v_largest] = to.extent;
        let m_bits: WordFours<V> = of_four!(|k| V::and(V::bits(m[k]), magnitude));
        let v_bits: WordFours<V> = of_four!(|k| V::and(V::bits(v[k]), magnitude));
        V::store(V::float(tiles::larger::<V>(m_bits)), m_largest);
        V::store(V::float(tiles::larger::<V>(v_bits)), v_largest);
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, Span { start, count }: Span, room: &mut Room<'_>) {
        let (block, MapTables { maps, first, second }) = (self.block(), self.maps);
        let Room { first: m, second: v, extents, ahead, .. } = room;
        for from in tiles::steps(0, count, block) {
            let to = (from + block).min(count);
            let own = block_of(from, TILE)..blocks_of(to, TILE);
            let (mut m_largest, mut v_largest) = (V::words(0), V::words(0));
            for [m, v] in &extents[own.clone()] {
                m_largest = V::larger(m_largest, V::bits(V::load(m)));
                v_largest = V::larger(v_largest, V::bits(V::load(v)));
            }
            let number = block_of(start + from, block);
            let m_codes = &mut self.arrays.m_codes[start + from..start + to];
            let v_codes = &mut self.arrays.v_codes[start + from..start + to];
            let m_absmax = f32::from_bits(V::largest(m_largest));
            let v_absmax = f32::from_bits(V::largest(v_largest));
            self.arrays.m_absmax[number] = m_absmax;
            self.arrays.v_absmax[number] = v_absmax;
            let (m, v) = ((&m[own.clone()], m_absmax), (&v[own], v_absmax));
            quantize::<V>((&maps.first, first), m, m_codes, ahead);
            quantize::<V>((&maps.second, second), v, v_codes, ahead);
        }
    }
}

/// The codes of a block, given its numbers and the largest magnitude, or NaN.
#[inline(always)]
fn quantize<V: Vectors>(
    (quantizer, table): (&Quantizer, &MapTable),
    (values, absmax): (&[Numbers], f32),
    codes: &mut [u8],
    ahead: &mut Ahead,
) {
    match quantizer.lines() {
        _ if absmax == 0.0 => codes.fill(quantizer.code_of_zero()),
        Some(lines) if V::FUSES && absmax.is_finite() => {
            let of = (lines, &table.thresholds);
            if quantizer.is_signed() {
                guessed::<V, true>(of, (values, absmax), codes, ahead);
            } else {
                guessed::<V, false>(of, (values, absmax), codes, ahead);
            }
        }
        _ => {
            for (code, value) in codes.iter_mut().zip(values.as_flattened()) {
                *code = quantizer.code(value / absmax);
            }
        }
    }
}

/// Codes as `formats::map_lines` guesses and settles them.
#[inline(always)]
fn guessed<V: Vectors, const SIGNED: bool>(
    (lines, thresholds): (&Lines, &Table),
    (values, absmax): (&[Numbers], f32),
    codes: &mut [u8],
    ahead: &mut Ahead,
) {
    let absmax = V::splat(absmax);
    let (whole, rest) = codes.as_chunks_mut::<TILE>();
    let mut last = [0; TILE];
    for (number, own) in values.iter().enumerate() {
        ahead.ask();
        let own = tiles::get::<V>(own);
        let quotients: Fours<V> = of_four!(|k| V::div(own[k], absmax));
        let guesses: WordFours<V> = of_four!(|k| guess::<V, SIGNED>(lines, quotients[k]));
        let to = whole.get_mut(number).unwrap_or(&mut last);
        V::settle(thresholds, guesses, quotients, SIGNED, to);
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

/// The guess of a magnitude.
#[inline(always)]
fn guess<V: Vectors, const SIGNED: bool>(lines: &Lines, x: V::Floats) -> V::Words {
    let magnitude = if SIGNED { V::float(V::and(V::bits(x), V::words(0x7FFF_FFFF))) } else { x };
    let mut lowest = V::splat(255.0);
    for (&slope, &start) in lines.slopes.iter().zip(&lines.starts) {
        lowest = V::min(V::fused(V::splat(slope), magnitude, V::splat(start)), lowest);
    }
    V::whole(lowest)
}
