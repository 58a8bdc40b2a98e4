//! Tiles: sixty-four numbers, or fewer where a block or a tensor has no more, in the shape that vectors want.

use crate::simd::Vectors;

/// A value for each number from 0 to 3. A closure would be a function of its own, compiled without the
/// instructions of a set.
macro_rules! of_four {
    (|$k:ident| $value:expr) => {
        [
            {
                let $k = 0;
                $value
            },
            {
                let $k = 1;
                $value
            },
            {
                let $k = 2;
                $value
            },
            {
                let $k = 3;
                $value
            },
        ]
    };
}
pub(crate) use of_four;

/// Numbers of a tile.
pub(crate) const TILE: usize = 64;

/// Some elements of a unit, as many as a tile has or fewer.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Its number in the unit.
    pub(crate) number: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Tile {
    /// Its elements.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        self.to - self.from
    }

    /// Whether it has all elements of a tile.
    #[inline(always)]
    pub(crate) fn is_whole(self) -> bool {
        self.count() == TILE
    }
}

/// The numbers of a tile in memory.
pub(crate) type Numbers = [f32; TILE];

/// The lanes of a register.
pub(crate) const LANES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// A tile in four vectors, see [`Vectors`].
pub(crate) type Fours<V> = [<V as Vectors>::Floats; 4];
/// The same of words.
pub(crate) type WordFours<V> = [<V as Vectors>::Words; 4];

/// Every so many numbers from one to below another. The standard library's `step_by` divides first.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    at: usize,
    end: usize,
    step: usize,
}

#[inline(always)]
pub(crate) fn steps(at: usize, end: usize, step: usize) -> Steps {
    Steps { at, end, step }
}

impl Iterator for Steps {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let at = self.at;
        self.at += self.step;
        if at < self.end { Some(at) } else { None }
    }
}

/// The number of the block that has an element; blocks have powers of two of them.
#[inline(always)]
pub(crate) fn block_of(element: usize, block: usize) -> usize {
    element >> block.trailing_zeros()
}

/// How many blocks so many elements have.
#[inline(always)]
pub(crate) fn blocks_of(elements: usize, block: usize) -> usize {
    block_of(elements + block - 1, block)
}

/// Elements that are computed together at most, of blocks of so many.
pub(crate) const fn tile_of(block: usize) -> usize {
    if block < TILE { block } else { TILE }
}

/// Tiles, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    steps: Steps,
    number: usize,
}

/// The tiles of elements from one to below another, in blocks of so many.
#[inline(always)]
pub(crate) fn tiles(from: usize, to: usize, block: usize) -> Tiles {
    let tile = tile_of(block);
    Tiles { steps: steps(from, to, tile), number: block_of(from, tile) }
}

impl Iterator for Tiles {
    type Item = Tile;

    #[inline(always)]
    fn next(&mut self) -> Option<Tile> {
        let Steps { end, step, .. } = self.steps;
        let number = self.number;
        self.number += 1;
        self.steps.next().map(|from| Tile { number, from, to: (from + step).min(end) })
    }
}

/// The numbers of a tile; where there are fewer, the first of them stands in for the others, in `padded`.
#[inline(always)]
pub(crate) fn numbers<'a>(
    numbers: &'a [f32],
    start: usize,
    tile: Tile,
    padded: &'a mut Option<Numbers>,
) -> &'a Numbers {
    match numbers[start + tile.from..].first_chunk() {
        Some(whole) if tile.is_whole() => whole,
        _ => {
            let own = &numbers[start + tile.from..start + tile.to];
            padded.insert(with_padding(own, own[0]))
        }
    }
}

/// Overwrites the numbers of a tile by four vectors, by fours or in order.
#[inline(always)]
pub(crate) fn overwrite<V: Vectors>(
    by_fours: bool,
    own: Fours<V>,
    numbers: &mut [f32],
    start: usize,
    tile: Tile,
) {
    match numbers[start + tile.from..].first_chunk_mut() {
        Some(whole) if tile.is_whole() => write::<V>(by_fours, own, whole),
        _ => {
            let mut all = [0.0; TILE];
            write::<V>(by_fours, own, &mut all);
            overwrite_some(&mut numbers[start + tile.from..start + tile.to], &all);
        }
    }
}

/// Four vectors of numbers, by fours or in order.
#[inline(always)]
pub(crate) fn read<V: Vectors>(by_fours: bool, numbers: &Numbers) -> Fours<V> {
    if by_fours { V::fours(numbers) } else { get::<V>(numbers) }
}

/// Writes such four vectors.
#[inline(always)]
pub(crate) fn write<V: Vectors>(by_fours: bool, own: Fours<V>, numbers: &mut Numbers) {
    if by_fours { V::store_fours(own, numbers) } else { put::<V>(own, numbers) }
}

/// Four vectors that were [`put`] there.
#[inline(always)]
pub(crate) fn get<V: Vectors>(numbers: &Numbers) -> Fours<V> {
    let runs = numbers.as_chunks::<16>().0;
    of_four!(|k| V::load(&runs[k]))
}

