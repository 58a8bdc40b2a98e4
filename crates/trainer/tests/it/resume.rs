//! A run that was interrupted ends with the bytes of one that was not.

use tempfile::tempdir;
use trainer::events::Event;
use trainer::{Ending, Error};

use crate::tiny::{UPDATES, checkpoint_files, resume, settings, stop_at, train};

/// Every format, also for the smallest tensors.
pub const FORMATS: [&str; 7] =
    ["fp32", "fp16", "e4", "e4s", "block8:min=0", "ustate1q:min=0", "n4l4:min=0"];

#[test]
fn stopping_after_any_update_changes_no_byte_in_any_format() {
    for format in FORMATS {
        let settings = settings(&[&format!("optimizer.state={format}"), "optimizer.bias=auto"]);
        let straight = tempdir().unwrap();
        let summary = train(&settings, straight.path()).unwrap();
        let expected = checkpoint_files(straight.path(), UPDATES);

        let broken = tempdir().unwrap();
        let mut going_on = false;
        // Stops after every single update, so every state is saved and loaded once.
        loop {
            let when = |event: &Event| matches!(event, Event::Update(_));
            match stop_at(&settings, broken.path(), going_on, when).unwrap() {
                Ending::Stopped { update } if update < UPDATES => going_on = true,
                _ => break,
            }
        }
        let resumed = resume(&settings, broken.path()).unwrap();
        assert_eq!(checkpoint_files(broken.path(), UPDATES), expected, "{format}");
        assert_eq!(resumed.validation_loss_nats, summary.validation_loss_nats, "{format}");
        assert_eq!(resumed.first_validation, summary.first_validation, "{format}");
        assert_eq!(resumed.sample, summary.sample, "{format}");
    }
}

#[test]
fn a_finished_run_that_is_resumed_says_how_fast_it_was() {
    let settings = settings(&[]);
    let folder = tempdir().unwrap();
    let summary = train(&settings, folder.path()).unwrap();
    let again = resume(&settings, folder.path()).unwrap();
    assert!(again.tokens_per_s > 0.0);
    assert_eq!(again.sample, summary.sample);
}

#[test]
fn a_sample_begins_with_its_prompt_once() {
    let folder = tempdir().unwrap();
    let prompted = settings(&["run.sample_prompt=The fox", "run.updates=2", "schedule.warmup=1"]);
    let sample = train(&prompted, folder.path()).unwrap().sample.unwrap();
    assert!(sample.starts_with("The fox") && sample.matches("The fox").count() == 1, "{sample}");

    let folder = tempdir().unwrap();
    let long = format!("run.sample_prompt={}", "a fox and a dog ".repeat(9));
    let error = train(&settings(&[&long]), folder.path()).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { context: 16, .. }), "{error}");
}

#[test]
fn a_stop_at_start_in_validation_and_in_sampling_leaves_a_checkpoint_to_resume_from() {
    let settings = settings(&[]);
    let straight = tempdir().unwrap();
    train(&settings, straight.path()).unwrap();
    let expected = checkpoint_files(straight.path(), UPDATES);

    type Moment = (&'static str, fn(&Event) -> bool, u64);
    let moments: [Moment; 5] = [
        ("preparation", |event| matches!(event, Event::Preparing { .. }), 0),
        ("start", |event| matches!(event, Event::Started { .. }), 0),
        ("first validation", |event| matches!(event, Event::Validating { .. }), 0),
        ("last validation", |event| matches!(event, Event::FinalValidation(_)), UPDATES),
        ("sample", |event| matches!(event, Event::Sample { .. }), UPDATES),
    ];
    for (name, when, update) in moments {
        let folder = tempdir().unwrap();
        let ending = stop_at(&settings, folder.path(), false, when).unwrap();
        assert!(
            matches!(ending, Ending::Stopped { update: at } if at == update),
            "{name}: {ending:?}"
        );
        assert!(!folder.path().join("summary.json").exists(), "{name}");
        checkpoint_files(folder.path(), update);
        resume(&settings, folder.path()).unwrap();
        assert_eq!(checkpoint_files(folder.path(), UPDATES), expected, "{name}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let folders: Vec<_> = [1, 2, 3]
        .map(|threads| {
            let folder = tempdir().unwrap();
            train(&settings(&[&format!("run.threads={threads}")]), folder.path()).unwrap();
            folder
        })
        .into();
    let expected = checkpoint_files(folders[0].path(), UPDATES);
    for folder in &folders[1..] {
        assert_eq!(checkpoint_files(folder.path(), UPDATES), expected);
    }
}

#[test]
fn metrics_after_a_crash_hold_every_update_once() {
    let settings = settings(&[]);
    let folder = tempdir().unwrap();
    let when = |event: &Event| matches!(event, Event::Update(update) if update.update == 7);
    stop_at(&settings, folder.path(), false, when).unwrap();
    // A crash leaves updates that no checkpoint has, and a line that is cut in the middle.
    let metrics = folder.path().join("metrics.jsonl");
    let text = std::fs::read_to_string(&metrics).unwrap();
    let line = text.lines().find(|line| line.contains("\"update\":7,")).unwrap();
    let later = line.replace("\"update\":7,", "\"update\":8,");
    std::fs::write(&metrics, format!("{text}{later}\n{}", &later[..later.len() / 2])).unwrap();

    resume(&settings, folder.path()).unwrap();
    let updates: Vec<u64> = trainer::metrics::read(&metrics)
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            Event::Update(update) => Some(update.update),
            _ => None,
        })
        .collect();
    assert_eq!(updates, (1..=UPDATES).collect::<Vec<u64>>());
}

/// What is kept of a pass is no part of what a run is: it may change at a resume.
#[test]
fn recomputation_changes_no_byte() {
    let (kept, again) = (tempdir().unwrap(), tempdir().unwrap());
    train(&settings(&[]), kept.path()).unwrap();
    let when = |event: &Event| matches!(event, Event::Update(update) if update.update == 5);
    stop_at(&settings(&["run.recompute=block"]), again.path(), false, when).unwrap();
    resume(&settings(&["run.recompute=none"]), again.path()).unwrap();
    assert_eq!(checkpoint_files(again.path(), UPDATES), checkpoint_files(kept.path(), UPDATES));
}
