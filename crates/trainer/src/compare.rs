//! Matched pairs of runs: what one setting changes, with an interval, beside what noise alone changes.
//!
//! A pair is two runs of one seed: the same initial weights and the same data in the same order, which only the
//! varied setting tells apart. Noise is shown by runs whose initial weights were changed by a millionth: whatever
//! such a run ends apart from its twin is no effect of anything.
//!
//! A difference counts when its confidence interval excludes zero, when it is larger than what noise would give
//! the mean of as many pairs, and, after tuning, when it is larger than what one step of the tuned setting makes.

mod findings;
mod matching;
mod plan;
mod verdict;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::record::RunRecord;
use crate::settings::is_same_value;
use crate::shadow;
use crate::statistics::{CONFIDENCE, Interval, mean, noise_floor, standard_deviation};

pub use findings::{HEAD, picture, report};
pub use matching::{Matched, Pairing};
pub use plan::{Comparing, TunedRuns, Variation, seeds, split};
pub use verdict::Verdict;

/// What was found of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The setting that differs.
    pub varied: String,
    /// Its value that others are compared with.
    pub baseline: String,
    /// What losses are in.
    pub unit: String,
    /// The confidence of all intervals.
    pub confidence: f64,
    /// What noise alone does, if runs showed it.
    pub noise: Option<Noise>,
    /// What a step of the tuned setting does, after tuning.
    pub tuned: Option<TunedStep>,
    /// Every value of the setting, the baseline first.
    pub variants: Vec<Variant>,
}

/// Differences that only noise made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Relative size of the change to the initial weights.
    pub perturbation: String,
    /// Perturbed less unperturbed, for each seed.
    pub differences: Vec<SeedDifference>,
    /// `sqrt(mean square)` of the relative differences, in percent.
    pub rms_percent: f64,
}

/// What one step of the tuned setting changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedStep {
    /// The tuned setting.
    pub key: String,
    /// The smallest relative change of the baseline's loss from its best value to one beside it, in percent.
    pub step_percent: f64,
    /// Variants whose best value is the first or the last one tried, so that a better one may lie beyond.
    pub at_an_end: Vec<String>,
}

/// The difference of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeedDifference {
    /// The seed.
    pub seed: u64,
    /// The loss less that of the other run.
    pub difference: f64,
    /// The same in percent of the other loss.
    pub percent: f64,
}

/// One value of the varied setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// The value.
    pub value: String,
    /// The value of the tuned setting that its runs have, after tuning.
    pub tuned: Option<String>,
    /// The final loss of each seed.
    pub losses: BTreeMap<u64, f64>,
    /// The mean of the losses.
    pub loss_mean: f64,
    /// Their standard deviation over seeds; none of a single one.
    pub loss_deviation: Option<f64>,
    /// Differences from the baseline, pair by pair; none for the baseline itself.
    pub pairs: Vec<SeedDifference>,
    /// The mean difference; none for the baseline.
    pub difference: Option<Interval>,
    /// The mean difference in percent of the baseline's loss.
    pub percent: Option<Interval>,
    /// How far from zero, in percent, noise alone would bring a mean of as many pairs.
    pub noise_percent: Option<f64>,
    /// What that says.
    pub verdict: Verdict,
    /// The same in words.
    pub verdict_words: String,
    /// Measured bytes of optimizer state a parameter.
    pub state_bytes_per_parameter: f64,
    /// Mean milliseconds of an update.
    pub ms_per_update: Option<f64>,
    /// First moments clamped at the largest code, over all its runs.
    pub saturated_m: u64,
    /// RMS values clamped at the largest code, over all its runs.
    pub saturated_r: u64,
    /// Elements that were not finite, over all its runs.
    pub nonfinite: u64,
    /// Shares of first moments and of RMS that gradients left as they were, where it was a shadow of the baseline.
    pub stalled: Option<[f64; 2]>,
}

impl Comparison {
    /// Compares runs that were found to match.
    ///
    /// # Errors
    ///
    /// A run that is not finished, byte lengths that only some have, a variant without a pair.
    pub fn new(matched: &Matched<'_>) -> Result<Self, Error> {
        let all = || matched.runs().map(|(_, run)| run);
        let bytes = all()
            .filter_map(|run| run.summary.as_ref())
            .all(|summary| summary.validation_bpb.is_some());
        let loss = |run: &RunRecord| run.final_loss(bytes);
        let baseline_losses = matched.losses(&matched.baseline, loss)?;
        let noise = noise(matched, &baseline_losses, loss)?;
        let tuned = matched.tuning.as_ref().map(|tuning| tuning.step(loss)).transpose()?;
        let mut variants = Vec::new();
        for value in &matched.values {
            let mut variant = variant(matched, value, loss)?;
            if *value != matched.baseline {
                variant.pair_with(&baseline_losses, noise.as_ref(), tuned.as_ref(), matched)?;
            }
            variants.push(variant);
        }
        Ok(Self {
            varied: matched.varied.clone(),
            baseline: matched.baseline.clone(),
            unit: if bytes { "bits per byte" } else { "nats per token" }.into(),
            confidence: CONFIDENCE,
            noise,
            tuned,
            variants,
        })
    }
}

