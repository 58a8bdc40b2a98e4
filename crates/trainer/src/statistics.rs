//! Means of few values and what can be said of them: Student's t, paired differences, a floor of noise.
//!
//! The quantile of Student's t is solved from the closed form that its distribution has for whole degrees of
//! freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4), since that is all that pairs of runs need.

use serde::{Deserialize, Serialize};

/// The share of all cases in which an interval holds the true mean.
pub const CONFIDENCE: f64 = 0.95;

/// A mean and how far from it the true one may lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean of the values.
    pub mean: f64,
    /// Half the width of the interval of [`CONFIDENCE`] around it; none of fewer than two values.
    pub half_width: Option<f64>,
}

impl Interval {
    /// The mean of `values` with its interval, by Student's t: `t(n - 1) s / sqrt(n)`.
    ///
    /// # Panics
    ///
    /// Without a single value.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "a mean takes values");
        let half_width = standard_deviation(values).map(|deviation| {
            student_t(CONFIDENCE, values.len() - 1) * deviation / (values.len() as f64).sqrt()
        });
        Self { mean: mean(values), half_width }
    }

    /// Whether zero lies outside of the interval. Unknown without one.
    #[must_use]
    pub fn excludes_zero(&self) -> Option<bool> {
        self.half_width.map(|half| self.mean.abs() > half)
    }

    /// Mean and half width times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let half_width = self.half_width.map(|half| half * factor.abs());
        Self { mean: self.mean * factor, half_width }
    }
}

/// The mean; zero of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard deviation of a sample, `sqrt(sum (x - mean)^2 / (n - 1))`; none of fewer than two values.
#[must_use]
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let centre = mean(values);
    let squares: f64 = values.iter().map(|value| (value - centre) * (value - centre)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// How far the mean of `count` differences may lie from zero where nothing but noise makes them, given
/// differences that only noise made: `t(k) sqrt(sum d^2 / k) / sqrt(count)`. Their mean is known to be zero, so
/// the `k` differences have `k` degrees of freedom. None without a difference.
#[must_use]
pub fn noise_floor(noise: &[f64], count: usize) -> Option<f64> {
    let squares: f64 = noise.iter().map(|difference| difference * difference).sum();
    let degrees = noise.len();
    (degrees > 0 && count > 0).then(|| {
        student_t(CONFIDENCE, degrees) * (squares / degrees as f64).sqrt() / (count as f64).sqrt()
    })
}

/// The `t` with `P(|T| < t) = share` for Student's distribution of so many degrees of freedom.
///
/// # Panics
///
/// Without a degree of freedom, or with a share that is not between 0 and 1.
#[must_use]
pub fn student_t(share: f64, degrees: usize) -> f64 {
    assert!(degrees > 0 && share > 0.0 && share < 1.0, "no such quantile");
    // Bisection over the angle, which is bounded where t is not.
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if within(middle, degrees) < share { low = middle } else { high = middle }
    }
    low.tan() * (degrees as f64).sqrt()
}

/// `P(|T| < t)` at `t = tan(angle) sqrt(degrees)`.
fn within(angle: f64, degrees: usize) -> f64 {
    let (sine, cosine) = angle.sin_cos();
    // The powers of the cosine begin at 1 or at 0, with degrees that are odd or even.
    let odd = degrees % 2 == 1;
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    let first = if odd { 3 } else { 2 };
    for next in (first..=degrees).step_by(2) {
        sum += term;
        let next = next as f64;
        term *= cosine * cosine * (next - 1.0) / next;
    }
    if odd { (angle + sine * sum) * std::f64::consts::FRAC_2_PI } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the tables in Abramowitz and Stegun, 26.10.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, expected) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)]
        {
            let found = student_t(0.95, degrees);
            assert!((found - expected).abs() < 6e-4, "{degrees}: {found}");
        }
        assert!((student_t(0.99, 7) - 3.499).abs() < 6e-4);
        assert!((student_t(0.95, 100_000) - 1.960).abs() < 6e-4);
    }

    #[test]
    fn intervals_of_known_samples() {
        // Differences 1, 2, 3: mean 2, deviation 1, t(2) = 4.303.
        let interval = Interval::of(&[1.0, 2.0, 3.0]);
        assert_eq!(interval.mean, 2.0);
        assert!((interval.half_width.unwrap() - 4.3027 / 3f64.sqrt()).abs() < 1e-4);
        assert_eq!(interval.excludes_zero(), Some(false));
        assert_eq!(Interval::of(&[0.5, 0.5]).excludes_zero(), Some(true));
        assert_eq!(Interval::of(&[0.5]), Interval { mean: 0.5, half_width: None });
        assert_eq!(Interval::of(&[-1.0, -3.0]).scaled(-2.0).mean, 4.0);
    }

    #[test]
    fn the_floor_of_noise_narrows_with_pairs() {
        let one = noise_floor(&[0.1], 1).unwrap();
        assert!((one - 1.2706).abs() < 1e-3, "{one}");
        let four = noise_floor(&[0.1, -0.1, 0.1, -0.1], 4).unwrap();
        assert!((four - 2.776 * 0.1 / 2.0).abs() < 1e-4, "{four}");
        assert_eq!(noise_floor(&[], 3), None);
    }
}
