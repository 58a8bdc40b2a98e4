//! The tables by which kernels look codes of 8-bit maps up: entries and cells, then thresholds. The same
//! words as `Tables` in `cuda/codec/dynamic_map.cuh`, which says what they are for.

use formats::Maps;
use formats::map_cells::{SIGNED_SHIFT, UNSIGNED_SHIFT, count, word, words};

/// Cells of the numbers of one sign, in the first and in the second map.
pub(crate) const FIRST_CELLS: u32 = count(SIGNED_SHIFT);
pub(crate) const SECOND_CELLS: u32 = count(UNSIGNED_SHIFT);

/// Words of both maps' entries and cells.
pub(crate) const MAP_TABLE_WORDS: u32 = 2 * 256 + 2 * FIRST_CELLS + SECOND_CELLS;

/// The tables of both maps, and whether codes can be looked up.
pub(crate) fn tables(maps: &Maps) -> (Vec<u32>, bool) {
    let (first, second) = (&maps.first, &maps.second);
    let bits = |numbers: &[f32; 256]| numbers.map(f32::to_bits);
    let mut tables = [bits(&first.map), bits(&second.map)].concat();
    // Quotients that small may be off by one in their last place.
    let is_plain = |t: &f32| t.abs() >= 2f32.powi(-30) || t.abs() <= f32::from_bits(1);
    let mut is_fine = first.thresholds.iter().chain(&second.thresholds).all(is_plain);
    let cells = [
        words(|x| first.bisected(x), SIGNED_SHIFT, false),
        words(|x| first.bisected(x), SIGNED_SHIFT, true),
        words(|x| second.bisected(x), UNSIGNED_SHIFT, false),
    ];
    for (words, own_is_fine) in cells {
        tables.extend(words);
        is_fine &= own_is_fine;
    }
    tables.extend([bits(&first.thresholds), bits(&second.thresholds)].as_flattened());
    (tables, is_fine)
}

/// The bits of 2^-23, below which no plain dynamic map has a threshold.
pub(crate) const EVEN_BASE_BITS: u32 = (127 - 23) << 23;

/// Cells of one sign from [`EVEN_BASE_BITS`] to 1, each `2^-(23 - shift)` of a binade.
pub(crate) const fn even_count(shift: u32) -> u32 {
    (((1f32.to_bits() - EVEN_BASE_BITS) >> shift) + 1).next_multiple_of(4)
}

/// Words of both maps' entries and even cells.
pub(crate) const EVEN_TABLE_WORDS: u32 =
    2 * 256 + 2 * even_count(SIGNED_SHIFT) + even_count(UNSIGNED_SHIFT);

