//! What the codes of a block of second moments stand for in `ustate1q`, in registers, and which code a number has.
//!
//! The level that a number has reached is guessed from its logarithm, of which two or three digits suffice: a guess is
//! put low enough to be that level or the one before it, and the next level decides. With S levels to a binary
//! logarithm that holds up to [`SLOPE_MAX`]: a quadratic polynomial of the mantissa is within
//! [`LOG_ERROR`] of the logarithm, all roundings together and the levels' own are within [`ROUNDING`]
//! of a level, and twice both together less than one level. Blocks with a smaller range compare with levels.

use formats::one_q::ZERO_MAX;

use super::grid::{FEW, Grids};
use super::tiles::{Fours, LANES, TILE, WordFours, of_four};
use crate::simd::Vectors;

/// The polynomial of a mantissa from 1 to 2, the constant first, and its largest error.
const LOG_COEFFICIENTS: [f32; 3] = [-1.674_877_6, 2.024_665_8, -0.344_848_43];
const LOG_ERROR: f32 = 0.004_94;
/// Of numbers below 2^14, some ten roundings.
const ROUNDING: f32 = 0.01;
/// The largest slope of a guess.
const SLOPE_MAX: f32 = 96.0;
const _: () = assert!(2.0 * (SLOPE_MAX * LOG_ERROR + ROUNDING) < 1.0);

/// Tables of a block.
pub(crate) const TABLES: usize = 5;

/// How the levels of up to sixteen blocks are guessed, a lane for each block: by a polynomial in the mantissa, and the
/// exponent times a slope.
pub(crate) struct Guesses {
    slopes: [f32; 16],
    coefficients: [[f32; 16]; 3],
}

impl Guesses {
    #[inline(always)]
    pub(crate) fn new<V: Vectors>(grids: &Grids) -> Guesses {
        let (lowest, step) = (V::load(&grids.lowest), V::load(&grids.step));
        // The logarithm of a root is half that of a number.
        let slope = V::div(V::splat(0.5), step);
        let first = V::sub(V::load(&grids.zeros), V::div(lowest, step));
        let low = V::fused(slope, V::splat(LOG_ERROR), V::splat(ROUNDING));
        let mut guesses = Guesses { slopes: [0.0; 16], coefficients: [[0.0; 16]; 3] };
        V::store(slope, &mut guesses.slopes);
        let of = LOG_COEFFICIENTS.map(|coefficient| V::mul(V::splat(coefficient), slope));
        V::store(V::sub(V::add(of[0], first), low), &mut guesses.coefficients[0]);
        V::store(of[1], &mut guesses.coefficients[1]);
        V::store(of[2], &mut guesses.coefficients[2]);
        guesses
    }
}

/// What up to 16 codes of a block stand for: values, how far the next one is (nothing is rounded up to
/// infinity, which lies above the last), what a number must reach to have the next code, what belongs to what is
/// stored; and whether these ascend. Returns what belongs to
/// what is stored.
#[inline(always)]
pub(crate) fn fill_levels<V: Vectors, const REPAIRED: bool>(
    (grids, number): (&Grids, usize),
    count: u32,
    unit: &Unit,
    [values, widths, borders, units, own]: &mut [[f32; FEW]; TABLES],
) -> V::Floats {
    let (lanes, infinity) = (V::load_words(&LANES), V::splat(f32::INFINITY));
    let roots = grids.roots::<V, REPAIRED>(number);
    let own_values = V::mul(roots, roots);
    let next = V::look_up(own_values, V::plus(lanes, V::words(1)));
    let next = V::choose(V::is_below(lanes, V::words(count - 1)), next, infinity);
    V::store(own_values, values);
    V::store(V::sub(next, own_values), widths);
    let own_units = unit.of::<V, REPAIRED>(roots);
    V::store(own_units, units);
    let mut own_borders = next;
    if grids.zeros[number] > 0.0 {
        // What is not zero has a code above that of zero.
        let above_zero = V::splat(ZERO_MAX.next_up());
        own_borders = V::choose(V::is_below(lanes, V::words(1)), above_zero, next);
    }
    V::store(own_borders, borders);
    let after = V::look_up(own_borders, V::plus(lanes, V::words(1)));
    let after = V::choose(V::is_below(lanes, V::words(count - 1)), after, infinity);
    own[0] = f32::from_bits(V::count(V::exceeds(own_borders, after)));
    own_units
}

/// What first moments are multiplied by to be stored.
pub(crate) struct Unit {
    pub(crate) inverse_correction: f32,
    pub(crate) rms_scale: f32,
    pub(crate) eps: f32,
}

