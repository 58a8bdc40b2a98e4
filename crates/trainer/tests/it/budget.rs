//! How long a run is, by updates, tokens, bytes or the tape.

use tempfile::tempdir;
use trainer::{Error, Settings, plan};

use crate::tiny::{self, train};

fn with_length(length: &str) -> Settings {
    let mut settings = tiny::settings(&[]);
    settings.remove("run.updates");
    settings.add_assignment(length).unwrap();
    settings
}

#[test]
fn a_plan_counts_parameters_bytes_and_updates() {
    let plan = plan(&tiny::settings(&[])).unwrap();
    // V C + T C + 12 C^2 + 13 C + 2 C with V = 301, T = 16, C = 16.
    assert_eq!(plan.parameters, 301 * 16 + 16 * 16 + 12 * 256 + 13 * 16 + 2 * 16);
    assert_eq!((plan.updates, plan.update_tokens, plan.tokens), (12, 96, 1152));
    assert_eq!(plan.updates_allowed, plan.tape_tokens.div_ceil(96));
    assert_eq!(plan.bytes[0].bytes, plan.parameters * 4);
    assert_eq!(plan.bytes[2].bytes, plan.parameters * 4);
    assert!(plan.estimated_s > 0.0);
}

#[test]
fn the_whole_tape_is_every_target_once() {
    let plan = plan(&with_length("run.tokens=tape")).unwrap();
    assert_eq!(plan.tokens, plan.tape_tokens);
    assert_eq!(plan.updates, plan.updates_allowed);
}

#[test]
fn a_length_in_source_bytes_is_reached_and_not_passed_by_a_token() {
    let folder = tempdir().unwrap();
    let summary = train(&with_length("run.rdq=4e-6"), folder.path()).unwrap();
    // No token of the tiny tokenizer is longer than 64 bytes.
    assert!((4000..4064).contains(&summary.source_bytes), "{}", summary.source_bytes);
}

#[test]
fn a_tape_that_is_too_short_is_an_error_before_the_first_update() {
    for length in ["run.updates=100_000", "run.tokens=1_000_000", "run.rdq=0.5"] {
        let folder = tempdir().unwrap();
        let error = train(&with_length(length), folder.path()).unwrap_err();
        assert!(matches!(error, Error::TapeTooShort { .. }), "{error}");
        assert!(error.to_string().contains("too few"), "{error}");
        assert!(!folder.path().join("metrics.jsonl").exists());
    }
}
