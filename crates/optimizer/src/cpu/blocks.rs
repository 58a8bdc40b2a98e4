//! The update of a run of elements in a format of blocks: a unit of some blocks at a time goes
//!
//! ```text
//! prepare    then for each tile: decode -> m0, v0    update -> p, m, v    keep    then encode
//! ```
//!
//! Up to where they are kept, numbers stay in registers, written with [`Vectors`]. What encode reads goes
//! through small arrays: a code depends on all elements of its block.

use super::ahead::Ahead;
use super::kernel::{Counts, Found, Mode, PREFETCH_ELEMENTS, Run};
use super::norm::SquareLanes;
use super::tiles::{self, Fours, Numbers, TILE, Tile, blocks_of, of_four, tile_of};
use super::update::Update;
use crate::simd::{Kernel, Vectors};

/// The largest block.
pub(crate) const BLOCK_MAX: usize = 4096;
/// Tiles that go through together, if their blocks have no more: enough for the steps of several
/// blocks to be done side by side, and few enough for all arrays to stay in the nearest cache.
pub(crate) const TILES_SMALL: usize = 16;
/// Tiles of any block.
pub(crate) const TILES_MAX: usize = BLOCK_MAX / 32;
/// Blocks that go through together at most.
pub(crate) const BLOCKS_MAX: usize = 16;
/// Tables of a unit, five for each block.
const TABLES: usize = 5 * BLOCKS_MAX;

/// Room for what is kept of a unit until it is stored, for each tile the numbers of its elements.
pub(crate) struct Room<'a> {
    /// First moments, then normalised ones.
    pub(crate) first: &'a mut [Numbers],
    /// Second moments or their roots, then what belongs to their codes.
    pub(crate) second: &'a mut [Numbers],
    /// What first moments are dithered by; before, roots of second moments where no table has them.
    pub(crate) dithers: &'a mut [Numbers],
    /// Vectors of bits whose smallest or largest the tile has.
    pub(crate) extents: &'a mut [[[f32; 16]; 2]],
    /// A number for each block of first moments.
    pub(crate) units: &'a mut [f32],
    /// What codes stand for, some tables for each block.
    pub(crate) tables: &'a mut [[f32; 16]],
    /// Whether an element may be without a first moment.
    pub(crate) has_dead: &'a mut bool,
    pub(crate) ahead: &'a mut Ahead,
}

/// What is ready to decode by.
#[derive(Clone, Copy)]
pub(crate) struct Ready<'a> {
    pub(crate) roots: &'a [Numbers],
    pub(crate) units: &'a [f32],
    pub(crate) tables: &'a [[f32; 16]],
    pub(crate) has_dead: bool,
}

/// Where a tile is kept.
pub(crate) struct Kept<'a> {
    pub(crate) first: &'a mut Numbers,
    pub(crate) second: &'a mut Numbers,
    pub(crate) extent: &'a mut [[f32; 16]; 2],
}

impl Kept<'_> {
    /// Keeps first moments and numbers that are not negative, and how far these reach.
    #[inline(always)]
    pub(crate) fn keep_with_extent<V: Vectors>(self, first: Fours<V>, second: Fours<V>) {
        tiles::put::<V>(first, self.first);
        tiles::put::<V>(second, self.second);
        tiles::keep_extent::<V>(second, self.extent);
    }
}

impl Room<'_> {
    /// Places for so many tiles from one on, and what is ready.
    #[inline(always)]
    pub(crate) fn split(
        &mut self,
        from: usize,
        tiles: usize,
    ) -> (impl Iterator<Item = Kept<'_>>, Ready<'_>) {
        let own = from..from + tiles;
        let first = self.first[own.clone()].iter_mut();
        let kept = first.zip(&mut self.second[own.clone()]).zip(&mut self.extents[own]);
        let kept = kept.map(|((first, second), extent)| Kept { first, second, extent });
        let (roots, units, tables) = (&*self.dithers, &*self.units, &*self.tables);
        (kept, Ready { roots, units, tables, has_dead: *self.has_dead })
    }
}

/// The memory of a [`Room`] for as many tiles. It is made once for a run, since making it
/// costs more than a block. No register of it crosses a line of memory.
#[repr(C, align(64))]
pub(crate) struct Memory<const TILES: usize> {
    first: [Numbers; TILES],
    second: [Numbers; TILES],
    dithers: [Numbers; TILES],
    extents: [[[f32; 16]; 2]; TILES],
    tables: [[f32; 16]; TABLES],
    units: [f32; TILES],
    has_dead: bool,
    ahead: Ahead,
}

/// Elements of a run: so many, from one on.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) count: usize,
}

/// The moments of a tile, by fours or in order; r is the root of v.
pub(crate) struct TileMoments<V: Vectors> {
    pub(crate) m: Fours<V>,
    pub(crate) v: Fours<V>,
    pub(crate) r: Fours<V>,
}

/// How a format stores blocks of moments, inside a loop over units of whole blocks.
pub(crate) trait BlockCodec {
    /// Whether parameters decay after the update.
    const DECAYS_LAST: bool;
    /// Whether tiles come by fours, as [`Vectors`] has them, or in order.
    const BY_FOURS: bool;

