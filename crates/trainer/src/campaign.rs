//! Campaigns: a file of models, each run with every combination of some settings for a short budget, the best of
//! each model run again for a longer one.
//!
//! `file` reads the file, `runs` makes planned runs of it, `outcome` says which are best and writes what comes of
//! it, `slurm` writes the same as a batch array. Making the runs is the business of [`crate::study`].

mod file;
mod outcome;
mod runs;
mod slurm;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Error;
use crate::read;
use crate::record::RunRecord;
use crate::settings::Settings;
use crate::study::{PlannedRun, Study};

pub use outcome::{Outcome, Ranked, Selected};
pub use slurm::{Script, Submission};

use file::CampaignFile;

/// The stage of the short runs.
pub const SHORT: &str = "short";
/// The stage of the promoted runs.
pub const LONG: &str = "long";

/// A checked campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Its name.
    pub name: String,
    /// How often a run that failed is tried again.
    pub retries: u32,
    models: Vec<Model>,
    promotion: Option<file::Promotion>,
    slurm: file::SlurmSection,
}

/// A model and its short runs.
#[derive(Clone, Debug)]
struct Model {
    name: String,
    /// The name of its configuration.
    config_name: String,
    short: Vec<PlannedRun>,
}

impl Campaign {
    /// Reads a campaign file; `overrides` are laid over the settings of all its runs, before the ones in which
    /// they differ.
    ///
    /// # Errors
    ///
    /// Text that is no campaign, unknown keys, configurations that cannot be read, settings that make no sense,
    /// no run at all, names that collide, a promotion of more runs than a model has, runs of a model whose
    /// validation sets differ.
    pub fn load(file: &Path, overrides: &[String]) -> Result<Self, Error> {
        let text = read::text(file).map_err(|error| Error::Study {
            place: file.display().to_string(),
            message: format!("cannot read the campaign: {error}; name a file of one"),
        })?;
        Self::parse(&text, file, overrides)
    }

    /// As [`Campaign::load`], of a text that was read from `file`.
    ///
    /// # Errors
    ///
    /// As for [`Campaign::load`].
    pub fn parse(text: &str, file: &Path, overrides: &[String]) -> Result<Self, Error> {
        let parsed = CampaignFile::parse(text, file)?;
        let models = runs::expand(&parsed, file, overrides)?;
        Ok(Self {
            name: parsed.name,
            retries: parsed.retries,
            models,
            promotion: parsed.promotion,
            slurm: parsed.slurm,
        })
    }

    /// The short runs of all models.
    #[must_use]
    pub fn short_runs(&self) -> Vec<PlannedRun> {
        self.models.iter().flat_map(|model| model.short.clone()).collect()
    }

    /// How many runs are promoted.
    #[must_use]
    pub fn long_count(&self) -> usize {
        self.promotion.as_ref().map_or(0, |promotion| promotion.best * self.models.len())
    }

    /// The promoted runs, given the short runs that are finished.
    ///
    /// # Errors
    ///
    /// A model of which fewer runs are finished than shall be promoted.
    pub fn long_runs(&self, study_folder: &Path) -> Result<Vec<PlannedRun>, Error> {
        let Some(promotion) = &self.promotion else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        for model in &self.models {
            let ranked = outcome::rank(&model.short, study_folder)?;
            if ranked.len() < promotion.best {
                return Err(Error::Study {
                    place: format!("model {}", model.name),
                    message: format!(
                        "{} runs shall be promoted and {} of {} are finished; --resume tries the others again",
                        promotion.best,
                        ranked.len(),
                        model.short.len()
                    ),
                });
            }
            for (run, _) in &ranked[..promotion.best] {
                runs.push(promotion.promoted(run)?);
            }
        }
        Ok(runs)
    }

    /// Every run of the campaign that is finished, short ones first.
    ///
    /// # Errors
    ///
    /// Files that cannot be read.
    pub fn finished(&self, study: &Study) -> Result<Vec<RunRecord>, Error> {
        let runs = study.state().runs.iter().map(|run| study.finished(&run.name));
        Ok(runs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Lays what a measurement of speed found best over the runs of the models that it is about: `best` has, for
    /// the name of a model or of its configuration, settings as `KEY=VALUE`. What was taken, in words.
    ///
    /// # Errors
    ///
    /// Settings that make no sense.
    pub fn take_fastest(
        &mut self,
        best: &BTreeMap<String, Vec<String>>,
    ) -> Result<Vec<String>, Error> {
        let mut taken = Vec::new();
        for model in &mut self.models {
            let found = best.get(&model.name).or_else(|| best.get(&model.config_name));
            let Some(assignments) = found else { continue };
            for run in &mut model.short {
                for assignment in assignments {
                    run.settings.add_assignment(assignment)?;
                }
                crate::config::Config::new(&run.settings)?;
            }
            taken.push(format!("{}: {}", model.name, assignments.join(", ")));
        }
        Ok(taken)
    }

    /// The names of the models, each with the settings of its first run.
    pub fn models(&self) -> impl Iterator<Item = (&str, &Settings)> {
        self.models.iter().map(|model| (model.name.as_str(), &model.short[0].settings))
    }
}
