//! Settings from the command line: the configuration file, then `--set`, then flags of their own.

use std::path::Path;

use anyhow::{Result, anyhow};
use gpu_kernels::Precision;
use trainer::{QUICKSTART, Settings};

use crate::args::Configuration;
use crate::output::Usage;

/// The name of the built-in configuration.
const QUICKSTART_NAME: &str = "configs/quickstart.toml";

/// The settings of a new run, and the name of its configuration.
pub fn load(configuration: &Configuration) -> Result<(Settings, String)> {
    let mut settings = Settings::new();
    let path = configuration.config.as_deref();
    match path {
        Some(path) => settings.add_file(&read(path)?, path)?,
        None => settings.add_file(QUICKSTART, Path::new(QUICKSTART_NAME))?,
    }
    override_with(&mut settings, configuration)?;
    let name = path.unwrap_or(Path::new(QUICKSTART_NAME)).file_stem().unwrap_or_default();
    Ok((settings, name.to_string_lossy().into_owned()))
}

/// The settings of a run that goes on: those of `file` in its folder, whose text is given, and what the command line
/// changes.
pub fn reload(configuration: &Configuration, text: &str, file: &Path) -> Result<Settings> {
    let mut settings = Settings::new();
    settings.add_file(text, file)?;
    if let Some(path) = &configuration.config {
        settings.add_file(&read(path)?, path)?;
    }
    override_with(&mut settings, configuration)?;
    Ok(settings)
}

/// The settings in the folder of a run, as they are.
pub fn of_run(folder: &Path) -> Result<Settings> {
    let file = folder.join("config.toml");
    let mut settings = Settings::new();
    settings.add_file(&read_own(&file)?, &file)?;
    Ok(settings)
}

/// The precision of that name; the device's own choice for `auto`.
pub fn precision(name: &str) -> Result<Option<Precision>> {
    match Precision::from_name(name) {
        None if name != "auto" => {
            Err(anyhow!(Usage(format!("expected auto, fp32, tf32 or bf16, found `{name}`"))))
        }
        found => Ok(found),
    }
}

fn override_with(settings: &mut Settings, configuration: &Configuration) -> Result<()> {
    for assignment in &configuration.assignments {
        settings.add_assignment(assignment)?;
    }
    if let Some(device) = &configuration.device {
        settings.set_text("run.device", device, "--device")?;
    }
    Ok(())
}

/// The text of a configuration file, which may be a pipe.
fn read(path: &Path) -> Result<String> {
    trainer::read_text(path).map_err(|error| unreadable(path, &error))
}

/// The text of the configuration in the folder of a run.
pub fn read_own(path: &Path) -> Result<String> {
    trainer::read_own_text(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    anyhow!(Usage(format!("cannot read the configuration {}: {error}", path.display())))
}
