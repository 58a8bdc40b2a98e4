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

/// Where even tables have cells of the first map's negative numbers, after those of positive ones.
pub(crate) const FIRST_NEGATIVE: u32 = 1 << (31 - SIGNED_SHIFT);
/// Cells of one sign of the first map, from 0 to 1.
const FIRST_EVEN: u32 = (1f32.to_bits() >> SIGNED_SHIFT) + 1;
/// Cells of the second map, from [`EVEN_BASE_BITS`] to 1, and where they begin: between those of positive and of negative
/// numbers, where there is room.
const SECOND_EVEN: u32 = ((1f32.to_bits() - EVEN_BASE_BITS) >> UNSIGNED_SHIFT) + 1;
pub(crate) const SECOND_EVEN_CELLS: u32 = FIRST_EVEN.next_multiple_of(4);

/// Where even tables have entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvenTables {
    /// How often each entry of a map is there, for lanes of a warp to read in banks of their own.
    pub(crate) entry_copies: u32,
    /// Where entries of the first map begin, and of the second.
    pub(crate) first_entries: u32,
    pub(crate) second_entries: u32,
    /// Words of the tables, without thresholds.
    pub(crate) words: u32,
}

impl EvenTables {
    /// With copies for every lane of a warp, which none waits for another with.
    pub(crate) const WIDE: EvenTables = EvenTables::new(32);
    /// With as many as have room between cells.
    pub(crate) const NARROW: EvenTables = EvenTables::new(8);

    const fn new(entry_copies: u32) -> EvenTables {
        let between = (SECOND_EVEN_CELLS + SECOND_EVEN).next_multiple_of(32);
        let end = (FIRST_NEGATIVE + FIRST_EVEN).next_multiple_of(32);
        let entries = 256 * entry_copies;
        let has_room = between + 2 * entries <= FIRST_NEGATIVE;
        let first_entries = if has_room { between } else { end };
        let second_entries = first_entries + entries;
        let words = if has_room { end } else { second_entries + entries };
        EvenTables { entry_copies, first_entries, second_entries, words }
    }

    /// Those that blocks of a device can have, of so much shared memory.
    pub(crate) const fn of(shared_bytes_of_block: u32) -> EvenTables {
        const OTHERS: u32 = 1024;
        let wide = EvenTables::WIDE;
        if wide.bytes() + OTHERS <= shared_bytes_of_block { wide } else { EvenTables::NARROW }
    }

    /// Their size.
    pub(crate) const fn bytes(self) -> u32 {
        self.words * 4
    }

    /// The words, with even cells, which take fewer steps to find, and whether codes can be looked up; see
    /// `cuda/quantized.cu`. After them come the thresholds of both maps.
    pub(crate) fn fill(self, maps: &Maps) -> (Vec<u32>, bool) {
        let (first, second) = (&maps.first, &maps.second);
        let mut tables = vec![0; self.words as usize];
        let mut are_fine = true;
        // The codes of magnitudes from `base_bits` on, whose words are added to their bits and the bits of `sign`.
        let mut add =
            |code: &dyn Fn(f32) -> u8, start, (base_bits, shift, sign): (u32, u32, u32)| {
                let count = ((1f32.to_bits() - base_bits) >> shift) + 1;
                for cell in 0..count {
                    let low = base_bits + (cell << shift);
                    let (word, is_fine) = word(code, (low, low + (1 << shift) - 1), false);
                    are_fine &= is_fine;
                    // Numbers below the first cell have its word, or are none.
                    are_fine &= cell > 0 || word == u32::from(code(0.0)) << 24;
                    let upper = (low | sign) & 0xFF00_0000;
                    tables[(start + cell) as usize] = word.wrapping_sub(upper);
                }
            };
        let negative = |x: f32| !first.bisected(-x);
        add(&|x| first.bisected(x), 0, (0, SIGNED_SHIFT, 0));
        add(&negative, FIRST_NEGATIVE, (0, SIGNED_SHIFT, 1 << 31));
        add(&|x| second.bisected(x), SECOND_EVEN_CELLS, (EVEN_BASE_BITS, UNSIGNED_SHIFT, 0));
        for (start, map) in [(self.first_entries, &first.map), (self.second_entries, &second.map)] {
            let room = tables[start as usize..].chunks_exact_mut(self.entry_copies as usize);
            room.zip(map).for_each(|(copies, entry)| copies.fill(entry.to_bits()));
        }
        // No threshold lies where quotients may be off by one in their last place, or below the first cell's end.
        let is_plain = |t: &f32| t.abs() >= f32::from_bits(EVEN_BASE_BITS);
        are_fine &= first.thresholds.iter().chain(&second.thresholds).all(is_plain);
        let bits = |numbers: &[f32; 256]| numbers.map(f32::to_bits);
        tables.extend([bits(&first.thresholds), bits(&second.thresholds)].as_flattened());
        (tables, are_fine)
    }
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
        for tables in [EvenTables::WIDE, EvenTables::NARROW] {
            let (words, are_fine) = tables.fill(&maps);
            assert!(are_fine);
            assert_eq!(words.len(), tables.words as usize + 512);
            assert_eq!(tables.words % 32, 0, "filled by whole accesses of a warp");
            let looked_up = |x: f32, is_first: bool| {
                if is_first {
                    let word = words[(x.to_bits() >> SIGNED_SHIFT) as usize];
                    let code = (word.wrapping_add(x.to_bits()) >> 24) as u8;
                    return if x.is_sign_negative() { !code } else { code };
                }
                let bits = x.to_bits().max(EVEN_BASE_BITS);
                let cell = (bits - EVEN_BASE_BITS) >> UNSIGNED_SHIFT;
                (words[(SECOND_EVEN_CELLS + cell) as usize].wrapping_add(bits) >> 24) as u8
            };
            let thresholds = maps.first.thresholds.iter().chain(&maps.second.thresholds);
            let near =
                thresholds.filter(|t| t.is_finite()).flat_map(|t| [t.next_down(), *t, t.next_up()]);
            for x in near.chain([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e-7, 2f32.powi(-23)]) {
                assert_eq!(looked_up(x, true), maps.first.code(x), "{x:e}");
                assert_eq!(looked_up(x.abs(), false), maps.second.code(x.abs()), "{x:e}");
            }
            let copies = tables.entry_copies as usize;
            for (start, map) in
                [(tables.first_entries, &maps.first.map), (tables.second_entries, &maps.second.map)]
            {
                let found = words[start as usize..].chunks(copies);
                assert!(found.zip(map).all(|(found, e)| found.iter().all(|&w| w == e.to_bits())));
            }
            assert!(!tables.fill(&Maps::dynamic(Rules::Repaired)).1);
        }
    }

    #[test]
    fn tables_fit_the_devices_that_they_are_for() {
        let bytes_of_blocks = [99 * 1024, 163 * 1024, 227 * 1024];
        let copies = bytes_of_blocks.map(|bytes| EvenTables::of(bytes).entry_copies);
        assert_eq!(copies, [8, 32, 32]);
        assert!(EvenTables::NARROW.bytes() + 1024 <= bytes_of_blocks[0]);
    }
}
