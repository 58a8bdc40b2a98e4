//! The campaign file: TOML, unknown keys refused with their line and the nearest known name.
//!
//! ```toml
//! name = "rates"                       # of folders and reports; the file's name when absent
//! retries = 1                          # of a run that failed
//!
//! [set]                                # settings of every run, over those of its configuration
//! run.updates = 100
//!
//! [grid]                               # every combination of these is a run of each model
//! optimizer.lr = [1e-3, 2e-3]
//!
//! [[models]]
//! name = "tiny"
//! config = "quickstart.toml"           # beside this file
//! set.model.layers = 1                 # over [set]
//! grid.optimizer.lr = [5e-3]           # in place of [grid]
//! list = [{ optimizer.lr = 1e-3 }]     # combinations one by one, in place of a grid
//!
//! [promotion]
//! best = 1                             # of each model, by the loss of the final validation
//! set.run.updates = 1000               # what their longer run has over the short one
//!
//! [slurm]
//! options = ["--gpus=1"]               # of sbatch
//! setup = ["module load cuda"]         # commands before each task
//! parallel = 4                         # tasks at the same time
//! ```

use std::path::Path;

use toml::Value;
use toml::de::{DeTable, DeValue};

use crate::error::Error;
use crate::settings::{LENGTHS, Settings, line_of, own};
use crate::study::{PlannedRun, file_name};

/// A setting with its value and where both came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub key: String,
    pub value: Value,
    pub place: String,
}

/// What a campaign file says.
#[derive(Clone, Debug, Default)]
pub struct CampaignFile {
    pub name: String,
    pub retries: u32,
    pub set: Vec<Assignment>,
    pub models: Vec<ModelEntry>,
    pub promotion: Option<Promotion>,
    pub slurm: SlurmSection,
}

/// A model, with the combinations of settings that its short runs have.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    pub name: String,
    pub config: String,
    pub set: Vec<Assignment>,
    pub combinations: Vec<Vec<Assignment>>,
    pub place: String,
}

/// Which runs are promoted, and to what.
#[derive(Clone, Debug)]
pub struct Promotion {
    pub best: usize,
    set: Vec<Assignment>,
    pub place: String,
}

/// How the campaign runs on a cluster.
#[derive(Clone, Debug, Default)]
pub struct SlurmSection {
    pub options: Vec<String>,
    pub setup: Vec<String>,
    pub parallel: Option<u64>,
}

/// Lays assignments over settings.
pub fn lay(settings: &mut Settings, assignments: &[Assignment]) -> Result<(), Error> {
    for Assignment { key, value, place } in assignments {
        make_way(settings, key);
        settings.assign(key, value.clone(), place)?;
    }
    Ok(())
}

/// A run has one length; the one that is given last replaces the others.
pub fn make_way(settings: &mut Settings, key: &str) {
    if LENGTHS.contains(&key) {
        LENGTHS.iter().for_each(|length| settings.remove(length));
    }
}

impl Promotion {
    /// The longer run of a short one.
    pub fn promoted(&self, run: &PlannedRun) -> Result<PlannedRun, Error> {
        let mut settings = run.settings.clone();
        lay(&mut settings, &self.set)?;
        Ok(PlannedRun { name: file_name(&format!("{}-long", run.name)), settings })
    }
}

impl CampaignFile {
    /// Reads the text of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let reader = Reader { text, file };
        let root = DeTable::parse(text).map_err(|error| Error::Syntax {
            place: reader.place(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let mut campaign = Self { name: stem.into_owned(), retries: 1, ..Self::default() };
        let mut grid = Vec::new();
        let mut models = None;
        for (key, value) in root.get_ref() {
            let place = reader.place(key.span().start);
            match key.get_ref().as_ref() {
                "name" => campaign.name = reader.text("name", value.get_ref(), &place)?,
                "retries" => {
                    campaign.retries = reader.whole("retries", value.get_ref(), &place)? as u32;
                }
                "set" => campaign.set = reader.assignments("set", value.get_ref(), &place)?,
                "grid" => grid = reader.grid("grid", value.get_ref(), &place)?,
                "models" => models = Some((value.get_ref(), place)),
                "promotion" => {
                    campaign.promotion = Some(reader.promotion(value.get_ref(), &place)?);
                }
                "slurm" => campaign.slurm = reader.slurm(value.get_ref(), &place)?,
                other => {
                    let known = ["name", "retries", "set", "grid", "models", "promotion", "slurm"];
                    return Err(unknown(other, place, &known));
                }
            }
        }
        let (models, place) = models.ok_or_else(|| Error::Study {
            place: file.display().to_string(),
            message: "no [[models]], so there are no runs".into(),
        })?;
        campaign.models = reader.models(models, &place, &grid)?;
        Ok(campaign)
    }
}

struct Reader<'a> {
    text: &'a str,
    file: &'a Path,
}

impl Reader<'_> {
    fn place(&self, offset: usize) -> String {
        format!("{} line {}", self.file.display(), line_of(self.text, offset))
    }

