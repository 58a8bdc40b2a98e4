//! The 8-bit maps of block-wise formats: 256 ascending numbers from -1 or 0 to 1, and the nearest
//! entry to a number.
//!
//! The dynamic maps have as many entries in every decade below 1 as half of those above it: for
//! `i = 0, ..., 6` the interval from 0.1 to 1 is cut into `2^i` cells (twice as many in the
//! unsigned map), and the middles of the cells, times `10^(i - 6)`, are entries. Zero and one come
//! besides, and in the signed map the negatives of the cells; there is no -1. Borders of cells,
//! each one fused multiply-add away from its end of the interval, and their means are f32; the power
//! is multiplied in f64, and rounded once.
//!
//! A [`Quantizer`] turns a number into a code by thresholds: the code of `x` is the number of
//! thresholds below `x`. Every rule of rounding is a choice of thresholds, so every
//! device has the same one; how it finds the code, by bisection, by the table of
//! [`map_cells`] or by the lines of [`map_lines`](crate::map_lines), is its own affair.

use alloc::boxed::Box;

use crate::Error;
use crate::map_cells::{self, SIGNED_SHIFT, UNSIGNED_SHIFT, addend, cell};
use crate::map_lines::Lines;

/// Entries of a map.
pub const ENTRIES: usize = 256;

/// Entries that belong to codes.
pub type Map = [f32; ENTRIES];

/// The decades of a dynamic map, the lowest first.
pub(crate) const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// What is left of a number that fades by a tenth, and a millionth more, for its rounding.
pub const FADING: f64 = 0.900_001;

/// Which code numbers between two entries get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nearest {
    /// The nearer one's, the even one's in the middle.
    Plain,
    /// As `Plain`, but an entry ends where [`FADING`] of it begins, so that a number which only
    /// fades moves to smaller and smaller entries, and to zero at last. Meant for the first
    /// moment.
    Fading,
    /// As `Plain`, but above zero never zero's. Meant for the second moment.
    NeverZero,
    /// As `Plain`, but below zero never zero's: how the published format treats signs.
    NegativeNeverZero,
}

/// A map with its thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantizer {
    /// The entries.
    pub map: Map,
    /// A number gets the code `c` if it lies above the first `c` thresholds alone; the last one is
    /// infinite.
    pub thresholds: Map,
    /// The words of its cells: of positive numbers, and in the upper half of negative ones.
    cells: Box<[u32; CELLS]>,
    /// Whether it has entries below zero.
    is_signed: bool,
    is_fine: bool,
    lines: Option<Lines>,
}

/// Room for cells of both signs.
pub const CELLS: usize = 4096;

/// The signed dynamic map: code 127 is zero, 255 is 1, 0 is -0.9929688.
#[must_use]
pub fn signed() -> Map {
    let mut map = [0.0; ENTRIES];
    for (position, magnitude) in cells(1).enumerate() {
        map[128 + position] = magnitude;
        map[126 - position] = -magnitude;
    }
    map[255] = 1.0;
    map
}

/// The unsigned dynamic map: code 0 is zero, 255 is 1.
#[must_use]
pub fn unsigned() -> Map {
    let mut map = [0.0; ENTRIES];
    for (position, magnitude) in cells(2).enumerate() {
        map[1 + position] = magnitude;
    }
    map[255] = 1.0;
    map
}

/// The entries between zero and one, ascending, with `first` cells in the lowest decade.
fn cells(first: usize) -> impl Iterator<Item = f32> {
    DECADES.into_iter().enumerate().flat_map(move |(i, power)| {
        let count = first << i;
        (0..count).map(move |cell| {
            let mean = (border(cell, count) + border(cell + 1, count)) / 2.0;
            (power * f64::from(mean)) as f32
        })
    })
}

/// Border `index` of `cells` cells of equal width from 0.1 to 1, counted from the nearer end.
fn border(index: usize, cells: usize) -> f32 {
    let width = f64::from((1.0f32 - 0.1) / cells as f32);
    if index <= cells / 2 {
        (f64::from(0.1f32) + width * index as f64) as f32
    } else {
        (1.0 - width * (cells - index) as f64) as f32
    }
}

/// Checks that `entries` are 256 finite numbers in strictly ascending order.
///
/// # Errors
///
/// [`Error::MapEntries`] and [`Error::MapOrder`].
pub fn checked(entries: &[f32]) -> Result<Map, Error> {
    let Ok(map) = Map::try_from(entries) else {
        return Err(Error::MapEntries { found: entries.len() });
    };
    for index in 0..ENTRIES {
        let before = if index == 0 { f32::NEG_INFINITY } else { map[index - 1] };
        let (before, found) = (before, map[index]);
        if !found.is_finite() || found <= before {
            let (before, found) = (before.to_bits(), found.to_bits());
            return Err(Error::MapOrder { index, before, found });
        }
    }
    Ok(map)
}

