//! What a difference and its interval say, in a word and in words.

use serde::{Deserialize, Serialize};

use super::TunedStep;
use crate::statistics::Interval;

/// What a difference says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is what the others are compared with.
    Baseline,
    /// One pair, beyond noise or without noise to compare it with: no interval, no verdict.
    OnePair,
    /// Noise would do as much.
    WithinNoise,
    /// There is a difference, and a step of the tuned setting makes a larger one.
    WithinStep,
    /// The loss is higher.
    Worse,
    /// The loss is lower.
    Better,
}

impl Verdict {
    /// The verdict on a relative difference, given what noise and what a step of the tuned setting would do.
    #[must_use]
    pub fn of(percent: Interval, noise: Option<f64>, step: Option<f64>) -> Self {
        let size = percent.mean.abs();
        if noise.is_some_and(|noise| size <= noise) {
            return Self::WithinNoise;
        }
        match percent.excludes_zero() {
            None => Self::OnePair,
            Some(false) => Self::WithinNoise,
            Some(true) if step.is_some_and(|step| size < step) => Self::WithinStep,
            Some(true) if percent.mean > 0.0 => Self::Worse,
            Some(true) => Self::Better,
        }
    }

    /// The verdict as a reader of a report wants it.
    #[must_use]
    pub fn words(self, percent: Interval, tuned: Option<&TunedStep>) -> String {
        let amount = |mean: f64| match percent.half_width {
            Some(half) => format!("{mean:.3}% ± {half:.3}%"),
            None => format!("{mean:.3}%"),
        };
        let (signed, size) = (format!("{:+.3}%", percent.mean), amount(percent.mean.abs()));
        let signed =
            percent.half_width.map_or(signed.clone(), |half| format!("{signed} ± {half:.3}%"));
        match self {
            Self::Baseline => "the baseline".into(),
            Self::OnePair => format!("one pair, no verdict ({signed})"),
            Self::WithinNoise => format!("within noise ({signed})"),
            Self::WithinStep => {
                let (key, step) =
                    tuned.map_or(("", 0.0), |tuned| (tuned.key.as_str(), tuned.step_percent));
                format!("none: {signed} is less than the {step:.3}% of a step of {key}")
            }
            Self::Worse => format!("worse by {size}"),
            Self::Better => format!("better by {size}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_interval_the_noise_and_the_step() {
        let interval = |mean, half| Interval { mean, half_width: Some(half) };
        let one = Interval { mean: 0.3, half_width: None };
        assert_eq!(Verdict::of(one, None, None), Verdict::OnePair);
        assert_eq!(Verdict::of(one, Some(0.5), None), Verdict::WithinNoise);
        assert_eq!(Verdict::of(interval(0.11, 0.2), None, None), Verdict::WithinNoise);
        assert_eq!(Verdict::of(interval(0.11, 0.03), Some(0.2), None), Verdict::WithinNoise);
        assert_eq!(Verdict::of(interval(0.11, 0.03), Some(0.05), Some(0.4)), Verdict::WithinStep);
        assert_eq!(Verdict::of(interval(0.11, 0.03), Some(0.05), Some(0.1)), Verdict::Worse);
        assert_eq!(Verdict::of(interval(-0.11, 0.03), None, None), Verdict::Better);
    }

    #[test]
    fn words_say_how_much() {
        let interval = Interval { mean: 0.11, half_width: Some(0.03) };
        assert_eq!(Verdict::Worse.words(interval, None), "worse by 0.110% ± 0.030%");
        assert_eq!(Verdict::Better.words(interval.scaled(-1.0), None), "better by 0.110% ± 0.030%");
        assert_eq!(Verdict::WithinNoise.words(interval, None), "within noise (+0.110% ± 0.030%)");
    }
}
