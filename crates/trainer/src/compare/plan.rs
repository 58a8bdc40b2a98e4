//! Which runs a comparison makes: every value with every seed, twins with perturbed weights, and rates to tune.

use std::collections::BTreeMap;

use super::TunedStep;
use crate::error::Error;
use crate::record::RunRecord;
use crate::report::short_setting;
use crate::settings::{Settings, is_same_value};
use crate::study::{PlannedRun, file_name};

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variation {
    /// The setting.
    pub key: String,
    /// Its values, as TOML or bare words; at least one.
    pub values: Vec<String>,
}

impl Variation {
    /// Reads `KEY=V1,V2,...`. Commas in brackets and quotes do not part values; where there is a semicolon, only
    /// semicolons do.
    ///
    /// # Errors
    ///
    /// A text without `=`, an empty list, a value that is twice there.
    pub fn parse(argument: &str, flag: &str) -> Result<Self, Error> {
        let wrong = |message: &str| Error::Study {
            place: format!("{flag} {argument}"),
            message: message.to_owned(),
        };
        let (key, list) =
            argument.split_once('=').ok_or_else(|| wrong("expected KEY=V1,V2,..."))?;
        let values = split(list);
        if values.iter().any(String::is_empty) {
            return Err(wrong("a value is empty; expected KEY=V1,V2,..."));
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].iter().any(|before| is_same_value(before, value)) {
                return Err(wrong(&format!("{value} is twice there")));
            }
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Parts a list at its commas, or at its semicolons where it has any, but not in brackets or quotes.
#[must_use]
pub fn split(list: &str) -> Vec<String> {
    let separator = if list.contains(';') { ';' } else { ',' };
    let (mut depth, mut quoted) = (0_i32, false);
    let mut values = vec![String::new()];
    for c in list.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' if !quoted => depth += 1,
            ']' if !quoted => depth -= 1,
            _ => {}
        }
        if c == separator && depth == 0 && !quoted {
            values.push(String::new());
        } else if let Some(last) = values.last_mut() {
            last.push(c);
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

/// Reads seeds: `1..5` (both ends included) or `1,2,3`.
///
/// # Errors
///
/// Text that is neither, an empty range, a seed that is twice there.
pub fn seeds(text: &str) -> Result<Vec<u64>, Error> {
    let wrong = |message: &str| Error::Study {
        place: format!("--seeds {text}"),
        message: message.to_owned(),
    };
    let number =
        |text: &str| text.trim().parse::<u64>().map_err(|_| wrong("expected 1..5 or 1,2,3"));
    let seeds: Vec<u64> = match text.split_once("..") {
        Some((first, last)) => (number(first)?..=number(last.trim_start_matches('='))?).collect(),
        None => text.split(',').map(number).collect::<Result<_, _>>()?,
    };
    let mut sorted = seeds.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if seeds.is_empty() || sorted.len() < seeds.len() {
        return Err(wrong("no seed, or one that is twice there"));
    }
    Ok(seeds)
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparing {
    /// The settings that all runs share.
    pub settings: Settings,
    /// What differs; its first value is the baseline.
    pub varied: Variation,
    /// The seeds of the pairs.
    pub seeds: Vec<u64>,
    /// What each variant has its own best value of.
    pub tuned: Option<Variation>,
    /// Relative size of the change that shows noise; no such runs at zero.
    pub perturbation: f64,
    /// Whether the first run of the baseline feeds its gradients to the other values, which are state formats.
    pub shadow: bool,
}

impl Comparing {
    /// The runs that tune, all with the first seed: every value of the varied setting with every value of the
    /// tuned one.
    ///
    /// # Errors
    ///
    /// Values that the settings refuse.
    pub fn tuning_runs(&self) -> Result<Vec<PlannedRun>, Error> {
        let Some(tuned) = &self.tuned else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        for value in &self.varied.values {
            for rate in &tuned.values {
                runs.push(self.planned(value, Some(rate), self.seeds[0], false)?);
            }
        }
        Ok(runs)
    }

    /// The runs that are compared: every value with every seed, and the perturbed twins of the first value.
    /// `best` has the value of the tuned setting for each value of the varied one.
    ///
    /// # Errors
    ///
    /// Values that the settings refuse.
    pub fn runs(&self, best: &BTreeMap<String, String>) -> Result<Vec<PlannedRun>, Error> {
        let mut runs = Vec::new();
        // Seed by seed, so that a study that is stopped early has whole pairs.
        for &seed in &self.seeds {
            for value in &self.varied.values {
                runs.push(self.planned(value, best.get(value), seed, false)?);
            }
            if self.perturbation > 0.0 {
                let value = &self.varied.values[0];
                runs.push(self.planned(value, best.get(value), seed, true)?);
            }
        }
        Ok(runs)
    }

    fn planned(
        &self,
        value: &str,
        rate: Option<&String>,
        seed: u64,
        is_perturbed: bool,
    ) -> Result<PlannedRun, Error> {
        let mut settings = self.settings.clone();
        let mut set = |key: &str, value: &str| settings.add_assignment(&format!("{key}={value}"));
        set(&self.varied.key, value)?;
        set("run.seed", &seed.to_string())?;
        let mut name = value.trim_matches('"').to_owned();
        if let Some((tuned, rate)) = self.tuned.as_ref().zip(rate) {
            set(&tuned.key, rate)?;
            name = format!("{name}-{}", short_setting(&tuned.key, rate));
        }
        name = format!("{name}-seed-{seed}");
        if self.shadow && !is_perturbed && seed == self.seeds[0] && value == self.varied.values[0] {
            let others: Vec<String> = self.varied.values[1..]
                .iter()
                .map(|v| format!("{:?}", v.trim_matches('"')))
                .collect();
            set("run.shadow", &format!("[{}]", others.join(", ")))?;
        }
        if is_perturbed {
            set("run.perturbation", &format!("{:e}", self.perturbation))?;
            name.push_str("-perturbed");
        }
        Ok(PlannedRun { name: file_name(&name), settings })
    }
}

/// Runs that tuned a setting.
#[derive(Clone, Debug)]
pub struct TunedRuns<'a> {
    /// The value of the varied setting that others are compared with.
    pub baseline: String,
    /// The tuned setting and its values in their order.
    pub tuned: Variation,
    /// Value of the varied setting, value of the tuned one, run.
    pub runs: Vec<(String, String, &'a RunRecord)>,
    /// The best value of the tuned setting for each value of the varied one.
    pub best: BTreeMap<String, String>,
}

impl<'a> TunedRuns<'a> {
    /// Finds the best value of each variant, given the runs of [`Comparing::tuning_runs`]. A run that failed is
    /// none and the best of nothing.
    ///
    /// # Errors
    ///
    /// A variant of which no run is finished.
    pub fn new(
        comparing: &Comparing,
        runs: &'a [Option<RunRecord>],
    ) -> Result<Option<Self>, Error> {
        let Some(tuned) = comparing.tuned.clone() else { return Ok(None) };
        let pairs =
            comparing.varied.values.iter().flat_map(|value| {
                tuned.values.iter().map(move |rate| (value.clone(), rate.clone()))
            });
        let runs: Vec<(String, String, &RunRecord)> = pairs
            .zip(runs)
            .filter_map(|((value, rate), run)| Some((value, rate, run.as_ref()?)))
            .collect();
        let mut best = BTreeMap::new();
        for value in &comparing.varied.values {
            let finished = runs
                .iter()
                .filter(|(found, _, _)| found == value)
                .filter_map(|(_, rate, run)| Some((rate, run.summary.as_ref()?)));
            let found = finished
                .min_by(|a, b| a.1.validation_loss_nats.total_cmp(&b.1.validation_loss_nats));
            let (rate, _) = found.ok_or_else(|| Error::Study {
                place: format!("{} = {value}", comparing.varied.key),
                message: format!("no run that tunes {} is finished", tuned.key),
            })?;
            best.insert(value.clone(), rate.clone());
        }
        Ok(Some(Self { baseline: comparing.varied.values[0].clone(), tuned, runs, best }))
    }

    /// The best value of the tuned setting for one of the varied one, however that is spelled.
    #[must_use]
    pub fn best_of(&self, value: &str) -> Option<&String> {
        self.best.iter().find(|(found, _)| is_same_value(found, value)).map(|(_, best)| best)
    }

    /// What one step from the baseline's best value changes, by a loss of runs.
    ///
    /// # Errors
    ///
    /// Those of `loss`.
    pub fn step(
        &self,
        loss: impl Fn(&RunRecord) -> Result<f64, Error>,
    ) -> Result<TunedStep, Error> {
        let place = |rate: &String| self.tuned.values.iter().position(|value| value == rate);
        let baseline = &self.baseline;
        let best = self.best.get(baseline).and_then(place).unwrap_or(0);
        let mut losses = BTreeMap::new();
        for (value, rate, run) in &self.runs {
            if let Some(position) =
                place(rate).filter(|_| value == baseline && run.summary.is_some())
            {
                losses.insert(position, loss(run)?);
            }
        }
        let beside = [best.checked_sub(1), Some(best + 1)].into_iter().flatten();
        let change = |position: usize| {
            let (there, here) = (losses.get(&position)?, losses.get(&best)?);
            Some((there - here).abs() / here * 100.0)
        };
        let step_percent = beside.filter_map(change).fold(f64::INFINITY, f64::min);
        let last = self.tuned.values.len() - 1;
        let is_end = |rate: &String| place(rate).is_some_and(|at| at == 0 || at == last);
        let at_an_end =
            self.best.iter().filter(|(_, rate)| is_end(rate)).map(|(value, _)| value.clone());
        Ok(TunedStep {
            key: self.tuned.key.clone(),
            step_percent: if step_percent.is_finite() { step_percent } else { 0.0 },
            at_an_end: if last > 0 { at_an_end.collect() } else { Vec::new() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parted_where_they_should() {
        let values = |text: &str| Variation::parse(text, "--vary").unwrap().values;
        assert_eq!(values("optimizer.state=fp32,e4, block8"), ["fp32", "e4", "block8"]);
        assert_eq!(values("optimizer.betas=[0.9,0.95],[0.9,0.99]"), ["[0.9,0.95]", "[0.9,0.99]"]);
        assert_eq!(values("optimizer.state=fp32;x:a=1,b=2"), ["fp32", "x:a=1,b=2"]);
        assert_eq!(values("optimizer.state=fp32,\"x:a=1,b=2\""), ["fp32", "\"x:a=1,b=2\""]);
        for wrong in ["optimizer.state", "optimizer.state=", "a=1,,2", "a=1,1", "a=1e-3,0.001"] {
            assert!(Variation::parse(wrong, "--vary").is_err(), "{wrong}");
        }
    }

    #[test]
    fn seeds_are_a_range_or_a_list() {
        assert_eq!(seeds("1..5").unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(seeds("7,3").unwrap(), [7, 3]);
        for wrong in ["", "5..1", "1,1", "x"] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
    }
}