    fn models(
        &self,
        value: &DeValue<'_>,
        place: &str,
        grid: &[Vec<Assignment>],
    ) -> Result<Vec<ModelEntry>, Error> {
        let DeValue::Array(items) = value else {
            return Err(wrong_type("models", place, "tables, each under [[models]]", value));
        };
        items.iter().map(|item| self.model(item.get_ref(), place, grid)).collect()
    }

    fn model(
        &self,
        value: &DeValue<'_>,
        place: &str,
        grid: &[Vec<Assignment>],
    ) -> Result<ModelEntry, Error> {
        let table = self.table("models", value, place)?;
        let (mut name, mut config, mut set) = (None, None, Vec::new());
        let (mut own_grid, mut list, mut place) = (None, None, place.to_owned());
        for (key, value) in table {
            let here = self.place(key.span().start);
            let value = value.get_ref();
            match key.get_ref().as_ref() {
                "name" => name = Some(self.text("name", value, &here)?),
                "config" => {
                    place.clone_from(&here);
                    config = Some(self.text("config", value, &here)?);
                }
                "set" => set = self.assignments("set", value, &here)?,
                "grid" => own_grid = Some(self.grid("grid", value, &here)?),
                "list" => list = Some(self.list(value, &here)?),
                other => {
                    let known = ["name", "config", "set", "grid", "list"];
                    return Err(unknown(other, here, &known));
                }
            }
        }
        let missing = |key: &str| Error::Study {
            place: place.clone(),
            message: format!("a model has no `{key}`"),
        };
        let grid = own_grid.as_deref().unwrap_or(grid);
        let combinations = match list {
            Some(list) => list,
            None => combinations(grid),
        };
        Ok(ModelEntry {
            name: name.ok_or_else(|| missing("name"))?,
            config: config.ok_or_else(|| missing("config"))?,
            set,
            combinations,
            place,
        })
    }

    fn promotion(&self, value: &DeValue<'_>, place: &str) -> Result<Promotion, Error> {
        let mut promotion = Promotion { best: 1, set: Vec::new(), place: place.to_owned() };
        for (key, value) in self.table("promotion", value, place)? {
            let here = self.place(key.span().start);
            match key.get_ref().as_ref() {
                "best" => {
                    promotion.best = self.whole("best", value.get_ref(), &here)? as usize;
                    promotion.place = here;
                }
                "set" => promotion.set = self.assignments("set", value.get_ref(), &here)?,
                other => return Err(unknown(other, here, &["best", "set"])),
            }
        }
        Ok(promotion)
    }

    fn slurm(&self, value: &DeValue<'_>, place: &str) -> Result<SlurmSection, Error> {
        let mut section = SlurmSection::default();
        for (key, value) in self.table("slurm", value, place)? {
            let here = self.place(key.span().start);
            let value = value.get_ref();
            match key.get_ref().as_ref() {
                "options" => section.options = self.texts("options", value, &here)?,
                "setup" => section.setup = self.texts("setup", value, &here)?,
                "parallel" => section.parallel = Some(self.whole("parallel", value, &here)?),
                other => return Err(unknown(other, here, &["options", "setup", "parallel"])),
            }
        }
        Ok(section)
    }

    /// Settings in tables of one level or two.
    fn assignments(
        &self,
        name: &str,
        value: &DeValue<'_>,
        place: &str,
    ) -> Result<Vec<Assignment>, Error> {
        let mut found = Vec::new();
        self.flatten("", self.table(name, value, place)?, &mut found)?;
        Ok(found)
    }