/// The same tables with even cells, which take fewer steps to find: the first one has all smaller numbers
/// too, and no threshold.
pub(crate) fn even_tables(maps: &Maps) -> (Vec<u32>, bool) {
    let (first, second) = (&maps.first, &maps.second);
    let bits = |numbers: &[f32; 256]| numbers.map(f32::to_bits);
    let mut tables = [bits(&first.map), bits(&second.map)].concat();
    let mut are_fine = true;
    let mut add = |code: &dyn Fn(f32) -> u8, shift: u32, is_negative: bool| {
        for cell in 0..even_count(shift) {
            let low = EVEN_BASE_BITS + (cell << shift);
            let range = (low, low + (1 << shift) - 1);
            let (word, is_fine) = word(code, range, is_negative);
            let zero = if is_negative { -0.0 } else { 0.0 };
            let has_none = word == u32::from(code(zero)) << 24;
            are_fine &= is_fine && (cell > 0 || has_none);
            tables.push(word);
        }
    };
    add(&|x| first.bisected(x), SIGNED_SHIFT, false);
    add(&|x| first.bisected(x), SIGNED_SHIFT, true);
    add(&|x| second.bisected(x), UNSIGNED_SHIFT, false);
    // No threshold lies where quotients may be off by one in their last place, or below the first cell's end.
    let is_plain = |t: &f32| t.abs() >= f32::from_bits(EVEN_BASE_BITS);
    are_fine &= first.thresholds.iter().chain(&second.thresholds).all(is_plain);
    tables.extend([bits(&first.thresholds), bits(&second.thresholds)].as_flattened());
    (tables, are_fine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::map_cells::{addend, cell};
    use formats::{RandomStream, Rules};

    /// What a kernel does with the tables.
    fn looked_up(words: &[u32], x: f32, is_first: bool) -> u8 {
        let shift = if is_first { SIGNED_SHIFT } else { UNSIGNED_SHIFT };
        let sign = if x.is_sign_negative() { u32::MAX } else { 0 };
        let start = 512 + if is_first { sign & FIRST_CELLS } else { 2 * FIRST_CELLS };
        let word = words[(start + cell(x.abs().to_bits(), shift)) as usize];
        (word.wrapping_add(addend(x.to_bits(), sign)) >> 24) as u8
    }

    #[test]
    fn tables_have_the_codes_of_the_quantizers() {
        let stream = RandomStream::new(1, 0, 0, 0);
        for rules in [Rules::Repaired, Rules::Published] {
            let maps = Maps::dynamic(rules);
            let (words, is_fine) = tables(&maps);
            assert!(is_fine);
            assert_eq!(words.len(), MAP_TABLE_WORDS as usize + 512);
            let near = maps.first.thresholds.iter().chain(&maps.second.thresholds);
            let near =
                near.filter(|t| t.is_finite()).flat_map(|t| [t.next_down(), *t, t.next_up()]);
            let drawn = (0..100_000u32).map(|i| {
                let (sign, size) = (stream.word(2 * i), stream.word(2 * i + 1));
                f32::from_bits((size % 0x3F80_0001) | sign & 1 << 31)
            });
            for x in near.chain(drawn).chain([0.0, -0.0, 1.0, -1.0]) {
                assert_eq!(looked_up(&words, x, true), maps.first.code(x), "{x:e}");
                let positive = x.abs();
                assert_eq!(looked_up(&words, positive, false), maps.second.code(positive), "{x:e}");
            }
        }
    }

    #[test]
    fn even_tables_have_the_codes_of_plain_maps() {
        use formats::dynamic_map::{signed, unsigned};
        let maps = Maps::plain(&signed(), &unsigned()).unwrap();
        let (words, are_fine) = even_tables(&maps);
        assert!(are_fine);
        assert_eq!(words.len(), EVEN_TABLE_WORDS as usize + 512);
        let looked_up = |x: f32, is_first: bool| {
            let (shift, cells) = if is_first {
                (SIGNED_SHIFT, even_count(SIGNED_SHIFT))
            } else {
                (UNSIGNED_SHIFT, even_count(UNSIGNED_SHIFT))
            };
            let sign = if x.is_sign_negative() { u32::MAX } else { 0 };
            let start = 512 + if is_first { sign & cells } else { 2 * even_count(SIGNED_SHIFT) };
            let fine = (x.abs().to_bits() >> shift).max(EVEN_BASE_BITS >> shift);
            let word = words[(start + fine - (EVEN_BASE_BITS >> shift)) as usize];
            (word.wrapping_add(addend(x.to_bits(), sign)) >> 24) as u8
        };
        let thresholds = maps.first.thresholds.iter().chain(&maps.second.thresholds);
        let near =
            thresholds.filter(|t| t.is_finite()).flat_map(|t| [t.next_down(), *t, t.next_up()]);
        for x in near.chain([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e-7, 2f32.powi(-23)]) {
            assert_eq!(looked_up(x, true), maps.first.code(x), "{x:e}");
            assert_eq!(looked_up(x.abs(), false), maps.second.code(x.abs()), "{x:e}");
        }
        assert!(!even_tables(&Maps::dynamic(Rules::Repaired)).1);
    }
}
