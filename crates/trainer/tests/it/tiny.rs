//! The smallest run that has everything: stories, validations, checkpoints, a sample.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tape::checksum::Checksum;
use trainer::events::Event;
use trainer::{Device, Ending, Error, Request, Settings, Summary, run_on};

/// Updates of the tiny run.
pub const UPDATES: u64 = 12;

const CONFIG: &str = r#"
    [model]
    context = 16
    channels = 16
    layers = 1
    heads = 2
    [optimizer]
    lr = 1e-2
    clip_norm = 1.0
    weight_decay = 0.1
    [schedule]
    warmup = 3
    [data]
    source = "stories"
    stories_bytes = 20_000
    stories_vocabulary = 300
    [run]
    device = "cpu"
    updates = 12
    batch = 3
    accumulation = 2
    validate_every = 4
    validation_windows = 6
    checkpoint_every = 5
    keep_last = 9
    sample_tokens = 5
"#;

/// The settings of the tiny run with some of them changed.
pub fn settings(changes: &[&str]) -> Settings {
    let mut settings = Settings::new();
    settings.add_file(CONFIG, Path::new("tiny.toml")).unwrap();
    for change in changes {
        settings.add_assignment(change).unwrap();
    }
    settings
}

/// Runs in `folder` from the start to the end.
pub fn train(settings: &Settings, folder: &Path) -> Result<Summary, Error> {
    train_on(&Device::Cpu, settings, folder)
}

/// The same on some device.
pub fn train_on(device: &Device, settings: &Settings, folder: &Path) -> Result<Summary, Error> {
    match go(device, settings, folder, false, None)? {
        Ending::Finished(summary) => Ok(*summary),
        Ending::Stopped { .. } => panic!("nobody asked to stop"),
    }
}

/// Goes on in `folder`.
pub fn resume(settings: &Settings, folder: &Path) -> Result<Summary, Error> {
    resume_on(&Device::Cpu, settings, folder)
}

/// The same on some device.
pub fn resume_on(device: &Device, settings: &Settings, folder: &Path) -> Result<Summary, Error> {
    match go(device, settings, folder, true, None)? {
        Ending::Finished(summary) => Ok(*summary),
        Ending::Stopped { .. } => panic!("nobody asked to stop"),
    }
}

/// Runs in `folder` and asks to stop at the first event that `when` picks.
pub fn stop_at(
    settings: &Settings,
    folder: &Path,
    resume: bool,
    when: fn(&Event) -> bool,
) -> Result<Ending, Error> {
    stop_on(&Device::Cpu, settings, folder, resume, when)
}

/// The same on some device.
pub fn stop_on(
    device: &Device,
    settings: &Settings,
    folder: &Path,
    resume: bool,
    when: fn(&Event) -> bool,
) -> Result<Ending, Error> {
    go(device, settings, folder, resume, Some(when))
}

fn go(
    device: &Device,
    settings: &Settings,
    folder: &Path,
    resume: bool,
    stop_when: Option<fn(&Event) -> bool>,
) -> Result<Ending, Error> {
    let stop = AtomicBool::new(false);
    let request = Request { settings, folder: folder.to_owned(), resume, stop: &stop };
    run_on(&request, device, &mut |event: &Event| {
        if stop_when.is_some_and(|when| when(event)) {
            stop.store(true, Ordering::Relaxed);
        }
    })
}

/// What the files of the checkpoint of `update` hold: the text of the manifest, the hashes of the others.
pub fn checkpoint_files(folder: &Path, update: u64) -> BTreeMap<String, String> {
    let directory = folder.join(format!("checkpoints/update-{update:08}"));
    let entries = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let bytes = std::fs::read(&path).unwrap();
            let content = match name.as_str() {
                "manifest.json" => String::from_utf8(bytes).unwrap(),
                _ => Checksum::of(&bytes).to_string(),
            };
            (name, content)
        })
        .collect()
}