impl Unit {
    /// Given the roots of second moments as they are stored; zero where there is to be no first
    /// moment.
    #[inline(always)]
    pub(crate) fn of<V: Vectors, const REPAIRED: bool>(&self, root: V::Floats) -> V::Floats {
        if !REPAIRED {
            let unit = V::fused(root, V::splat(self.rms_scale), V::splat(self.eps));
            return V::div(V::splat(self.inverse_correction), unit);
        }
        let common = V::splat(self.inverse_correction / self.rms_scale);
        let unit = V::mul(V::div(V::splat(1.0), root), common);
        V::choose(V::exceeds(V::mul(root, root), V::splat(ZERO_MAX)), unit, V::splat(0.0))
    }
}

/// The levels of a block.
pub(crate) struct Levels<V: Vectors> {
    values: V::Floats,
    widths: V::Floats,
    /// What a number must reach to have the next code.
    borders: V::Floats,
    /// Each fourth of them.
    quarters: [V::Floats; 3],
    pub(crate) units: V::Floats,
    slope: V::Floats,
    coefficients: [V::Floats; 3],
    guesses: bool,
    ascend: bool,
    /// Whether a number may count as zero.
    has_zero: bool,
}

impl<V: Vectors> Levels<V> {
    #[inline(always)]
    pub(crate) fn load(
        (grids, guesses, number): (&Grids, &Guesses, usize),
        [values, widths, borders, units, own]: &[[f32; FEW]; TABLES],
    ) -> Levels<V> {
        let (slope, [a, b, c]) = (guesses.slopes[number], &guesses.coefficients);
        let guesses = slope > 0.0 && slope <= SLOPE_MAX;
        Levels {
            values: V::load(values),
            widths: V::load(widths),
            borders: V::load(borders),
            quarters: [V::splat(borders[3]), V::splat(borders[7]), V::splat(borders[11])],
            units: V::load(units),
            slope: V::splat(slope),
            coefficients: [V::splat(a[number]), V::splat(b[number]), V::splat(c[number])],
            guesses,
            ascend: own[0].to_bits() == 0,
            // Endpoints of a block of zeros alone are equal.
            has_zero: grids.zeros[number] > 0.0 || !guesses,
        }
    }

    /// The codes of a tile.
    #[inline(always)]
    pub(crate) fn encode<const REPAIRED: bool>(
        &self,
        v: Fours<V>,
        uniforms: Fours<V>,
    ) -> WordFours<V> {
        let lower: WordFours<V> = if REPAIRED && self.guesses {
            of_four!(|k| self.guessed(v[k]))
        } else if self.ascend {
            of_four!(|k| self.quartered(v[k]))
        } else {
            let (mut numbers, mut borders) = ([0.0; TILE], [0.0; FEW]);
            V::store_fours(v, &mut numbers);
            V::store(self.borders, &mut borders);
            let counts = V::fours(&counted(&borders, &numbers));
            of_four!(|k| V::whole(counts[k]))
        };
        let codes: WordFours<V> = of_four!(|k| {
            let lower = lower[k];
            let (a, width) = (V::look_up(self.values, lower), V::look_up(self.widths, lower));
            let side = V::fused(uniforms[k], width, V::sub(a, v[k]));
            V::plus(lower, V::shr::<31>(V::bits(side)))
        });
        if !(REPAIRED && self.has_zero) {
            return codes;
        }
        let zero_max = V::splat(ZERO_MAX);
        of_four!(|k| V::choose_words(V::exceeds(v[k], zero_max), codes[k], V::words(0)))
    }

    /// How many borders a number has reached that does not count as zero.
    #[inline(always)]
    fn guessed(&self, v: V::Floats) -> V::Words {
        let (exponent, mantissa) = (V::exponents(v), V::mantissas(v));
        let [a, b, c] = self.coefficients;
        let of_exponent = V::fused(exponent, self.slope, a);
        let guess = V::whole(V::fused(V::fused(c, mantissa, b), mantissa, of_exponent));
        let is_next = V::reaches(v, V::look_up(self.borders, guess));
        V::choose_words(is_next, V::plus(guess, V::words(1)), guess)
    }

    /// The same of any number, by quarters: what is looked up is not waited
    /// for as often as by halves.
    #[inline(always)]
    fn quartered(&self, v: V::Floats) -> V::Words {
        let mut count = V::words(0);
        for (number, &quarter) in self.quarters.iter().enumerate() {
            let reached = V::reaches(v, quarter);
            count = V::choose_words(reached, V::words(4 * (number as u32 + 1)), count);
        }
        let first = count;
        for step in [0, 1, 2] {
            let last = V::or(first, V::words(step));
            let is_next = V::reaches(v, V::look_up(self.borders, last));
            count = V::choose_words(is_next, V::plus(last, V::words(1)), count);
        }
        count
    }
}

/// The same one by one.
#[cold]
#[inline(never)]
fn counted(borders: &[f32; FEW], v: &[f32; TILE]) -> [f32; TILE] {
    v.map(|v| borders[..FEW - 1].iter().filter(|&&border| border <= v).count() as f32)
}
