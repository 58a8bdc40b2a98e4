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

/// The numbers from `from` on, up to a tile of them; where there are fewer, the first of them stands in for
/// the others.
#[inline(always)]
pub(crate) fn load<V: Vectors>(numbers: &[f32], from: usize, to: usize) -> Fours<V> {
    match whole(numbers, from, to) {
        Some(tile) => V::fours(tile),
        None => V::fours(&padded(&numbers[from..to], numbers[from])),
    }
}

/// The same in four vectors one after the other.
#[inline(always)]
pub(crate) fn load_runs<V: Vectors>(numbers: &[f32], from: usize, to: usize) -> Fours<V> {
    let padding;
    let tile = match whole(numbers, from, to) {
        Some(tile) => tile,
        None => {
            padding = padded(&numbers[from..to], numbers[from]);
            &padding
        }
    };
    let runs = tile.as_chunks::<16>().0;
    [V::load(&runs[0]), V::load(&runs[1]), V::load(&runs[2]), V::load(&runs[3])]
}

/// Writes the numbers from `from` on, up to a tile of them.
#[inline(always)]
pub(crate) fn store<V: Vectors>(fours: Fours<V>, numbers: &mut [f32], from: usize, to: usize) {
    if to - from == TILE
        && let Some(tile) = numbers[from..].first_chunk_mut()
    {
        V::store_fours(fours, tile);
        return;
    }
    let mut tile = [0.0; TILE];
    V::store_fours(fours, &mut tile);
    overwrite(&mut numbers[from..to], &tile);
}

/// Writes a tile where [`get`] finds it: a whole one as it is.
#[inline(always)]
pub(crate) fn put<V: Vectors>(fours: Fours<V>, numbers: &mut [f32], from: usize, to: usize) {
    if to - from == TILE
        && let Some(tile) = numbers[from..].first_chunk_mut::<TILE>()
    {
        for (place, four) in tile.as_chunks_mut().0.iter_mut().zip(fours) {
            V::store(four, place);
        }
        return;
    }
    store::<V>(fours, numbers, from, to);
}

/// A tile that was [`put`] there.
#[inline(always)]
pub(crate) fn get<V: Vectors>(numbers: &[f32], from: usize, to: usize) -> Fours<V> {
    match whole(numbers, from, to) {
        Some(tile) => {
            let runs = tile.as_chunks::<16>().0;
            of_four!(|k| V::load(&runs[k]))
        }
        None => V::fours(&padded(&numbers[from..to], numbers[from])),
    }
}

/// The bits of the smallest and of the largest of some numbers that are not negative, which order as the
/// numbers do.
#[inline(always)]
pub(crate) fn extent<V: Vectors>(numbers: &[f32]) -> [u32; 2] {
    let (mut least, mut most) = ([V::words(u32::MAX); 4], [V::words(0); 4]);
    for from in steps(0, numbers.len(), TILE) {
        let runs = load_runs::<V>(numbers, from, (from + TILE).min(numbers.len()));
        for ((least, most), run) in least.iter_mut().zip(&mut most).zip(runs) {
            *least = V::smaller(*least, V::bits(run));
            *most = V::larger(*most, V::bits(run));
        }
    }
    let ([a, b, c, d], [e, f, g, h]) = (least, most);
    [
        V::smallest(V::smaller(V::smaller(a, b), V::smaller(c, d))),
        V::largest(V::larger(V::larger(e, f), V::larger(g, h))),
    ]
}

/// The first `N` of the bytes from `from` on; zeros where there are no more.
#[inline(always)]
pub(crate) fn bytes<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    match bytes[from..].first_chunk() {
        Some(bytes) => *bytes,
        None => padded(&bytes[from..], 0),
    }
}

/// Overwrites `count` bytes from `from` on.
#[inline(always)]
pub(crate) fn store_bytes<const N: usize>(
    bytes: [u8; N],
    stream: &mut [u8],
    from: usize,
    count: usize,
) {
    match stream[from..].first_chunk_mut() {
        Some(whole) if count == N => *whole = bytes,
        _ => overwrite(&mut stream[from..from + count], &bytes),
    }
}

/// The codes of four neighbours in one word.
#[inline(always)]
pub(crate) fn packed<V: Vectors, const BITS: u32>([a, b, c, d]: WordFours<V>) -> V::Words {
    let (low, high) = (V::or(a, V::shl::<BITS>(b)), V::or(c, V::shl::<BITS>(d)));
    V::or(low, V::shl::<BITS>(V::shl::<BITS>(high)))
}

/// The flags of the first `count` of a tile, by fours; `None` if it is whole.
#[inline(always)]
pub(crate) fn first<V: Vectors>(count: usize) -> Option<[V::Flags; 4]> {
    if count == TILE { None } else { Some(flags::<V>(count)) }
}

/// The same in any case.
#[inline(always)]
pub(crate) fn flags<V: Vectors>(count: usize) -> [V::Flags; 4] {
    let indices = V::shl::<2>(V::four_numbers());
    let count = V::words(count as u32);
    of_four!(|k| V::is_below(V::plus(indices, V::words(k)), count))
}

#[inline(always)]
fn whole(numbers: &[f32], from: usize, to: usize) -> Option<&[f32; TILE]> {
    if to - from == TILE { numbers[from..].first_chunk() } else { None }
}

#[cold]
#[inline(never)]
fn overwrite<T: Copy>(numbers: &mut [T], by: &[T]) {
    numbers.copy_from_slice(&by[..numbers.len()]);
}

#[cold]
#[inline(never)]
fn padded<T: Copy, const N: usize>(numbers: &[T], padding: T) -> [T; N] {
    let mut padded = [padding; N];
    padded[..numbers.len()].copy_from_slice(numbers);
    padded
}
