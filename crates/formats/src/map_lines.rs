//! Codes of the dynamic maps by arithmetic, for processors that compute faster than they read tables.
//!
//! In each decade of a dynamic map the codes lie on a line over the numbers, and every line is flatter
//! than the one of the decade below; so the lowest of all seven is the one that counts. Lines lie half a code too
//! low, such that a code and the one below it are the only guesses:
//!
//! ```text
//! guess(x) = floor(min over lines of fma(slope, x, start))        code(x) - 1 <= guess(x) <= code(x)
//! code(x)  = guess(x) + (x > thresholds[guess(x)])
//! ```
//!
//! Both guess and code ascend, so this holds for all numbers if it does on both sides of every
//! threshold, which is looked at when a map is made. The signed map is even but for signs: the guess of a number below zero
//! is 253 less that of its magnitude.

use crate::dynamic_map::{DECADES, Map};
use crate::fused::fused;

/// Seven lines, of positive numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// By how much a guess ascends in a unit.
    pub slopes: [f32; 7],
    /// The guess of zero.
    pub starts: [f32; 7],
}

impl Lines {
    /// The lines of the signed or of the unsigned dynamic map.
    #[must_use]
    pub fn dynamic(is_signed: bool) -> Lines {
        let mut lines = Lines { slopes: [0.0; 7], starts: [0.0; 7] };
        let (mut cells, mut first) = if is_signed { (1.0, 128.0) } else { (2.0, 1.0) };
        for ((slope, start), decade) in lines.slopes.iter_mut().zip(&mut lines.starts).zip(DECADES)
        {
            // A decade is cut from 0.1 of its upper end on.
            *slope = (cells / (0.9 * decade)) as f32;
            *start = (first - 0.5 - cells / 9.0) as f32;
            first += cells;
            cells *= 2.0;
        }
        lines
    }

    /// The guess of a number, between -1 and 1, or from 0 to 1 and without a sign.
    #[inline(always)]
    #[must_use]
    pub fn guess(&self, x: f32) -> u8 {
        let magnitude = x.abs();
        let on_line = |(&slope, &start): (&f32, &f32)| fused(slope, magnitude, start);
        let heights = self.slopes.iter().zip(&self.starts).map(on_line);
        let lowest =
            heights.fold(255.0, |lowest, height| if height < lowest { height } else { lowest });
        let guess = lowest as u8;
        if x.is_sign_negative() { 253u8.saturating_sub(guess) } else { guess }
    }

    /// The lines, if with these thresholds all of their guesses are right; else none.
    pub(crate) fn filter_by(self, thresholds: &Map, is_signed: bool) -> Option<Lines> {
        let thresholds = &thresholds[..thresholds.len() - 1];
        let lowest = if is_signed { -1.0 } else { 0.0 };
        let is_guessed = |x: f32| {
            let code = thresholds.partition_point(|&threshold| x > threshold);
            let guess = usize::from(self.guess(x));
            !(lowest..=1.0).contains(&x) || guess == code || guess + 1 == code
        };
        let ends = [lowest, 0.0, 1.0].into_iter().all(is_guessed);
        let borders = thresholds.iter().all(|&x| is_guessed(x) && is_guessed(x.next_up()));
        (ends && borders && (!is_signed || is_guessed(-0.0))).then_some(self)
    }
}
