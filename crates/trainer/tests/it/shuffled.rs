//! Runs over shuffled windows, sets and mixtures: exact across interruptions, epochs and ways of reading.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tape::layout::{Element, Part, TapeFiles};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::sources::InMemory;
use tape::stories::Stories;
use tape::tokenizer::Tokenizer;
use tape::writer::Form;
use tempfile::{TempDir, tempdir};
use trainer::events::Event;
use trainer::{Ending, Error, Settings, run};

use crate::tiny::{UPDATES, checkpoint_files, resume, settings, stop_at, train};

/// Tapes of stories: a set of 16-bit ids, another tape, a validation tape, and their tokenizer.
pub struct Tapes {
    folder: TempDir,
}

impl Tapes {
    pub fn new() -> Self {
        let folder = tempdir().unwrap();
        let go_on = &mut |_| ControlFlow::Continue(());
        let documents = |seed, count| {
            InMemory::new("stories", Stories::new(seed).take(count).collect::<Vec<_>>())
        };
        let tokenizer = Tokenizer::train(&mut documents(1, 60), 300, go_on).unwrap();
        tokenizer.save(&folder.path().join("tok.json")).unwrap();
        let set = Form { element: Element::U16, shard_tokens: Some(97) };
        let work = [
            ("a", Part::Train, set, documents(1, 2)),
            ("b", Part::Train, Form::default(), documents(2, 3)),
            ("a", Part::Validation, Form::default(), documents(3, 4)),
        ];
        for (name, part, form, mut documents) in work {
            let output = folder.path().join(name);
            let options =
                PrepareOptions { form, ..PrepareOptions::new(output, Split::Whole(part)) };
            prepare(&mut documents, &tokenizer, &options, go_on).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The tiny run on these tapes, shuffled.
    fn settings(&self, changes: &[&str]) -> Settings {
        let path = |name: &str| self.path(name).display().to_string();
        let tokenizer = format!("data.tokenizer={}", path("tok.json"));
        let train = format!("data.train_tokens={}", path("a/train.tape-set.json"));
        let validation = format!("data.validation_tokens={}", path("a/validation.tokens.u32"));
        let ours = [
            "data.source=tapes",
            "data.order=shuffled",
            "data.range_tokens=100",
            "data.epochs=9",
            &tokenizer,
            &train,
            &validation,
        ];
        settings(&[&ours[..], changes].concat())
    }

    pub fn mixture(&self) -> Settings {
        let (a, b) = (self.path("a/train.tape-set.json"), self.path("b/train.tokens.u32"));
        let train = format!("data.train_tokens=[\"{}\", \"{}\"]", a.display(), b.display());
        self.settings(&[&train, "data.weights=[0.69, 0.31]", "data.verify=reading"])
    }
}

fn bytes_of(settings: &Settings) -> std::collections::BTreeMap<String, String> {
    let folder = tempdir().unwrap();
    train(settings, folder.path()).unwrap();
    checkpoint_files(folder.path(), UPDATES)
}

#[test]
fn interruptions_change_no_byte_over_epochs_and_mixtures() {
    let tapes = Tapes::new();
    for settings in [tapes.settings(&[]), tapes.mixture()] {
        let expected = bytes_of(&settings);
        let broken = tempdir().unwrap();
        let mut going_on = false;
        // Stops after every single update; the runs go through their tapes several times.
        loop {
            let when = |event: &Event| matches!(event, Event::Update(_));
            match stop_at(&settings, broken.path(), going_on, when).unwrap() {
                Ending::Stopped { update } if update < UPDATES => going_on = true,
                _ => break,
            }
        }
        resume(&settings, broken.path()).unwrap();
        assert_eq!(checkpoint_files(broken.path(), UPDATES), expected);
    }
}

#[test]
fn the_order_follows_from_seed_and_range_alone() {
    let tapes = Tapes::new();
    let parameters = |changes: &[&str]| {
        let files = bytes_of(&tapes.settings(changes));
        files["parameters.safetensors"].clone()
    };
    let expected = parameters(&[]);
    for same in ["data.prefetch=false", "run.threads=1", "data.verify=reading", "data.epochs=50"] {
        assert_eq!(parameters(&[same]), expected, "{same}");
    }
    for other in ["data.shuffle_seed=2", "data.range_tokens=64", "data.order=sequential"] {
        let short = ["run.updates=6", "schedule.warmup=0", "run.batch=1"];
        let with = |change: &str| {
            let folder = tempdir().unwrap();
            let settings = tapes.settings(&[&short[..], &[change]].concat());
            train(&settings, folder.path()).unwrap();
            checkpoint_files(folder.path(), 6)["parameters.safetensors"].clone()
        };
        assert_ne!(with(other), with("data.shuffle_seed=1"), "{other}");
    }
}

#[test]
fn another_order_is_another_run() {
    let tapes = Tapes::new();
    for change in ["data.shuffle_seed=2", "data.range_tokens=64", "data.weights=[3]"] {
        let folder = tempdir().unwrap();
        let when = |event: &Event| matches!(event, Event::Update(_));
        stop_at(&tapes.settings(&[]), folder.path(), false, when).unwrap();
        let error = resume(&tapes.settings(&[change]), folder.path()).unwrap_err();
        assert!(matches!(error, Error::CheckpointMismatch { .. }), "{error}");
    }
}

/// The updates of a run.
fn updates(settings: &Settings, folder: &Path) -> Vec<trainer::events::Update> {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let request =
        trainer::Request { settings, folder: folder.to_owned(), resume: false, stop: &stop };
    let mut found = Vec::new();
    run(&request, &mut |event: &Event| {
        if let Event::Update(update) = event {
            found.push(update.clone());
        }
    })
    .unwrap();
    found
}

#[test]
fn a_budget_in_tokens_and_virtual_epochs_are_counted_exactly() {
    let tapes = Tapes::new();
    let folder = tempdir().unwrap();
    let mut settings = tapes.settings(&["data.epoch_tokens=100"]);
    settings.remove("run.updates");
    settings.add_assignment("run.tokens=777").unwrap();
    let found = updates(&settings, folder.path());
    assert_eq!(found.last().unwrap().tokens, 777);
    for update in &found {
        assert_eq!(update.epoch, Some(update.tokens.div_ceil(100)));
        assert!(update.source_bytes.is_some());
    }
    // One pass: every target once, so the bytes are those of the tape but for its first token.
    settings.add_assignment("run.tokens=tape").unwrap();
    settings.add_assignment("data.epochs=1").unwrap();
    let folder = tempdir().unwrap();
    let found = updates(&settings, folder.path());
    let set: serde_json::Value =
        serde_json::from_slice(&fs::read(tapes.path("a/train.tape-set.json")).unwrap()).unwrap();
    assert_eq!(found.last().unwrap().tokens, set["count"].as_u64().unwrap() - 1);
    let bytes = found.last().unwrap().source_bytes.unwrap();
    assert!((1..16).contains(&(set["source_bytes"].as_u64().unwrap() - bytes)), "{bytes}");

    settings.remove("run.tokens");
    settings.add_assignment("run.rdq=2e-7").unwrap();
    let folder = tempdir().unwrap();
    let bytes = updates(&settings, folder.path()).last().unwrap().source_bytes.unwrap();
    assert!((150..260).contains(&bytes), "{bytes}");
}

#[test]
fn impossible_orders_are_refused() {
    let tapes = Tapes::new();
    let check = |changes: &[&str], part: &str| {
        let folder = tempdir().unwrap();
        let error = train(&tapes.settings(changes), folder.path()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check(&["data.epochs=1", "run.updates=100"], "raise data.epochs");
    check(&["data.weights=[1, 2]"], "2 weights for 1 tapes");
    check(&["data.weights=[\"much\"]"], "a list of positive numbers");
    check(&["data.order=random"], "sequential or shuffled");
    check(&["data.train_tokens=[]"], "a list of paths");
    let a = tapes.path("a/train.tape-set.json").display().to_string();
    let two = format!("data.train_tokens=[\"{a}\", \"{a}\"]");
    check(&[&two, "data.order=sequential"], "several training tapes");
    check(&["data.train_byte_lengths=x"], "the files of a set have their own");
    check(&["data.order=sequential", "run.updates=100"], "too few");
}

#[test]
fn a_tape_that_changes_while_training_runs_is_an_error_and_the_run_can_go_on() {
    let tapes = Tapes::new();
    let tokens = tapes.path("b/train.tokens.u32");
    let good = fs::read(&tokens).unwrap();
    for order in ["sequential", "shuffled"] {
        let train_tokens = format!("data.train_tokens={}", tokens.display());
        let order = format!("data.order={order}");
        let settings = tapes.settings(&[&train_tokens, &order, "run.batch=1", "run.updates=8"]);
        let settings = {
            let mut settings = settings;
            settings.add_assignment("run.checkpoint_every=1").unwrap();
            settings
        };
        let expected = {
            let folder = tempdir().unwrap();
            train(&settings, folder.path()).unwrap();
            checkpoint_files(folder.path(), 8)
        };
        let folder = tempdir().unwrap();
        let when = |event: &Event| matches!(event, Event::Update(_));
        stop_at(&settings, folder.path(), false, when).unwrap();
        // Cut short, rewritten: refused at the next start as well as in a run, by name.
        fs::write(&tokens, &good[..good.len() / 2]).unwrap();
        let error = resume(&settings, folder.path()).unwrap_err().to_string();
        assert!(error.contains("train.tokens.u32"), "{error}");
        let mut other = good.clone();
        other[40] ^= 1;
        fs::write(&tokens, &other).unwrap();
        for verify in ["data.verify=opening", "data.verify=reading"] {
            let mut settings = settings.clone();
            settings.add_assignment(verify).unwrap();
            let error = resume(&settings, folder.path()).unwrap_err().to_string();
            assert!(error.contains("train.tokens.u32"), "{error}");
        }
        fs::write(&tokens, &good).unwrap();
        resume(&settings, folder.path()).unwrap();
        assert_eq!(checkpoint_files(folder.path(), 8), expected);
    }
}

#[test]
fn a_tape_cut_short_under_a_running_run_ends_it_with_a_whole_checkpoint() {
    let tapes = Tapes::new();
    let tokens = tapes.path("b/train.tokens.u32");
    let good = fs::read(&tokens).unwrap();
    let train_tokens = format!("data.train_tokens={}", tokens.display());
    let settings = tapes.settings(&[
        &train_tokens,
        // More ranges than are brought at once.
        "run.batch=4",
        "run.updates=8",
        "run.checkpoint_every=1",
    ]);
    let folder = tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let path = folder.path().to_owned();
    let request =
        trainer::Request { settings: &settings, folder: path, resume: false, stop: &stop };
    let error = run(&request, &mut |event: &Event| {
        if matches!(event, Event::Update(update) if update.update == 3) {
            fs::write(&tokens, &good[..good.len() / 2]).unwrap();
        }
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("train.tokens.u32 has changed"), "{error}");
    checkpoint_files(folder.path(), 2);
    fs::write(&tokens, &good).unwrap();
    resume(&settings, folder.path()).unwrap();
}

#[test]
fn a_validation_tape_of_less_than_a_window_is_scored_or_refused() {
    let tapes = Tapes::new();
    let whole = fs::read(tapes.path("a/validation.tokens.u32")).unwrap();
    let files = TapeFiles::beside(tapes.path("small.tokens.u32"));
    for (tokens, targets) in [(1, None), (2, Some(1)), (5, Some(4)), (20, Some(19))] {
        fs::write(&files.tokens, &whole[..4 * tokens]).unwrap();
        let validation = format!("data.validation_tokens={}", files.tokens.display());
        let folder = tempdir().unwrap();
        let result = train(&tapes.settings(&[&validation]), folder.path());
        match targets {
            None => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("small.tokens.u32") && error.contains("too few"), "{error}");
            }
            Some(targets) => {
                let summary = result.unwrap();
                assert_eq!(summary.validation_tokens, targets);
                assert!(summary.validation_loss_nats.is_finite());
            }
        }
    }
}