    fn flatten(
        &self,
        prefix: &str,
        table: &DeTable<'_>,
        into: &mut Vec<Assignment>,
    ) -> Result<(), Error> {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            let place = self.place(name.span().start);
            if let DeValue::Table(inner) = value.get_ref() {
                self.flatten(&format!("{key}."), inner, into)?;
                continue;
            }
            let value = own(value.get_ref())
                .ok_or_else(|| wrong_type(&key, &place, "a value of a setting", value.get_ref()))?;
            into.push(Assignment { key, value, place });
        }
        Ok(())
    }

    /// For each setting its values.
    fn grid(
        &self,
        name: &str,
        value: &DeValue<'_>,
        place: &str,
    ) -> Result<Vec<Vec<Assignment>>, Error> {
        let settings = self.assignments(name, value, place)?;
        settings
            .into_iter()
            .map(|Assignment { key, value, place }| match value {
                Value::Array(values) if values.is_empty() => Err(Error::Study {
                    place,
                    message: format!("`{key}` has no values, so there are no runs"),
                }),
                Value::Array(values) => Ok(values
                    .into_iter()
                    .map(|value| Assignment { key: key.clone(), value, place: place.clone() })
                    .collect()),
                value => Ok(vec![Assignment { key, value, place }]),
            })
            .collect()
    }

    fn list(&self, value: &DeValue<'_>, place: &str) -> Result<Vec<Vec<Assignment>>, Error> {
        let DeValue::Array(items) = value else {
            return Err(wrong_type("list", place, "a list of tables", value));
        };
        if items.is_empty() {
            let message = "`list` is empty, so there are no runs".into();
            return Err(Error::Study { place: place.to_owned(), message });
        }
        items.iter().map(|item| self.assignments("list", item.get_ref(), place)).collect()
    }

    fn table<'t>(
        &self,
        name: &str,
        value: &'t DeValue<'t>,
        place: &str,
    ) -> Result<&'t DeTable<'t>, Error> {
        match value {
            DeValue::Table(table) => Ok(table),
            other => Err(wrong_type(name, place, "a table", other)),
        }
    }

    fn text(&self, name: &str, value: &DeValue<'_>, place: &str) -> Result<String, Error> {
        match value {
            DeValue::String(text) => Ok(text.to_string()),
            other => Err(wrong_type(name, place, "a text", other)),
        }
    }

    fn texts(&self, name: &str, value: &DeValue<'_>, place: &str) -> Result<Vec<String>, Error> {
        match value {
            DeValue::Array(items) => {
                items.iter().map(|item| self.text(name, item.get_ref(), place)).collect()
            }
            other => Err(wrong_type(name, place, "a list of texts", other)),
        }
    }

    fn whole(&self, name: &str, value: &DeValue<'_>, place: &str) -> Result<u64, Error> {
        let number = match own(value) {
            Some(Value::Integer(number)) => u32::try_from(number).ok().map(u64::from),
            _ => None,
        };
        number.ok_or_else(|| wrong_type(name, place, "a whole number", value))
    }
}

/// Every combination of one value of each setting; one without settings where there is none.
fn combinations(grid: &[Vec<Assignment>]) -> Vec<Vec<Assignment>> {
    let mut all = vec![Vec::new()];
    for values in grid {
        let extended = |before: &Vec<Assignment>| {
            let with =
                |value: &Assignment| [before.as_slice(), std::slice::from_ref(value)].concat();
            values.iter().map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(extended).collect();
    }
    all
}

fn wrong_type(key: &str, place: &str, expected: &'static str, found: &DeValue<'_>) -> Error {
    Error::WrongType {
        key: key.to_owned(),
        place: place.to_owned(),
        expected,
        found: found.type_str().to_owned(),
    }
}

fn unknown(key: &str, place: String, known: &[&str]) -> Error {
    let nearest = known
        .iter()
        .max_by(|a, b| strsim::jaro_winkler(key, a).total_cmp(&strsim::jaro_winkler(key, b)))
        .expect("something is known");
    Error::UnknownKey { key: key.to_owned(), place, nearest: (*nearest).to_owned() }
}
