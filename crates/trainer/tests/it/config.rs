//! Settings and their errors.

use std::path::Path;

use trainer::config::{Config, Length};
use trainer::{Error, KEYS, Kind, QUICKSTART, Settings};

use crate::tiny;

fn error_of(text: &str) -> Error {
    let mut settings = tiny::settings(&[]);
    match settings.add_file(text, Path::new("mine.toml")) {
        Err(error) => error,
        Ok(()) => Config::new(&settings).unwrap_err(),
    }
}

#[test]
fn every_default_is_toml_and_the_quickstart_is_valid() {
    let mut settings = Settings::new();
    settings.add_file(QUICKSTART, Path::new("configs/quickstart.toml")).unwrap();
    Config::new(&settings).unwrap();
    assert!(KEYS.iter().all(|key| key.name.contains('.') && !key.meaning.is_empty()));
}

#[test]
fn an_unknown_key_names_line_and_nearest_key() {
    let text = error_of("[run]\nbatch = 4\n\n[optimizer]\nlearning_rat = 3\n").to_string();
    assert!(text.starts_with("mine.toml line 5: unknown key `optimizer.learning_rat`"), "{text}");
    let text = error_of("[optimizer]\nweight_dcay = 0.1\n").to_string();
    assert!(text.ends_with("the nearest known one is `optimizer.weight_decay`"), "{text}");
    let text = error_of("[optimiser]\nlr = 1\n").to_string();
    assert!(text.contains("`optimiser.lr`") && text.contains("`optimizer.lr`"), "{text}");
    let text = error_of("batch = 4\n").to_string();
    assert!(text.starts_with("mine.toml line 1: unknown key `batch`"), "{text}");
}

#[test]
fn wrong_types_and_values_name_place_expectation_and_finding() {
    for (text, expected) in [
        (
            "[run]\nbatch = \"four\"",
            "mine.toml line 2: `run.batch` takes a whole number, found string (\"four\")",
        ),
        ("[run]\nbatch = 0", "mine.toml line 2: `run.batch` must be at least 1, found 0"),
        ("[run]\nbatch = -3", "mine.toml line 2: `run.batch` must be at least 1, found -3"),
        (
            "[run]\nkeep_best = 1",
            "mine.toml line 2: `run.keep_best` takes true or false, found integer (1)",
        ),
        ("[optimizer]\nbetas = [0.9]", "mine.toml line 2: `optimizer.betas` must be two numbers"),
        (
            "[optimizer]\nbetas = [0.9, 1.0]",
            "mine.toml line 2: `optimizer.betas` must be two numbers",
        ),
        (
            "[optimizer]\nbias = 41",
            "mine.toml line 2: `optimizer.bias` must be a whole number from 0 to 40",
        ),
        ("[optimizer]\nstate = \"e5\"", "must be one of fp32, fp16, e4, e4s, block8, "),
        (
            "[optimizer]\nstate = \"ustate1q:v_bits=5\"",
            "must be v_bits to be 2, 3, 4, 6 or 8, found \"5\"",
        ),
        (
            "[optimizer]\nlr = nan",
            "mine.toml line 2: `optimizer.lr` must be more than 0, found nan",
        ),
        (
            "[schedule]\nkind = \"step\"",
            "must be one of linear, cosine, constant, warmup-stable-decay",
        ),
        ("[schedule]\nkind = \"warmup-stable-decay\"", "`schedule.decay` has no value"),
        ("[run]\ntokens = 5", "`run.tokens` must be absent, since `run.updates` is given"),
        ("[data]\nsource = \"tapes\"", "`data.train_tokens` has no value"),
        ("[run]\nprecision = \"fp8\"", "`run.precision` must be auto, fp32, tf32 or bf16"),
        ("[run]\nbatch = [[4]", "mine.toml line 2: "),
        ("[run]\nbatch = 2020-01-01", "takes a number, a text, true or false, or a list of them"),
    ] {
        let error = error_of(text);
        assert!(error.to_string().contains(expected), "{text}\n{error}");
        assert_eq!(error.kind(), Kind::Usage, "{text}");
    }
}

#[test]
fn a_length_on_the_command_line_replaces_that_of_the_file() {
    let mut settings = tiny::settings(&[]);
    settings.add_assignment("run.tokens=500").unwrap();
    assert_eq!(Config::new(&settings).unwrap().run.length, Length::Tokens(500));
    // Two there are one too many.
    settings.add_assignment("run.updates=3").unwrap();
    assert!(Config::new(&settings).unwrap_err().to_string().contains("one length"));
}

#[test]
fn an_assignment_takes_toml_or_a_bare_word() {
    let mut settings = Settings::new();
    for assignment in
        ["optimizer.state=fp16", "optimizer.state=\"fp16\"", " optimizer.state = fp16 "]
    {
        settings.add_assignment(assignment).unwrap();
        assert_eq!(settings.text("optimizer.state"), Some("fp16"), "{assignment}");
    }
    let text = settings.add_assignment("optimizer.state").unwrap_err().to_string();
    assert_eq!(text, "--set optimizer.state: expected KEY=VALUE");
    let text = settings.add_assignment("run.bach=3").unwrap_err().to_string();
    assert!(text.contains("`run.batch`"), "{text}");
}

#[test]
fn what_is_written_reads_back_as_the_same_settings() {
    let settings = tiny::settings(&["optimizer.bias=auto", "run.sample_prompt=A \"quoted\" word"]);
    let mut again = Settings::new();
    again.add_file(&settings.to_toml(), Path::new("config.toml")).unwrap();
    for key in KEYS {
        let value =
            |settings: &Settings| settings.get(key.name).map(|setting| setting.value.clone());
        assert_eq!(value(&settings), value(&again), "{}", key.name);
    }
}
