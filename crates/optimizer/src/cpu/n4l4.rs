//! Blocks of `n4l4`: 4-bit codes of the normalised first moment, roots of second moments on 4-bit grids.

use formats::half_floats::bf16_to_f32;
use formats::n4l4::{self, CODE_OF_ZERO, Extent, Grid, ROOT_ZERO_MAX};

use super::arrays::N4l4Mut;
use super::blocks::{BlockCodec, MomentRuns, Room, Span};
use super::random::BlockRandom;
use super::tiles::{
    self, Fours, LANES, TILE, WordFours, block_of, blocks_of, extent, of_four, tile_of,
};
use crate::scalars::BlockScalars;
use crate::simd::Vectors;

/// The codec of a run of blocks.
pub(crate) struct N4l4Codec<'a> {
    pub(crate) arrays: N4l4Mut<'a>,
    pub(crate) scalars: BlockScalars,
    pub(crate) random: BlockRandom,
}

/// Numbers of one register.
const RUN: usize = 16;
/// A sum with this number is rounded to an integer, which its low bits then count.
const COUNTER: f32 = 8_388_608.0;

impl BlockCodec for N4l4Codec<'_> {
    const DECAYS_LAST: bool = false;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.v_block as usize
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, span: Span, m: &mut [f32], v: &mut [f32], _room: &mut Room<'_>) {
        let (m_block, v_block) = (self.arrays.options.m_block as usize, self.block());
        let Span { start, count } = span;
        for from in tiles::steps(0, count, v_block) {
            let number = block_of(start + from, v_block);
            let ends = &self.arrays.r_endpoints;
            let roots = roots::<V>(Grid::new([ends[2 * number], ends[2 * number + 1]]), 0);
            let to = (from + v_block).min(count);
            for from in tiles::steps(from, to, m_block) {
                let unit = bf16_to_f32(self.arrays.m_units[block_of(start + from, m_block)]);
                let codes = V::counted(V::load_words(&LANES));
                let multiples = V::sub(codes, V::splat(CODE_OF_ZERO as f32));
                let quotients = V::mul(multiples, V::splat(unit));
                let to = (from + m_block).min(to);
                for at in tiles::steps(from, to, TILE) {
                    let end = (at + TILE).min(to).next_multiple_of(RUN);
                    let codes = tiles::bytes::<TILE>(self.arrays.codes, start + at);
                    let runs = m[at..end].as_chunks_mut::<RUN>().0.iter_mut();
                    let runs = runs.zip(v[at..end].as_chunks_mut::<RUN>().0);
                    for ((m, v), codes) in runs.zip(codes.as_chunks().0) {
                        let codes = V::bytes(codes);
                        let r = V::look_up(roots, V::shr::<4>(codes));
                        V::store(V::mul(V::look_up(quotients, codes), r), m);
                        V::store(V::mul(r, r), v);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, start: usize, moments: MomentRuns<'_>, room: &mut Room<'_>) {
        let first = block_of(start, self.block());
        self.encode_endpoints::<V>(first, moments.r, room.tables);
        self.encode_second::<V>(start, moments, room);
        let first = block_of(start, self.arrays.options.m_block as usize);
        self.encode_units(first, moments.m.len(), room);
        self.encode_first::<V>(start, moments.m.len(), room);
    }
}

/// Each of these goes over a whole unit, so that what one block waits for, others do meanwhile.
impl N4l4Codec<'_> {
    /// The endpoints of all blocks, from the one with this number on, and their levels.
    #[inline(always)]
    fn encode_endpoints<V: Vectors>(
        &mut self,
        first: usize,
        roots: &[f32],
        tables: &mut [[f32; RUN]],
    ) {
        let (block, blocks) = (self.block(), blocks_of(roots.len(), self.block()));
        let ends = self.arrays.r_endpoints[2 * first..].as_chunks_mut::<2>().0;
        for (from, ends) in tiles::steps(0, roots.len(), block).zip(&mut *ends) {
            *ends = endpoints::<V>(&roots[from..(from + block).min(roots.len())]);
        }
        for (&ends, tables) in ends[..blocks].iter().zip(tables.as_chunks_mut::<TABLES>().0) {
            fill_levels::<V>(Grid::new(ends), tables);
        }
    }

    /// Leaves codes of second moments, quotients and dithers, and in units the largest quotient of each
    /// block of first moments.
    #[inline(always)]
    fn encode_second<V: Vectors>(
        &mut self,
        start: usize,
        MomentRuns { m, r, .. }: MomentRuns<'_>,
        room: &mut Room<'_>,
    ) {
        let (options, v_block) = (self.arrays.options, self.block());
        let m_block = options.m_block as usize;
        let tile = tile_of(m_block);
        let magnitude = V::words(0x7FFF_FFFF);
        for (number, from) in tiles::steps(0, m.len(), m_block).enumerate() {
            let to = (from + m_block).min(m.len());
            let levels = Levels::<V>::load(&room.tables.as_chunks().0[block_of(from, v_block)]);
            let mut largest = V::words(0);
            for at in tiles::steps(from, to, tile) {
                let end = (at + tile).min(to);
                let (own_m, own_r) = (tiles::load::<V>(m, at, end), tiles::load::<V>(r, at, end));
                let (uniforms, dithers) = self.random.both::<V>(start + at);
                let codes: WordFours<V> = of_four!(|k| levels.code(own_r[k], uniforms[k]));
                let mut quotients: Fours<V> =
                    of_four!(|k| V::mul(own_m[k], V::look_up(levels.inverses, codes[k])));
                if let Some(is_first) = tiles::first::<V>(end - at) {
                    // What stands in for others has drawn other numbers than the element itself.
                    quotients = of_four!(|k| V::choose(is_first[k], quotients[k], V::splat(0.0)));
                }
                for quotient in quotients {
                    largest = V::larger(largest, V::and(V::bits(quotient), magnitude));
                }
                let halves = [V::splat(0.5); 4];
                tiles::put::<V>(quotients, room.quotients, at, end);
                tiles::put::<V>(of_four!(|k| V::float(codes[k])), room.codes, at, end);
                let dithers = if options.is_nearest { halves } else { dithers };
                tiles::put::<V>(dithers, room.dithers, at, end);
            }
            room.units[number] = f32::from_bits(V::largest(largest));
        }
    }

    /// Stores the units of all blocks from the one with this number on, and leaves their inverses.
    #[inline(always)]
    fn encode_units(&mut self, first: usize, count: usize, room: &mut Room<'_>) {
        let blocks = blocks_of(count, self.arrays.options.m_block as usize);
        let stored = &mut self.arrays.m_units[first..first + blocks];
        for (stored, unit) in stored.iter_mut().zip(&mut room.units[..blocks]) {
            *stored = n4l4::stored_unit(*unit, self.scalars.ratio_max);
            *unit = n4l4::inverse_unit(*stored);
        }
    }

    /// Stores the codes of both.
    #[inline(always)]
    fn encode_first<V: Vectors>(&mut self, start: usize, count: usize, room: &mut Room<'_>) {
        let m_block = self.arrays.options.m_block as usize;
        let tile = tile_of(m_block);
        for at in tiles::steps(0, count, tile) {
            let end = (at + tile).min(count);
            let inverse_unit = V::splat(room.units[block_of(at, m_block)]);
            let quotients = tiles::get::<V>(room.quotients, at, end);
            let dithers = tiles::get::<V>(room.dithers, at, end);
            let codes = tiles::get::<V>(room.codes, at, end);
            let own: WordFours<V> = of_four!(|k| {
                let first = first_code::<V>(quotients[k], inverse_unit, dithers[k]);
                V::or(first, V::shl::<4>(V::bits(codes[k])))
            });
            let packed = V::to_four_words(tiles::packed::<V, 8>(own)).map(u32::to_le);
            let bytes: [u8; TILE] = bytemuck::cast(packed);
            tiles::store_bytes(bytes, self.arrays.codes, start + at, end - at);
        }
    }
}

/// Tables of a block.
const TABLES: usize = 4;

/// What the codes of a block of second moments stand for: squares of roots, how far the next square
/// is, what first moments are multiplied by (zero for a root of zero); and the grid itself.
#[inline(always)]
fn fill_levels<V: Vectors>(
    grid: Grid,
    [squares, widths, inverses, own]: &mut [[f32; RUN]; TABLES],
) {
    let (root, next) = (roots::<V>(grid, 0), roots::<V>(grid, 1));
    let square = V::mul(root, root);
    V::store(square, squares);
    V::store(V::sub(V::mul(next, next), square), widths);
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    V::store(V::choose(V::exceeds(root, zero), V::div(one, root), zero), inverses);
    // A block whose roots all count as zero has endpoints of zero.
    let has_zero = f32::from_bits(u32::from(grid.has_zero || grid.base == 0));
    [own[0], own[1], own[2]] = [f32::from_bits(grid.base), grid.inverse_step, has_zero];
}

/// The same in registers.
struct Levels<V: Vectors> {
    squares: V::Floats,
    widths: V::Floats,
    inverses: V::Floats,
    base: V::Words,
    inverse_step: V::Floats,
    /// Whether a root may count as zero.
    has_zero: bool,
}

impl<V: Vectors> Levels<V> {
    #[inline(always)]
    fn load([squares, widths, inverses, own]: &[[f32; RUN]; TABLES]) -> Levels<V> {
        Levels {
            squares: V::load(squares),
            widths: V::load(widths),
            inverses: V::load(inverses),
            base: V::words(own[0].to_bits()),
            inverse_step: V::splat(own[1]),
            has_zero: own[2].to_bits() != 0,
        }
    }

    /// As [`Grid::code`].
    #[inline(always)]
    fn code(&self, root: V::Floats, uniform: V::Floats) -> V::Words {
        let rounder = V::splat(n4l4::ROUNDER);
        let distance = V::counted(V::minus(V::bits(root), self.base));
        let position = V::sub(V::mul(distance, self.inverse_step), V::splat(0.5));
        let lower = V::minus(V::bits(V::add(position, rounder)), V::bits(rounder));
        let above = V::sub(V::mul(root, root), V::look_up(self.squares, lower));
        let is_upper = V::exceeds(above, V::mul(uniform, V::look_up(self.widths, lower)));
        let code = V::choose_words(is_upper, V::plus(lower, V::words(1)), lower);
        if !self.has_zero {
            return code;
        }
        V::choose_words(V::reaches(V::splat(ROOT_ZERO_MAX), root), V::words(0), code)
    }
}

/// As [`n4l4::code`].
#[inline(always)]
fn first_code<V: Vectors>(q: V::Floats, inverse_unit: V::Floats, dither: V::Floats) -> V::Words {
    let middle = V::add(dither, V::splat(CODE_OF_ZERO as f32 - 0.5));
    let position = V::add(V::mul(q, inverse_unit), middle);
    let position = V::min(V::max(position, V::splat(1.0)), V::splat(15.0));
    V::and(V::bits(V::add(position, V::splat(COUNTER))), V::words(0xF))
}

/// As [`Grid::root`], of all codes from the first on.
#[inline(always)]
fn roots<V: Vectors>(grid: Grid, first: u32) -> V::Floats {
    let codes = V::plus(V::load_words(&LANES), V::words(first));
    let root = V::plus(V::words(grid.base), V::times(codes, V::words(grid.step)));
    let zeros = V::words(u32::from(grid.has_zero));
    V::float(V::choose_words(V::is_below(codes, zeros), V::words(0), root))
}

#[inline(always)]
fn endpoints<V: Vectors>(roots: &[f32]) -> [u16; 2] {
    let [min_bits, max_bits] = extent::<V>(roots);
    let has_zero = min_bits <= ROOT_ZERO_MAX.to_bits();
    let mut extent = Extent { min_bits, max_bits };
    if has_zero {
        extent = Extent::NONE;
        for &root in roots {
            extent = extent.with(root);
        }
    }
    extent.endpoints(has_zero)
}
