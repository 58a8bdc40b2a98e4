//! From a campaign file to planned runs: settings laid over each other, names, and what must not be.

use std::path::Path;

use super::Model;
use super::file::{Assignment, CampaignFile, ModelEntry, lay};
use crate::config::Config;
use crate::error::Error;
use crate::report::short_setting;
use crate::settings::Settings;
use crate::study::{PlannedRun, file_name};

/// Settings that decide what the loss is measured on.
const VALIDATION: [&str; 7] = [
    "data.source",
    "data.validation_tokens",
    "data.validation_byte_lengths",
    "data.tokenizer",
    "data.stories_bytes",
    "data.stories_vocabulary",
    "data.stories_seed",
];

/// The models of a campaign with their short runs.
pub fn expand(
    campaign: &CampaignFile,
    file: &Path,
    overrides: &[String],
) -> Result<Vec<Model>, Error> {
    let mut models: Vec<Model> = Vec::new();
    for entry in &campaign.models {
        let base = base(campaign, entry, file, overrides)?;
        let mut short: Vec<PlannedRun> = Vec::new();
        for combination in &entry.combinations {
            let run = planned(entry, &base, combination)?;
            let earlier = models.iter().flat_map(|model| &model.short).chain(&short);
            if earlier.into_iter().any(|other| other.name == run.name) {
                return Err(Error::Study {
                    place: entry.place.clone(),
                    message: format!("two runs would be called {}", run.name),
                });
            }
            short.push(run);
        }
        must_be_comparable(entry, &short)?;
        if let Some(promotion) = &campaign.promotion {
            must_be_enough(entry, short.len(), promotion)?;
        }
        let config = Path::new(&entry.config).file_stem().unwrap_or_default();
        let config_name = config.to_string_lossy().into_owned();
        models.push(Model { name: entry.name.clone(), config_name, short });
    }
    if models.is_empty() {
        let place = file.display().to_string();
        return Err(Error::Study { place, message: "there are no runs".into() });
    }
    Ok(models)
}

/// The settings that the runs of a model share.
fn base(
    campaign: &CampaignFile,
    entry: &ModelEntry,
    file: &Path,
    overrides: &[String],
) -> Result<Settings, Error> {
    let path = file.parent().unwrap_or(Path::new("")).join(&entry.config);
    let text = crate::read::text(&path).map_err(|error| Error::Study {
        place: entry.place.clone(),
        message: format!("cannot read the configuration {}: {error}", path.display()),
    })?;
    let mut settings = Settings::new();
    settings.add_file(&text, &path)?;
    lay(&mut settings, &campaign.set)?;
    lay(&mut settings, &entry.set)?;
    for assignment in overrides {
        settings.add_assignment(assignment)?;
    }
    Ok(settings)
}

fn planned(
    entry: &ModelEntry,
    base: &Settings,
    combination: &[Assignment],
) -> Result<PlannedRun, Error> {
    let mut settings = base.clone();
    lay(&mut settings, combination)?;
    let mut name = entry.name.clone();
    for Assignment { key, .. } in combination {
        name = format!("{name}-{}", short_setting(key, &settings.shown(key)));
    }
    Config::new(&settings)?;
    Ok(PlannedRun { name: file_name(&name), settings })
}

/// The losses of a model's runs are ranked, so they must be of one validation set.
fn must_be_comparable(entry: &ModelEntry, runs: &[PlannedRun]) -> Result<(), Error> {
    let Some((first, others)) = runs.split_first() else { return Ok(()) };
    for run in others {
        for key in VALIDATION {
            let (one, other) = (first.settings.shown(key), run.settings.shown(key));
            if !first.settings.has_same(&run.settings, key) {
                return Err(Error::Study {
                    place: entry.place.clone(),
                    message: format!(
                        "runs of one model are compared by one validation set, but `{key}` is {one} in {} and \
                         {other} in {}; make two models of them",
                        first.name, run.name
                    ),
                });
            }
        }
    }
    Ok(())
}

fn must_be_enough(
    entry: &ModelEntry,
    count: usize,
    promotion: &super::file::Promotion,
) -> Result<(), Error> {
    if promotion.best == 0 || promotion.best > count {
        return Err(Error::Study {
            place: promotion.place.clone(),
            message: format!(
                "`best` = {} of the {count} runs of {} cannot be promoted; from 1 to {count} can",
                promotion.best, entry.name
            ),
        });
    }
    Ok(())
}