fn noise(
    matched: &Matched<'_>,
    baseline: &BTreeMap<u64, f64>,
    loss: impl Fn(&RunRecord) -> Result<f64, Error>,
) -> Result<Option<Noise>, Error> {
    let mut differences = Vec::new();
    for (seed, run) in &matched.perturbed {
        if let Some(&twin) = baseline.get(seed) {
            differences.push(SeedDifference::new(*seed, loss(run)?, twin));
        }
    }
    let Some((_, run)) = matched.perturbed.iter().next() else { return Ok(None) };
    let squares: Vec<f64> = differences.iter().map(|d| d.percent * d.percent).collect();
    Ok((!differences.is_empty()).then(|| Noise {
        perturbation: exponent(&run.settings.shown("run.perturbation")),
        rms_percent: mean(&squares).sqrt(),
        differences,
    }))
}

/// `1e-6` for `0.000001`.
fn exponent(number: &str) -> String {
    number.parse::<f64>().map_or_else(|_| number.to_owned(), |number| format!("{number:e}"))
}

fn variant(
    matched: &Matched<'_>,
    value: &str,
    loss: impl Fn(&RunRecord) -> Result<f64, Error>,
) -> Result<Variant, Error> {
    let losses = matched.losses(value, loss)?;
    let runs: Vec<&RunRecord> = matched.of(value).map(|(_, run)| run).collect();
    let values: Vec<f64> = losses.values().copied().collect();
    let times: Vec<f64> = runs.iter().filter_map(|run| run.ms_per_update()).collect();
    let summaries = || runs.iter().filter_map(|run| run.summary.as_ref());
    Ok(Variant {
        value: value.to_owned(),
        tuned: matched.tuning.as_ref().and_then(|tuning| tuning.best_of(value).cloned()),
        loss_mean: mean(&values),
        loss_deviation: standard_deviation(&values),
        losses,
        pairs: Vec::new(),
        difference: None,
        percent: None,
        noise_percent: None,
        verdict: Verdict::Baseline,
        verdict_words: "the baseline".into(),
        state_bytes_per_parameter: summaries()
            .map(|summary| summary.state_bytes_per_parameter)
            .next()
            .unwrap_or(0.0),
        ms_per_update: (!times.is_empty()).then(|| mean(&times)),
        saturated_m: summaries().map(|summary| summary.saturated_m).sum(),
        saturated_r: summaries().map(|summary| summary.saturated_r).sum(),
        nonfinite: summaries().map(|summary| summary.nonfinite).sum(),
        stalled: stalled(matched, value),
    })
}

/// What the shadows of the baseline's runs found of a value.
fn stalled(matched: &Matched<'_>, value: &str) -> Option<[f64; 2]> {
    matched.of(&matched.baseline).find_map(|(_, run)| {
        let found = shadow::summaries(&run.shadow);
        let mine =
            found.into_iter().find(|s| is_same_value(&s.format, value) && s.role == shadow::ALL)?;
        Some([mine.means.stalled_m, mine.means.stalled_r])
    })
}

impl Variant {
    fn pair_with(
        &mut self,
        baseline: &BTreeMap<u64, f64>,
        noise: Option<&Noise>,
        tuned: Option<&TunedStep>,
        matched: &Matched<'_>,
    ) -> Result<(), Error> {
        self.pairs = self
            .losses
            .iter()
            .filter_map(|(seed, &loss)| {
                Some(SeedDifference::new(*seed, loss, *baseline.get(seed)?))
            })
            .collect();
        if self.pairs.is_empty() {
            return Err(Error::Study {
                place: format!("{} = {}", matched.varied, self.value),
                message: format!(
                    "no run of it has the seed of a run of {}, so there is no pair",
                    matched.baseline
                ),
            });
        }
        let differences: Vec<f64> = self.pairs.iter().map(|pair| pair.difference).collect();
        let percents: Vec<f64> = self.pairs.iter().map(|pair| pair.percent).collect();
        let percent = Interval::of(&percents);
        self.difference = Some(Interval::of(&differences));
        self.percent = Some(percent);
        self.noise_percent = noise.and_then(|noise| {
            let noise: Vec<f64> = noise.differences.iter().map(|d| d.percent).collect();
            noise_floor(&noise, percents.len())
        });
        self.verdict =
            Verdict::of(percent, self.noise_percent, tuned.map(|tuned| tuned.step_percent));
        self.verdict_words = self.verdict.words(percent, tuned);
        Ok(())
    }
}

impl SeedDifference {
    fn new(seed: u64, loss: f64, other: f64) -> Self {
        let difference = loss - other;
        Self { seed, difference, percent: difference / other * 100.0 }
    }
}
