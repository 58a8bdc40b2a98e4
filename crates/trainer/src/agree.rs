//! What ranks must have in common before they begin: compared by name, so that the message says what differs.

use std::collections::BTreeMap;

use tape::checksum::Checksum;

use crate::budget::Budget;
use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::settings::{KEYS, Settings, is_same_value};
use crate::world::World;

/// Settings that may differ from host to host: places, and how much of a host is used.
const OF_THE_HOST: [&str; 11] = [
    "data.tokenizer",
    "data.train_tokens",
    "data.train_byte_lengths",
    "data.validation_tokens",
    "data.validation_byte_lengths",
    "data.prefetch",
    "data.verify",
    "run.device",
    "run.threads",
    "run.initial",
    "run.output_dir",
];

/// Whether all ranks have settings of the same values, however these are written, but for those of their hosts, and
/// devices of one kind.
///
/// # Errors
///
/// [`Error::RanksDiffer`], and a rank that is gone.
pub fn on_settings(world: &World, settings: &Settings, device: &Device) -> Result<(), Error> {
    let shared = KEYS.iter().filter(|key| !OF_THE_HOST.contains(&key.name));
    let mut values: Vec<(String, String)> =
        shared.map(|key| (key.name.to_owned(), settings.shown(key.name))).collect();
    let kind = match device {
        Device::Cpu => "cpu",
        Device::Cuda(_) => "cuda",
    };
    values.push(("run.device".into(), kind.into()));
    world.must_agree_by(&values, is_same_value)
}

/// Whether each rank has a micro-batch, and all that is asked for works with ranks.
///
/// # Errors
///
/// Fewer micro-batches than ranks, and shadows of divided state.
pub fn enough_for_all(world: &World, config: &Config) -> Result<(), Error> {
    let is_divided = config.run.sharded && !world.is_alone();
    if is_divided && !config.run.shadow.formats.is_empty() {
        return Err(Error::WrongValue {
            key: "run.sharded".into(),
            place: "run.shadow".into(),
            expected: "false, where shadows are fed the gradients: no rank has all of them".into(),
            found: "true".into(),
        });
    }
    let (found, ranks) = (config.run.accumulation, world.share().world_size);
    if found >= ranks {
        return Ok(());
    }
    Err(Error::WrongValue {
        key: "run.accumulation".into(),
        place: format!("{ranks} ranks"),
        expected: format!("at least {ranks}: ranks divide the micro-batches of an update"),
        found: found.to_string(),
    })
}

/// Whether all ranks learn the same from the same data; values are compared as a resumed run compares them.
///
/// # Errors
///
/// [`Error::RanksDiffer`], and a rank that is gone.
pub fn on_data(
    world: &World,
    identity: &BTreeMap<String, String>,
    budget: &Budget,
) -> Result<(), Error> {
    let mut values: Vec<(String, String)> = identity.clone().into_iter().collect();
    values.push(("updates of the run".into(), budget.updates().to_string()));
    values.push(("tokens of the run".into(), budget.tokens.to_string()));
    world.must_agree_by(&values, is_same_value)
}

/// Whether all ranks begin with the same parameters.
///
/// # Errors
///
/// [`Error::RanksDiffer`], and a rank that is gone.
pub fn on_parameters(world: &World, parameters: &[f32]) -> Result<(), Error> {
    if world.is_alone() {
        return Ok(());
    }
    let hash = Checksum::of(bytemuck::cast_slice(parameters)).to_string();
    world.must_agree(&[("SHA-256 of the first parameters".into(), hash)])
}
