//! Everything that can be wrong with what a run is given.

use std::fs;
use std::path::Path;

use tempfile::tempdir;
use trainer::events::Event;
use trainer::study::StudyState;
use trainer::{Error, Kind, RunRecord, Settings};

use crate::tiny::{self, checkpoint_files, resume, stop_at, train};

/// The tiny run over tapes that an earlier run made in `folder`, with some settings changed.
fn over_tapes(folder: &Path, changes: &[&str]) -> Settings {
    let data = folder.join("data");
    let path = |name: &str| data.join(name).to_string_lossy().into_owned();
    let mut settings = tiny::settings(&["data.source=tapes"]);
    for (key, name) in [
        ("data.train_tokens", "train.tokens.u32"),
        ("data.validation_tokens", "validation.tokens.u32"),
        ("data.tokenizer", "tokenizer.json"),
    ] {
        settings.set_text(key, &path(name), "test").unwrap();
    }
    for change in changes {
        settings.add_assignment(change).unwrap();
    }
    settings
}

/// A folder with the tapes of the tiny run.
fn tapes() -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    train(&tiny::settings(&["run.updates=1"]), folder.path()).unwrap();
    folder
}

fn error_over(folder: &Path, changes: &[&str]) -> String {
    let run = tempdir().unwrap();
    train(&over_tapes(folder, changes), run.path()).unwrap_err().to_string()
}

#[test]
fn a_shape_that_no_network_has_is_a_mistake_of_the_user() {
    let folder = tempdir().unwrap();
    let error = train(&tiny::settings(&["model.heads=3"]), folder.path()).unwrap_err();
    assert!(error.to_string().contains("16 channels"), "{error}");
    assert_eq!(error.kind(), Kind::Usage);
}

#[test]
fn damaged_tapes_are_refused() {
    let folder = tapes();
    let tokens = folder.path().join("data/train.tokens.u32");
    let original = fs::read(&tokens).unwrap();
    fs::write(&tokens, &original[..original.len() - 1]).unwrap();
    assert!(error_over(folder.path(), &[]).contains("train.tokens.u32"));

    let mut flipped = original.clone();
    flipped[40] ^= 1;
    fs::write(&tokens, &flipped).unwrap();
    assert!(error_over(folder.path(), &[]).contains("train.tokens.u32"));

    fs::write(&tokens, &original[..original.len() - 4]).unwrap();
    assert!(error_over(folder.path(), &[]).contains("train."));

    // Without a sidecar there is no hash to compare with, but the ids are still checked.
    fs::remove_file(folder.path().join("data/train.tape.json")).unwrap();
    let mut beyond = original.clone();
    beyond[40..44].copy_from_slice(&9999_u32.to_le_bytes());
    fs::write(&tokens, &beyond).unwrap();
    let text = error_over(folder.path(), &[]);
    assert!(text.contains("9999") && text.contains("10"), "{text}");

    fs::write(&tokens, "").unwrap();
    assert!(error_over(folder.path(), &[]).contains("train.tokens.u32"));

    fs::remove_file(&tokens).unwrap();
    assert!(error_over(folder.path(), &[]).contains("train.tokens.u32"));
}

#[test]
fn tapes_of_another_tokenizer_are_refused() {
    let folder = tapes();
    let mut settings = over_tapes(folder.path(), &[]);
    settings.remove("data.tokenizer");
    let run = tempdir().unwrap();
    let text = train(&settings, run.path()).unwrap_err().to_string();
    assert!(text.contains("made with the tokenizer"), "{text}");
}

#[test]
fn a_vocabulary_smaller_than_the_tokenizer_is_refused_and_a_larger_one_is_not() {
    let folder = tapes();
    let text = error_over(folder.path(), &["model.vocabulary=300"]);
    assert!(text.contains("at least 301"), "{text}");
    let run = tempdir().unwrap();
    train(&over_tapes(folder.path(), &["model.vocabulary=320"]), run.path()).unwrap();
}

#[test]
fn tapes_without_byte_lengths_train_in_nats_and_refuse_a_length_in_bytes() {
    let folder = tapes();
    for name in [
        "train.byte-lengths.u16",
        "validation.byte-lengths.u16",
        "train.tape.json",
        "validation.tape.json",
    ] {
        fs::remove_file(folder.path().join("data").join(name)).unwrap();
    }
    let run = tempdir().unwrap();
    let summary = train(&over_tapes(folder.path(), &[]), run.path()).unwrap();
    assert_eq!(summary.validation_bpb, None);
    let mut settings = over_tapes(folder.path(), &["run.rdq=1e-6"]);
    settings.remove("run.updates");
    let run = tempdir().unwrap();
    let error = train(&settings, run.path()).unwrap_err();
    assert!(matches!(error, Error::NoByteLengths { .. }), "{error}");
}

#[test]
fn a_folder_that_holds_a_run_is_not_overwritten() {
    let folder = tempdir().unwrap();
    train(&tiny::settings(&[]), folder.path()).unwrap();
    let before = checkpoint_files(folder.path(), 12);
    let error = train(&tiny::settings(&["run.seed=2"]), folder.path()).unwrap_err();
    assert!(error.to_string().contains("--resume"), "{error}");
    assert_eq!(error.kind(), Kind::Usage);
    assert_eq!(checkpoint_files(folder.path(), 12), before);
}