impl Quantizer {
    /// The quantizer of a map that is [`checked`].
    #[must_use]
    pub fn new(map: Map, nearest: Nearest) -> Quantizer {
        let mut thresholds = [f32::INFINITY; ENTRIES];
        for code in 0..ENTRIES - 1 {
            thresholds[code] = threshold(map[code], map[code + 1], code, nearest);
        }
        let is_signed = map[0] < 0.0;
        let shift = if is_signed { SIGNED_SHIFT } else { UNSIGNED_SHIFT };
        let code = |x: f32| bisected(&thresholds, x);
        let mut cells = Box::new([0; CELLS]);
        let (words, mut is_fine) = map_cells::words(code, shift, false);
        cells[..words.len()].copy_from_slice(&words);
        if is_signed {
            let (words, is_fine_below) = map_cells::words(code, shift, true);
            cells[CELLS / 2..][..words.len()].copy_from_slice(&words);
            is_fine &= is_fine_below;
        }
        let lines = Lines::dynamic(is_signed).filter_by(&thresholds, is_signed);
        Quantizer { map, thresholds, cells, is_signed, is_fine, lines }
    }

    /// The lines that guess its codes, if it is so like a dynamic map that they do.
    #[must_use]
    pub const fn lines(&self) -> Option<&Lines> {
        self.lines.as_ref()
    }

    /// The code of a finite number of at most 1.
    #[inline(always)]
    #[must_use]
    pub fn code(&self, x: f32) -> u8 {
        match (self.is_fine, self.is_signed) {
            (true, true) => self.code_by_cell::<true>(x),
            (true, false) => self.code_by_cell::<false>(x),
            (false, _) => self.bisected(x),
        }
    }

    /// Whether it has entries below zero.
    #[must_use]
    pub const fn is_signed(&self) -> bool {
        self.is_signed
    }

    /// The same by one read, where the map is fine; `SIGNED` is whether it
    /// [`is_signed`](Self::is_signed).
    #[inline(always)]
    fn code_by_cell<const SIGNED: bool>(&self, x: f32) -> u8 {
        let (cell, addend) = Quantizer::cell::<SIGNED>(x);
        (self.cells[cell as usize % CELLS].wrapping_add(addend) >> 24) as u8
    }

    /// Where the cells have the word of a number, and what is to be added to it for its upper 8 bits to be
    /// the code.
    #[inline(always)]
    const fn cell<const SIGNED: bool>(x: f32) -> (u32, u32) {
        if SIGNED {
            let bits = x.to_bits();
            let sign = (bits as i32 >> 31) as u32;
            let half = sign & (CELLS as u32 / 2);
            (cell(bits & 0x7FFF_FFFF, SIGNED_SHIFT) | half, addend(bits, sign))
        } else {
            // Whatever is below zero has the code of zero.
            let bits = if x > 0.0 { x.to_bits() } else { 0 };
            (cell(bits, UNSIGNED_SHIFT), addend(bits, 0))
        }
    }

    /// The code of a number without a block, that is zero.
    #[must_use]
    pub fn code_of_zero(&self) -> u8 {
        self.bisected(0.0)
    }

    /// The number of thresholds below `x`.
    #[must_use]
    pub fn bisected(&self, x: f32) -> u8 {
        bisected(&self.thresholds, x)
    }
}

fn bisected(thresholds: &Map, x: f32) -> u8 {
    thresholds[..ENTRIES - 1].partition_point(|&threshold| x > threshold) as u8
}

/// The largest number that gets the code of the lower one of two entries.
fn threshold(lower: f32, upper: f32, code: usize, nearest: Nearest) -> f32 {
    match nearest {
        Nearest::NeverZero if lower == 0.0 => return 0.0,
        Nearest::NegativeNeverZero if upper == 0.0 => return 0f32.next_down(),
        _ => {}
    }
    let middle = (f64::from(lower) + f64::from(upper)) / 2.0;
    let middle = match nearest {
        Nearest::Fading if upper > 0.0 => middle.max(FADING * f64::from(upper)),
        Nearest::Fading => middle.min(FADING * f64::from(lower)),
        _ => middle,
    };
    let mut threshold = middle as f32;
    if f64::from(threshold) > middle {
        threshold = threshold.next_down();
    }
    // In the middle the even code wins, which is the upper one's if the lower one's is odd.
    if f64::from(threshold) == middle && code % 2 == 1 { threshold.next_down() } else { threshold }
}
