//! Codes of 8-bit maps by one look into a table.
//!
//! Numbers from 2^-11 on lie in cells of `2^-(23 - shift)` of a binade, smaller ones in cells of an eighth of one, so
//! that a cell has one threshold at most, or else the map is not *fine*. The word of a cell has the
//! code of its lower end in its upper 8 bits; in the others, how far below a carry the threshold lies.
//! So the sum of that word and the number's own lower 24 bits has the code in its upper 8. Those of
//! negative numbers are turned over, for them to ascend as well, and have cells of their own.

use alloc::vec::Vec;

/// How far the bits of a number below [`BORDER_BITS`] are shifted to give its cell.
pub const COARSE_SHIFT: u32 = 20;
/// How far those of others are, in a map with numbers of both signs, and in one without.
pub const SIGNED_SHIFT: u32 = 17;
/// See [`SIGNED_SHIFT`].
pub const UNSIGNED_SHIFT: u32 = 16;
/// The bits of 2^-11.
pub const BORDER_BITS: u32 = (127 - 11) << 23;

const LOWER_24: u32 = 0x00FF_FFFF;
const BORDER_CELL: u32 = BORDER_BITS >> COARSE_SHIFT;

/// The number of cells up to that of 1, rounded up to a multiple of 4.
#[must_use]
pub const fn count(shift: u32) -> u32 {
    let last = BORDER_CELL + ((1f32.to_bits() - BORDER_BITS) >> shift);
    (last + 1).next_multiple_of(4)
}

/// The words of the cells of positive numbers, or of negative ones, given the code of any number; and
/// whether each cell has one threshold at most.
#[must_use]
pub fn words(code: impl Fn(f32) -> u8, shift: u32, is_negative: bool) -> (Vec<u32>, bool) {
    let cells = (0..count(shift)).map(|cell| word(&code, range(cell, shift), is_negative));
    let (words, are_fine): (Vec<u32>, Vec<bool>) = cells.unzip();
    (words, are_fine.into_iter().all(|is_fine| is_fine))
}

/// The word of the cell of the magnitudes with bits from one number to another, and whether it has one
/// threshold at most.
#[must_use]
pub fn word(code: impl Fn(f32) -> u8, (low, high): (u32, u32), is_negative: bool) -> (u32, bool) {
    let sign = if is_negative { u32::MAX } else { 0 };
    let code = |bits: u32| code(f32::from_bits(bits | sign & 1 << 31));
    // In ascending order of the numbers, and of the lower 24 bits that are added.
    let turned = |bits: u32| (bits ^ sign) & LOWER_24;
    let (from, to) = if is_negative { (high, low) } else { (low, high) };
    let (first, last) = (code(from), code(to));
    let mut word = u32::from(first) << 24;
    if last > first {
        let (mut below, mut above) = (turned(from), turned(to));
        while above - below > 1 {
            let middle = below.midpoint(above);
            // The bits that all numbers of a cell have in common, and the middle's.
            let bits = from & !LOWER_24 | (middle ^ sign) & LOWER_24;
            if code(bits) == first { below = middle } else { above = middle }
        }
        word += LOWER_24 - below;
    }
    (word, last.abs_diff(first) <= 1)
}

/// The cell of a magnitude.
#[inline(always)]
#[must_use]
pub const fn cell(magnitude_bits: u32, shift: u32) -> u32 {
    let offset = (BORDER_BITS >> shift) as i32 - BORDER_CELL as i32;
    let fine = (magnitude_bits >> shift) as i32 - offset;
    let coarse = (magnitude_bits >> COARSE_SHIFT) as i32;
    (if fine > coarse { fine } else { coarse }) as u32
}

/// What is added to the word of a number's cell, `sign` being all ones for a negative one.
#[inline(always)]
#[must_use]
pub const fn addend(bits: u32, sign: u32) -> u32 {
    (bits ^ sign) & LOWER_24
}

/// The bits of the smallest and the largest magnitude of a cell.
fn range(cell: u32, shift: u32) -> (u32, u32) {
    let (low, shift) = if cell < BORDER_CELL {
        (cell << COARSE_SHIFT, COARSE_SHIFT)
    } else {
        (BORDER_BITS + ((cell - BORDER_CELL) << shift), shift)
    };
    (low, low + (1 << shift) - 1)
}
