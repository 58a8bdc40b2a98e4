//! Blocks of `n4l4`: 4-bit codes of the normalised first moment, roots of second moments on 4-bit grids.

use formats::half_floats::bf16_to_f32;
use formats::n4l4::{self, CODE_OF_ZERO, Extent, Grid, ROOT_ZERO_MAX};

use super::arrays::N4l4Mut;
use super::blocks::{BlockCodec, Kept, Ready, Room, Span, TileMoments};
use super::kernel::PREFETCH_ELEMENTS;
use super::random::BlockRandom;
use super::tiles::{
    self, Fours, LANES, TILE, Tile, WordFours, block_of, blocks_of, of_four, tile_of,
};
use crate::scalars::BlockScalars;
use crate::simd::{Vectors, prefetch};

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
    const BY_FOURS: bool = true;

    #[inline(always)]
    fn block(&self) -> usize {
        self.arrays.options.v_block as usize
    }

    #[inline(always)]
    fn tile_block(&self) -> usize {
        self.arrays.options.m_block as usize
    }

    /// The roots of all blocks, and units of first moments.
    #[inline(always)]
    fn prepare<V: Vectors>(&self, Span { start, count }: Span, room: &mut Room<'_>) {
        let (first, blocks) = (block_of(start, self.block()), blocks_of(count, self.block()));
        let ends = self.arrays.r_endpoints[2 * first..].as_chunks::<2>().0;
        for (&ends, table) in ends[..blocks].iter().zip(&mut *room.tables) {
            V::store(roots::<V>(Grid::new(ends), 0), table);
        }
        let block = self.tile_block();
        let (first, blocks) = (block_of(start, block), blocks_of(count, block));
        for (&stored, unit) in
            self.arrays.m_units[first..first + blocks].iter().zip(&mut *room.units)
        {
            *unit = bf16_to_f32(stored);
        }
    }

    #[inline(always)]
    fn decode<V: Vectors>(&self, start: usize, tile: Tile, ready: Ready<'_>) -> [Fours<V>; 2] {
        let at = start + tile.from;
        prefetch(self.arrays.codes, at + PREFETCH_ELEMENTS);
        let roots = V::load(&ready.tables[block_of(tile.from, self.block())]);
        let unit = V::splat(ready.units[block_of(tile.from, self.tile_block())]);
        let codes = V::counted(V::load_words(&LANES));
        let quotients = V::mul(V::sub(codes, V::splat(CODE_OF_ZERO as f32)), unit);
        let own = V::four_words(tiles::bytes(self.arrays.codes, at, &mut None));
        // Of places only the lower four bits count.
        let codes: WordFours<V> = [own, V::shr::<8>(own), V::shr::<16>(own), V::shr::<24>(own)];
        let r: Fours<V> = of_four!(|k| V::look_up(roots, V::shr::<4>(codes[k])));
        let m = of_four!(|k| V::mul(V::look_up(quotients, codes[k]), r[k]));
        [m, of_four!(|k| V::mul(r[k], r[k]))]
    }

    /// First moments and roots of second ones, and how far these reach.
    #[inline(always)]
    fn keep<V: Vectors>(&self, moments: TileMoments<V>, to: Kept<'_>) {
        to.keep_with_extent::<V>(moments.m, moments.r);
    }

    #[inline(always)]
    fn encode<V: Vectors>(&mut self, span: Span, room: &mut Room<'_>) {
        self.encode_endpoints::<V>(span, room);
        self.encode_second::<V>(span, room);
        self.encode_units(span, room);
        self.encode_first::<V>(span, room);
    }
}