/// Writes four vectors as they are.
#[inline(always)]
pub(crate) fn put<V: Vectors>(own: Fours<V>, numbers: &mut Numbers) {
    for (place, run) in numbers.as_chunks_mut().0.iter_mut().zip(own) {
        V::store(run, place);
    }
}

/// The smaller one of each lane of four vectors of bits.
#[inline(always)]
pub(crate) fn smaller<V: Vectors>([a, b, c, d]: WordFours<V>) -> V::Words {
    V::smaller(V::smaller(a, b), V::smaller(c, d))
}

/// The larger one.
#[inline(always)]
pub(crate) fn larger<V: Vectors>([a, b, c, d]: WordFours<V>) -> V::Words {
    V::larger(V::larger(a, b), V::larger(c, d))
}

/// Keeps the bits of the smallest and of the largest of some numbers that are not negative, which order as the numbers
/// do, for [`extent`].
#[inline(always)]
pub(crate) fn keep_extent<V: Vectors>(numbers: Fours<V>, kept: &mut [[f32; 16]; 2]) {
    let bits: WordFours<V> = of_four!(|k| V::bits(numbers[k]));
    V::store(V::float(smaller::<V>(bits)), &mut kept[0]);
    V::store(V::float(larger::<V>(bits)), &mut kept[1]);
}

/// The bits of the smallest and of the largest number of tiles.
#[inline(always)]
pub(crate) fn extent<V: Vectors>(kept: &[[[f32; 16]; 2]]) -> [u32; 2] {
    let (mut least, mut most) = (V::words(u32::MAX), V::words(0));
    for [own_least, own_most] in kept {
        least = V::smaller(least, V::bits(V::load(own_least)));
        most = V::larger(most, V::bits(V::load(own_most)));
    }
    [V::smallest(least), V::largest(most)]
}

/// The bits of the smallest and of the largest number of up to sixteen blocks of so many tiles each, a lane for each
/// block; lanes without one mean nothing. Leaves vectors of each block in the first places.
#[inline(always)]
pub(crate) fn extents<V: Vectors>(
    kept: &mut [[[f32; 16]; 2]],
    tiles: usize,
    tiles_of_block: usize,
) -> [V::Words; 2] {
    if tiles_of_block > 1 {
        for (block, first) in steps(0, tiles, tiles_of_block).enumerate() {
            let (mut least, mut most) = (V::words(u32::MAX), V::words(0));
            for tile in first..first + tiles_of_block {
                // The last one again, in place of those that are not there.
                let [own_least, own_most] = &kept[tile.min(tiles - 1)];
                least = V::smaller(least, V::bits(V::load(own_least)));
                most = V::larger(most, V::bits(V::load(own_most)));
            }
            V::store(V::float(least), &mut kept[block][0]);
            V::store(V::float(most), &mut kept[block][1]);
        }
    }
    V::extents(kept.first_chunk().expect("a unit has room for sixteen tiles"))
}

/// The first `N` of the bytes from `from` on; where there are no more, zeros besides, in `padded`.
#[inline(always)]
pub(crate) fn bytes<'a, const N: usize>(
    bytes: &'a [u8],
    from: usize,
    padded: &'a mut Option<[u8; N]>,
) -> &'a [u8; N] {
    match bytes[from..].first_chunk() {
        Some(bytes) => bytes,
        None => padded.insert(with_padding(&bytes[from..], 0)),
    }
}

/// Overwrites `count` bytes from `from` on.
#[inline(always)]
pub(crate) fn store_bytes<const N: usize>(
    bytes: &[u8; N],
    stream: &mut [u8],
    from: usize,
    count: usize,
) {
    match stream[from..].first_chunk_mut() {
        Some(whole) if count == N => *whole = *bytes,
        _ => overwrite_some(&mut stream[from..from + count], bytes),
    }
}

/// The codes of four neighbours in one word.
#[inline(always)]
pub(crate) fn packed<V: Vectors, const BITS: u32>([a, b, c, d]: WordFours<V>) -> V::Words {
    let (low, high) = (V::or(a, V::shl::<BITS>(b)), V::or(c, V::shl::<BITS>(d)));
    V::or(low, V::shl::<BITS>(V::shl::<BITS>(high)))
}

/// The flags of the elements of a tile, by fours; `None` if it is whole.
#[inline(always)]
pub(crate) fn first<V: Vectors>(tile: Tile) -> Option<[V::Flags; 4]> {
    if tile.is_whole() { None } else { Some(flags::<V>(tile)) }
}

/// The same in any case.
#[inline(always)]
pub(crate) fn flags<V: Vectors>(tile: Tile) -> [V::Flags; 4] {
    let indices = V::shl::<2>(V::four_numbers());
    let count = V::words(tile.count() as u32);
    of_four!(|k| V::is_below(V::plus(indices, V::words(k)), count))
}

#[cold]
#[inline(never)]
fn overwrite_some<T: Copy>(numbers: &mut [T], by: &[T]) {
    numbers.copy_from_slice(&by[..numbers.len()]);
}

/// Some numbers, and others besides.
#[cold]
#[inline(never)]
pub(crate) fn with_padding<T: Copy, const N: usize>(numbers: &[T], padding: T) -> [T; N] {
    let mut padded = [padding; N];
    padded[..numbers.len()].copy_from_slice(numbers);
    padded
}