#[test]
fn a_second_process_on_the_same_folder_is_refused() {
    let folder = tempdir().unwrap();
    let inner = folder.path().to_owned();
    let settings = tiny::settings(&[]);
    let mut second = None;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let request = trainer::Request {
        settings: &settings,
        folder: folder.path().to_owned(),
        resume: false,
        stop: &stop,
    };
    trainer::run(&request, &mut |event: &Event| {
        if matches!(event, Event::Started { .. }) {
            second = Some(resume(&tiny::settings(&[]), &inner).unwrap_err().to_string());
        }
    })
    .unwrap();
    assert!(second.unwrap().contains("in use by another process"));
}

#[test]
fn resuming_where_nothing_is_says_so() {
    let folder = tempdir().unwrap();
    let error = resume(&tiny::settings(&[]), &folder.path().join("nothing")).unwrap_err();
    assert!(error.to_string().contains("there is no such run folder"), "{error}");
}

#[test]
fn a_gradient_that_overflows_stops_the_run_and_leaves_the_last_checkpoint_whole() {
    let folder = tempdir().unwrap();
    // The parameters leave the range of f32 within a few updates of this rate.
    let wild = [
        "optimizer.lr=1e30",
        "optimizer.state=fp32",
        "run.checkpoint_every=1",
        "run.validate_every=0",
        "schedule.warmup=0",
        "optimizer.clip_norm=0",
    ];
    let error = train(&tiny::settings(&wild), folder.path()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NonFinite { .. } | Error::NonFiniteLoss { .. }), "{text}");
    assert!(text.contains("update ") && text.contains("of the tape"), "{text}");
    assert_eq!(error.kind(), Kind::Failed);
    trainer::Restored::open(folder.path()).unwrap();

    let (Error::NonFinite { update, cursor, .. } | Error::NonFiniteLoss { update, cursor, .. }) =
        error
    else {
        unreachable!("checked above")
    };
    let inside = trainer::replay(&tiny::settings(&wild), folder.path(), update).unwrap();
    assert_eq!((inside.update, inside.cursor), (update, cursor));
    assert_eq!(inside.checkpoint_update, update - 1, "there was a checkpoint after every update");
    let huge = |tensor: &trainer::TensorNorms| {
        tensor.nonfinite_gradients > 0 || tensor.parameter_norm > 1e18
    };
    assert!(inside.tensors.iter().any(huge), "{inside:?}");
    let error = trainer::replay(&tiny::settings(&wild), folder.path(), 0).unwrap_err();
    assert!(error.to_string().contains("from 1 to the"), "{error}");
}

#[test]
fn a_skipped_update_leaves_the_parameters_as_they_were() {
    let folder = tempdir().unwrap();
    let wild = [
        "optimizer.lr=1e30",
        "optimizer.state=fp32",
        "run.validate_every=0",
        "schedule.warmup=0",
        "optimizer.clip_norm=0",
        "optimizer.on_nonfinite=skip",
        "run.updates=6",
        "run.checkpoint_every=1",
        "run.sample_tokens=0",
    ];
    // The weights are huge by then and the last validation is not finite, so the run itself ends in an error;
    // its updates did not.
    let when = |event: &Event| matches!(event, Event::Update(update) if update.update == 5);
    stop_at(&tiny::settings(&wild), folder.path(), false, when).unwrap();
    let events = trainer::metrics::read(&folder.path().join("metrics.jsonl")).unwrap();
    let skipped: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Update(update) if update.skipped => Some(update.update),
            _ => None,
        })
        .collect();
    assert!(!skipped.is_empty());
    for update in skipped {
        let parameters =
            |update| checkpoint_files(folder.path(), update)["parameters.safetensors"].clone();
        assert_eq!(parameters(update), parameters(update - 1), "update {update}");
    }
}

/// What is said of a damaged file of a run names file and line, and what helps, and that helps.
#[test]
fn a_damaged_file_of_a_run_is_mended_as_its_message_says() {
    let folder = tempdir().unwrap();
    let settings = tiny::settings(&["run.updates=2"]);
    train(&settings, folder.path()).unwrap();
    let read = || RunRecord::read(folder.path());
    let refused = |needed: &[&str]| {
        let message = read().unwrap_err().to_string();
        assert!(needed.iter().all(|part| message.contains(part)), "{message}");
    };

    let metrics = folder.path().join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let (first, rest) = whole.split_once('\n').unwrap();
    fs::write(&metrics, format!("{first}\nno event\n{rest}")).unwrap();
    refused(&["metrics.jsonl line 2: ", "the file is damaged: take the line out"]);
    fs::write(&metrics, &whole).unwrap();

    let summary = folder.path().join("summary.json");
    let before = read().unwrap().summary.unwrap().validation_loss_nats;
    fs::write(&summary, "{").unwrap();
    refused(&["summary.json line 1: ", "remove it, and `train --resume`"]);
    fs::remove_file(&summary).unwrap();
    resume(&settings, folder.path()).unwrap();
    assert_eq!(read().unwrap().summary.unwrap().validation_loss_nats, before);
}

#[test]
fn a_damaged_file_of_a_study_says_how_to_go_on() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("study.json"), "{\n").unwrap();
    let message = StudyState::read_if_present(folder.path()).unwrap_err().to_string();
    assert!(message.contains("study.json line 2: "), "{message}");
    assert!(message.contains("repeat the command without --resume"), "{message}");
}