/// Each of these goes over a whole unit, so that what one block waits for, others do meanwhile.
impl N4l4Codec<'_> {
    /// The endpoints of all blocks, and their levels.
    #[inline(always)]
    fn encode_endpoints<V: Vectors>(&mut self, Span { start, count }: Span, room: &mut Room<'_>) {
        let (block, tile) = (self.block(), tile_of(self.tile_block()));
        let first = block_of(start, block);
        let ends = self.arrays.r_endpoints[2 * first..].as_chunks_mut::<2>().0;
        for (from, ends) in tiles::steps(0, count, block).zip(&mut *ends) {
            let to = (from + block).min(count);
            let own = block_of(from, tile)..blocks_of(to, tile);
            let extent = tiles::extent::<V>(&room.extents[own.clone()]);
            *ends = endpoints(extent, room.second[own].as_flattened());
        }
        let tables = room.tables.as_chunks_mut::<TABLES>().0;
        for (&ends, tables) in ends[..blocks_of(count, block)].iter().zip(tables) {
            fill_levels::<V>(Grid::new(ends), tables);
        }
    }

    /// Leaves quotients in place of first moments, codes in that of roots, and dithers; in units the largest
    /// quotient of each block of first moments.
    #[inline(always)]
    fn encode_second<V: Vectors>(&mut self, Span { start, count }: Span, room: &mut Room<'_>) {
        let (is_nearest, v_block) = (self.arrays.options.is_nearest, self.block());
        let m_block = self.tile_block();
        let magnitude = V::words(0x7FFF_FFFF);
        for (number, from) in tiles::steps(0, count, m_block).enumerate() {
            let to = (from + m_block).min(count);
            let levels = Levels::<V>::load(&room.tables.as_chunks().0[block_of(from, v_block)]);
            let mut largest = V::words(0);
            for tile in tiles::tiles(from, to, m_block) {
                room.ahead.ask();
                room.ahead.ask();
                let m = tiles::get::<V>(&room.first[tile.number]);
                let r = tiles::get::<V>(&room.second[tile.number]);
                let (uniforms, dithers) = self.random.both::<V>(start + tile.from);
                let codes: WordFours<V> = of_four!(|k| levels.code(r[k], uniforms[k]));
                let mut quotients: Fours<V> =
                    of_four!(|k| V::mul(m[k], V::look_up(levels.inverses, codes[k])));
                if let Some(is_first) = tiles::first::<V>(tile) {
                    // What stands in for others has drawn other numbers than the element itself.
                    quotients = of_four!(|k| V::choose(is_first[k], quotients[k], V::splat(0.0)));
                }
                let own: WordFours<V> = of_four!(|k| V::and(V::bits(quotients[k]), magnitude));
                largest = V::larger(largest, tiles::larger::<V>(own));
                tiles::put::<V>(quotients, &mut room.first[tile.number]);
                tiles::put::<V>(of_four!(|k| V::float(codes[k])), &mut room.second[tile.number]);
                let dithers = if is_nearest { [V::splat(0.5); 4] } else { dithers };
                tiles::put::<V>(dithers, &mut room.dithers[tile.number]);
            }
            room.units[number] = f32::from_bits(V::largest(largest));
        }
    }

    /// Stores the units of all blocks, and leaves their inverses.
    #[inline(always)]
    fn encode_units(&mut self, Span { start, count }: Span, room: &mut Room<'_>) {
        let block = self.tile_block();
        let (first, blocks) = (block_of(start, block), blocks_of(count, block));
        let stored = &mut self.arrays.m_units[first..first + blocks];
        for (stored, unit) in stored.iter_mut().zip(&mut room.units[..blocks]) {
            *stored = n4l4::stored_unit(*unit, self.scalars.ratio_max);
            *unit = n4l4::inverse_unit(*stored);
        }
    }

    /// Stores the codes of both.
    #[inline(always)]
    fn encode_first<V: Vectors>(&mut self, Span { start, count }: Span, room: &mut Room<'_>) {
        let m_block = self.tile_block();
        for tile in tiles::tiles(0, count, m_block) {
            room.ahead.ask();
            let inverse_unit = V::splat(room.units[block_of(tile.from, m_block)]);
            let quotients = tiles::get::<V>(&room.first[tile.number]);
            let dithers = tiles::get::<V>(&room.dithers[tile.number]);
            let codes = tiles::get::<V>(&room.second[tile.number]);
            let own: WordFours<V> = of_four!(|k| {
                let first = first_code::<V>(quotients[k], inverse_unit, dithers[k]);
                V::or(first, V::shl::<4>(V::bits(codes[k])))
            });
            let packed = V::to_four_words(tiles::packed::<V, 8>(own)).map(u32::to_le);
            let (bytes, at): ([u8; TILE], _) = (bytemuck::cast(packed), start + tile.from);
            tiles::store_bytes(&bytes, self.arrays.codes, at, tile.count());
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

/// The endpoints of a block, given the bits of its smallest and its largest root.
#[inline(always)]
fn endpoints([min_bits, max_bits]: [u32; 2], roots: &[f32]) -> [u16; 2] {
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