    /// Tiles that go through together, if a block has no more.
    const TILES: usize = TILES_SMALL;

    /// Elements of a block.
    fn block(&self) -> usize;

    /// Elements of the smallest block, which has whole tiles or is one.
    fn tile_block(&self) -> usize;

    /// Makes ready to decode some elements.
    fn prepare<V: Vectors>(&self, span: Span, room: &mut Room<'_>);

    /// First and second moments of a tile of the unit from `start` on. What lies beyond the last element means
    /// nothing.
    fn decode<V: Vectors>(&self, start: usize, tile: Tile, ready: Ready<'_>) -> [Fours<V>; 2];

    /// Keeps moments of a tile, all of them finite, until they are stored. Those beyond the last element are some
    /// of the others.
    fn keep<V: Vectors>(&self, moments: TileMoments<V>, to: Kept<'_>);

    /// Stores what was kept of some elements.
    fn encode<V: Vectors>(&mut self, span: Span, room: &mut Room<'_>);

    /// Tiles of a block.
    fn tiles_of_block(&self) -> usize {
        blocks_of(self.block(), tile_of(self.tile_block()))
    }
}

/// A visit to every element of a run, which is part of one chunk, in units of up to so many tiles.
pub(crate) struct BlockVisit<'a, C, const TILES: usize> {
    pub(crate) run: Run<'a>,
    pub(crate) codec: C,
}

impl<const TILES: usize> Memory<TILES> {
    #[inline(always)]
    pub(crate) fn new(ahead: Ahead) -> Self {
        Memory {
            first: [[0.0; TILE]; TILES],
            second: [[0.0; TILE]; TILES],
            dithers: [[0.0; TILE]; TILES],
            extents: [[[0.0; 16]; 2]; TILES],
            tables: [[0.0; 16]; TABLES],
            units: [0.0; TILES],
            has_dead: false,
            ahead,
        }
    }

    /// All of it.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Room<'_> {
        let Memory { first, second, dithers, extents, tables, units, has_dead, ahead } = self;
        Room { first, second, dithers, extents, tables, units, has_dead, ahead }
    }
}

impl<C: BlockCodec, const TILES: usize> Kernel for BlockVisit<'_, &mut C, TILES> {
    type Output = Found;

    #[inline(always)]
    fn run<V: Vectors>(self) -> Found {
        let BlockVisit { run, codec } = self;
        let Run { mode, scalars, clip_scale, parameters, gradients, sums_squares, .. } = run;
        let mut memory = Memory::<TILES>::new(Ahead::new(parameters, gradients));
        let (elements, counts) = (parameters.len(), Counts::NONE);
        let squares = sums_squares.then_some(SquareLanes::ZERO);
        let mut update = Update { mode, scalars, clip_scale, counts, squares };
        let blocks = (C::TILES / codec.tiles_of_block()).clamp(1, BLOCKS_MAX);
        let unit = codec.block() * blocks;
        for start in tiles::steps(0, elements, unit) {
            let span = Span { start, count: unit.min(elements - start) };
            let mut room = memory.room();
            room.ahead.go_on_at(start + PREFETCH_ELEMENTS);
            codec.prepare::<V>(span, &mut room);
            update.unit::<V, C>(codec, span, (&mut *parameters, gradients), &mut room);
            if mode == Mode::Update {
                codec.encode::<V>(span, &mut room);
            }
        }
        Found { counts: update.counts, square_sum: update.squares.map(SquareLanes::fold) }
    }
}

/// The moments of a block from one element on.
#[inline(always)]
pub(crate) fn decode<V: Vectors, C: BlockCodec>(
    codec: &C,
    start: usize,
    (m, v): (&mut [f32], &mut [f32]),
    room: &mut Room<'_>,
) {
    let span = Span { start, count: m.len() };
    codec.prepare::<V>(span, room);
    for tile in tiles::tiles(0, span.count, codec.tile_block()) {
        let (_, ready) = room.split(tile.number, 1);
        let [own_m, own_v] = codec.decode::<V>(start, tile, ready);
        tiles::overwrite::<V>(C::BY_FOURS, own_m, m, 0, tile);
        tiles::overwrite::<V>(C::BY_FOURS, own_v, v, 0, tile);
    }
}

/// Stores the moments of a block from one element on.
#[inline(always)]
pub(crate) fn encode<V: Vectors, C: BlockCodec>(
    codec: &mut C,
    start: usize,
    (m, v): (&[f32], &[f32]),
    room: &mut Room<'_>,
) {
    let span = Span { start, count: m.len() };
    for tile in tiles::tiles(0, span.count, codec.tile_block()) {
        let m = tiles::read::<V>(C::BY_FOURS, tiles::numbers(m, 0, tile, &mut None));
        let v = tiles::read::<V>(C::BY_FOURS, tiles::numbers(v, 0, tile, &mut None));
        let r = of_four!(|k| V::sqrt(v[k]));
        for to in room.split(tile.number, 1).0 {
            codec.keep::<V>(TileMoments { m, v, r }, to);
        }
    }
    codec.encode::<V>(span, room);
}
