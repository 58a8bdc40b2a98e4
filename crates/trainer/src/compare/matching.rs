//! Which runs belong together: that they match in everything but what is compared, and who is whose twin.

use std::collections::BTreeMap;

use super::plan::TunedRuns;
use crate::error::Error;
use crate::record::RunRecord;
use crate::settings::is_same_value;

/// What may differ between runs of a comparison besides the varied setting.
const MAY_DIFFER: [&str; 2] = ["run.seed", "run.perturbation"];

/// How runs are paired.
#[derive(Clone, Debug, Default)]
pub struct Pairing {
    /// The setting that is compared; the only one that differs when absent.
    pub varied: Option<String>,
    /// Its value that others are compared with; that of the first run when absent.
    pub baseline: Option<String>,
    /// Settings that may differ too, since each variant has its own best value of them.
    pub tuned: Vec<String>,
}

/// Runs that match.
#[derive(Debug)]
pub struct Matched<'a> {
    /// The setting that is compared.
    pub varied: String,
    /// Its value that others are compared with.
    pub baseline: String,
    /// All its values, the baseline first, then in the order of the runs.
    pub values: Vec<String>,
    /// Runs by value and seed.
    by_value: BTreeMap<(String, u64), &'a RunRecord>,
    /// Runs of the baseline with perturbed initial weights, by seed.
    pub perturbed: BTreeMap<u64, &'a RunRecord>,
    /// What tuning tried before.
    pub tuning: Option<TunedRuns<'a>>,
}

impl<'a> Matched<'a> {
    /// Matches runs.
    ///
    /// # Errors
    ///
    /// Runs that differ in more than they may, that are twice there, or that differ in nothing.
    pub fn new(
        runs: &'a [RunRecord],
        pairing: &Pairing,
        tuning: Option<TunedRuns<'a>>,
    ) -> Result<Self, Error> {
        let identities = runs.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
        let varied = match &pairing.varied {
            Some(key) => key.clone(),
            None => only_difference(runs, &identities)?,
        };
        let allowed = |key: &str| {
            key == varied || MAY_DIFFER.contains(&key) || pairing.tuned.iter().any(|t| t == key)
        };
        for (run, identity) in runs.iter().zip(&identities).skip(1) {
            if let Some((key, [found, other_found])) =
                differences(&identities[0], identity).into_iter().find(|(key, _)| !allowed(key))
            {
                return Err(unmatched([&runs[0], run], key, [found, other_found], ""));
            }
        }
        let first = runs.first().map(|run| shown(run, &varied)).unwrap_or_default();
        let baseline = pairing.baseline.clone().unwrap_or(first);
        let baseline = spelled(baseline, runs.iter().map(|run| shown(run, &varied)));
        let mut matched = Self {
            values: vec![baseline.clone()],
            varied: varied.clone(),
            baseline,
            by_value: BTreeMap::new(),
            perturbed: BTreeMap::new(),
            tuning,
        };
        for run in runs {
            let value = spelled(shown(run, &varied), matched.values.iter().cloned());
            matched.take(run, value)?;
        }
        matched.must_compare(runs)?;
        Ok(matched)
    }

    fn take(&mut self, run: &'a RunRecord, value: String) -> Result<(), Error> {
        let seed = run.settings.shown("run.seed").parse().unwrap_or(0);
        let before = if is_perturbed(run) {
            if value != self.baseline {
                return Ok(());
            }
            self.perturbed.insert(seed, run)
        } else {
            if !self.values.contains(&value) {
                self.values.push(value.clone());
            }
            self.by_value.insert((value, seed), run)
        };
        match before {
            Some(other) => Err(Error::Study {
                place: run.folder.display().to_string(),
                message: format!(
                    "the same run as {}: seed and `{}` are the same; name one of them",
                    other.folder.display(),
                    self.varied
                ),
            }),
            None => Ok(()),
        }
    }

    fn must_compare(&self, runs: &[RunRecord]) -> Result<(), Error> {
        let place = runs.first().map_or_else(String::new, |run| run.folder.display().to_string());
        if self.of(&self.baseline).next().is_none() {
            let message = format!("no run has `{}` = {}", self.varied, self.baseline);
            return Err(Error::Study { place, message });
        }
        if self.values.len() < 2 {
            let message = format!("all runs have `{}` = {}", self.varied, self.baseline);
            return Err(Error::Study { place, message });
        }
        Ok(())
    }

