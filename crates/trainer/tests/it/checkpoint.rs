//! Damaged and foreign checkpoints are refused, and nothing is lost.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;
use trainer::events::Event;
use trainer::{Error, Restored};

use crate::tiny::{UPDATES, checkpoint_files, resume, settings, stop_at, train};

/// A run stopped after update 7, so that its latest checkpoint is that of update 7.
fn stopped(folder: &Path) {
    let when = |event: &Event| matches!(event, Event::Update(update) if update.update == 7);
    stop_at(&settings(&[]), folder, false, when).unwrap();
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join("checkpoints/update-00000007").join(name)
}

#[test]
fn a_flipped_bit_in_any_file_is_found() {
    for name in
        ["parameters.safetensors", "optimizer.safetensors", "tokenizer.json", "manifest.json"]
    {
        let folder = tempdir().unwrap();
        stopped(folder.path());
        let path = file(folder.path(), name);
        let original = fs::read(&path).unwrap();
        for place in [0, original.len() / 3, original.len() / 2, original.len() - 2] {
            let mut bytes = original.clone();
            bytes[place] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let error = resume(&settings(&[]), folder.path()).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(name) || text.contains("format_version"),
                "{name} {place}: {text}"
            );
            assert!(Restored::open(folder.path()).is_err());
            assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is overwritten");
        }
    }
}

#[test]
fn a_truncated_or_missing_file_is_found() {
    for name in ["parameters.safetensors", "optimizer.safetensors", "tokenizer.json"] {
        let folder = tempdir().unwrap();
        stopped(folder.path());
        let path = file(folder.path(), name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let text = resume(&settings(&[]), folder.path()).unwrap_err().to_string();
        let expected = format!("expected {} bytes, found {} bytes", bytes.len(), bytes.len() - 1);
        assert!(text.contains(name) && text.contains(&expected), "{text}");
        fs::remove_file(&path).unwrap();
        let text = resume(&settings(&[]), folder.path()).unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn another_run_is_refused_with_both_values() {
    let folder = tempdir().unwrap();
    stopped(folder.path());
    for (change, found, expected) in [
        ("optimizer.state=fp32", "\"e4\"", "\"fp32\""),
        ("optimizer.bias=18", "16", "18"),
        ("model.channels=32", "16", "32"),
        ("schedule.warmup=4", "3", "4"),
        ("run.updates=13", "12", "13"),
        ("data.stories_seed=2", "1", "2"),
        ("run.seed=2", "1", "2"),
    ] {
        let error = resume(&settings(&[change]), folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::CheckpointMismatch { .. }), "{change}: {text}");
        assert!(
            text.contains(&format!("is {found} there and {expected} here")),
            "{change}: {text}"
        );
    }
    // What does not decide the bits may change.
    resume(&settings(&["run.threads=1", "run.log_every=5"]), folder.path()).unwrap();
}

#[test]
fn another_tape_of_the_same_run_is_refused() {
    let folder = tempdir().unwrap();
    stopped(folder.path());
    fs::remove_dir_all(folder.path().join("data")).unwrap();
    // Stories are made again, the same; a changed tape is not the same.
    let error = resume(&settings(&["data.stories_bytes=30_000"]), folder.path()).unwrap_err();
    assert!(error.to_string().contains("data."), "{error}");
    fs::remove_dir_all(folder.path().join("data")).unwrap();
    resume(&settings(&[]), folder.path()).unwrap();
}

#[test]
fn another_format_version_is_refused() {
    let folder = tempdir().unwrap();
    stopped(folder.path());
    let path = file(folder.path(), "manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"format_version\": 1", "\"format_version\": 2")).unwrap();
    let text = resume(&settings(&[]), folder.path()).unwrap_err().to_string();
    assert!(text.contains("`format_version` is 2 there and 1 here"), "{text}");
}

#[test]
fn what_an_interrupted_write_left_is_removed_and_latest_still_holds() {
    let folder = tempdir().unwrap();
    stopped(folder.path());
    let partial = folder.path().join("checkpoints/.partial-update-00000009");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("parameters.safetensors"), "half of it").unwrap();
    resume(&settings(&[]), folder.path()).unwrap();
    assert!(!partial.exists());
}

#[test]
fn where_latest_names_nothing_the_newest_that_is_there_is_taken() {
    let straight = tempdir().unwrap();
    train(&settings(&[]), straight.path()).unwrap();
    let expected = checkpoint_files(straight.path(), UPDATES);
    for name in [Some("../../somewhere"), Some("update-00000099"), Some(""), None] {
        let folder = tempdir().unwrap();
        stopped(folder.path());
        let latest = folder.path().join("checkpoints/latest");
        match name {
            Some(name) => fs::write(&latest, name).unwrap(),
            None => fs::remove_file(&latest).unwrap(),
        }
        resume(&settings(&[]), folder.path()).unwrap();
        let metrics = fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert!(metrics.contains(r#""event":"started","update":7,"#), "{name:?}\n{metrics}");
        assert_eq!(checkpoint_files(folder.path(), UPDATES), expected, "{name:?}");
    }
}

#[test]
fn a_run_goes_on_from_the_checkpoint_before_one_that_was_removed() {
    let folder = tempdir().unwrap();
    train(&settings(&["run.keep_last=3"]), folder.path()).unwrap();
    let expected = checkpoint_files(folder.path(), UPDATES);
    let damaged = folder.path().join("checkpoints/update-00000012");
    fs::write(damaged.join("manifest.json"), "{").unwrap();
    let text = resume(&settings(&[]), folder.path()).unwrap_err().to_string();
    assert!(text.contains("remove the folder of this one and go on by --resume"), "{text}");
    fs::remove_dir_all(&damaged).unwrap();
    resume(&settings(&[]), folder.path()).unwrap();
    assert_eq!(checkpoint_files(folder.path(), UPDATES), expected);
}

#[cfg(unix)]
#[test]
fn a_device_in_the_place_of_a_file_is_refused_unread() {
    let folder = tempdir().unwrap();
    stopped(folder.path());
    let manifest = file(folder.path(), "manifest.json");
    let parameters = file(folder.path(), "parameters.safetensors");
    for path in [folder.path().join("checkpoints/latest"), parameters, manifest] {
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        resume(&settings(&[]), folder.path()).unwrap_err();
    }
}

#[test]
fn checkpoints_are_plain_safetensors() {
    let folder = tempdir().unwrap();
    train(&settings(&[]), folder.path()).unwrap();
    let read =
        |name| fs::read(folder.path().join("checkpoints/update-00000012").join(name)).unwrap();
    let bytes = read("parameters.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("h.0.attn.c_attn.weight").unwrap().shape(), [16, 48]);
    let bytes = read("optimizer.safetensors");
    let words = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(words.tensor("h.0.attn.c_attn.weight.word").unwrap().shape(), [16 * 48]);
}
