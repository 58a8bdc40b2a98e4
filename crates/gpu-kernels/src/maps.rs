//! The tables by which kernels look codes of 8-bit maps up: entries, thresholds, first codes. The same
//! words as `MapTables` in `cuda/codec/dynamic_map.cuh`.

use formats::Maps;
use formats::dynamic_map::Quantizer;

/// Keys of numbers of one sign: one below `2^-24`, then 128 a binade up to 1.
const KEYS: usize = 24 * 128 + 4;
/// The last key below `2^-24`, as the upper half of an f32.
const LEAST: usize = (127 - 24) * 128 - 1;

/// Words of the tables of one map.
pub(crate) const MAP_TABLE_WORDS: u32 = 2 * 256 + 2 * KEYS as u32 / 4;

/// The tables of both maps, and whether codes can be looked up.
pub(crate) fn tables(maps: &Maps) -> (Vec<u32>, bool) {
    let (mut words, first_is_fine) = tables_of(&maps.first);
    let (second, second_is_fine) = tables_of(&maps.second);
    words.extend(second);
    (words, first_is_fine && second_is_fine)
}

fn tables_of(quantizer: &Quantizer) -> (Vec<u32>, bool) {
    let entries = quantizer.map.iter().chain(&quantizer.thresholds);
    let mut words: Vec<u32> = entries.map(|number| number.to_bits()).collect();
    let (mut codes, mut is_fine) = (vec![0u8; 2 * KEYS], true);
    for (position, first) in codes.iter_mut().enumerate() {
        let (key, sign) = (position % KEYS, if position < KEYS { 0 } else { 1 << 31 });
        let upper = (key + LEAST) as u32;
        // All numbers of no more than the least key have the first place in common.
        let low = if key == 0 { 0 } else { upper << 16 };
        let ends =
            [low, upper << 16 | 0xFFFF].map(|bits| quantizer.code(f32::from_bits(bits | sign)));
        *first = ends[0].min(ends[1]);
        is_fine &= ends[0].abs_diff(ends[1]) <= 1;
    }
    words.extend(codes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
    (words, is_fine)
}