    /// All runs but the perturbed ones, with their values.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &'a RunRecord)> {
        self.by_value.iter().map(|((value, _), &run)| (value.as_str(), run))
    }

    /// The runs of a value, by seed.
    pub fn of(&self, value: &str) -> impl Iterator<Item = (u64, &'a RunRecord)> {
        let value = value.to_owned();
        let mine = self.by_value.iter().filter(move |((found, _), _)| *found == value);
        mine.map(|((_, seed), &run)| (*seed, run))
    }

    /// The loss of every run of a value, by seed.
    ///
    /// # Errors
    ///
    /// Those of `loss`.
    pub fn losses(
        &self,
        value: &str,
        loss: impl Fn(&RunRecord) -> Result<f64, Error>,
    ) -> Result<BTreeMap<u64, f64>, Error> {
        self.of(value).map(|(seed, run)| Ok((seed, loss(run)?))).collect()
    }
}

/// A value as the first equal one of others spells it.
fn spelled(value: String, mut others: impl Iterator<Item = String>) -> String {
    others.find(|other| is_same_value(other, &value)).unwrap_or(value)
}

/// The value of a setting without quotes.
pub fn shown(run: &RunRecord, key: &str) -> String {
    run.settings.shown(key).trim_matches('"').to_owned()
}

/// Whether the initial weights of a run were perturbed.
pub fn is_perturbed(run: &RunRecord) -> bool {
    !is_same_value(&run.settings.shown("run.perturbation"), "0")
}

/// What decided the bits of a run, and the kind of its device.
fn identity(run: &RunRecord) -> Result<BTreeMap<String, String>, Error> {
    let mut identity = run.identity()?;
    let device = &run.results()?.device;
    let kind = device.split(':').next().unwrap_or(device);
    identity.insert("run.device".into(), kind.to_owned());
    // A run of a version that knew no perturbation had none.
    identity.entry("run.perturbation".into()).or_insert_with(|| "0.0".into());
    Ok(identity)
}

/// The one setting in which runs differ.
fn only_difference(
    runs: &[RunRecord],
    identities: &[BTreeMap<String, String>],
) -> Result<String, Error> {
    let mut varied: Option<&str> = None;
    for (run, identity) in runs.iter().zip(identities).skip(1) {
        for (key, values) in differences(&identities[0], identity) {
            if MAY_DIFFER.contains(&key) {
                continue;
            }
            let is_data = key.ends_with("_sha256") || key == "run.device";
            match varied {
                None if !is_data => varied = Some(key),
                Some(known) if known == key => {}
                _ => {
                    let hint = match varied {
                        Some(known) if !is_data => {
                            format!("; so is `{known}`: one setting is compared at a time")
                        }
                        _ => String::new(),
                    };
                    return Err(unmatched([&runs[0], run], key, values, &hint));
                }
            }
        }
    }
    varied.map(str::to_owned).ok_or_else(|| Error::Study {
        place: runs.first().map_or_else(String::new, |run| run.folder.display().to_string()),
        message: "the runs differ in nothing but seeds, so there is nothing to compare".into(),
    })
}

/// Keys whose values differ, with both; a key that one of them lacks counts as `none`.
fn differences<'m>(
    one: &'m BTreeMap<String, String>,
    other: &'m BTreeMap<String, String>,
) -> Vec<(&'m str, [String; 2])> {
    let value = |map: &BTreeMap<String, String>, key: &str| {
        map.get(key).cloned().unwrap_or_else(|| "none".to_owned())
    };
    let mut keys: Vec<&str> = one.keys().chain(other.keys()).map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .map(|key| (key, [value(one, key), value(other, key)]))
        .filter(|(_, [found, other_found])| !is_same_value(found, other_found))
        .collect()
}

fn unmatched(runs: [&RunRecord; 2], key: &str, values: [String; 2], hint: &str) -> Error {
    let [found, other_found] = values;
    Error::Unmatched {
        one: runs[0].folder.clone(),
        other: runs[1].folder.clone(),
        difference: format!("`{key}` is {found} in the one and {other_found} in the other{hint}"),
    }
}
