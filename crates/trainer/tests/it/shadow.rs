//! Shadows of a run: what they find, and that they change nothing.

use tempfile::tempdir;
use trainer::shadow::{ALL, read, summaries};

use crate::tiny::{checkpoint_files, resume, settings, stop_at, train};

const SHADOWS: &str = "run.shadow=[\"fp32\", \"e4\", \"e4@8\", \"e4@auto\", \"fp16\"]";

#[test]
fn shadows_measure_and_change_nothing() {
    let plain = tempdir().unwrap();
    train(&settings(&["optimizer.state=fp32"]), plain.path()).unwrap();
    let folder = tempdir().unwrap();
    let changes = ["optimizer.state=fp32", SHADOWS, "run.shadow_measure_every=2"];
    train(&settings(&changes), folder.path()).unwrap();
    assert_eq!(checkpoint_files(folder.path(), 12), checkpoint_files(plain.path(), 12));

    let rows = read(&folder.path().join("shadow.jsonl")).unwrap();
    let updates: Vec<u64> = rows
        .iter()
        .filter(|row| row.format == "e4" && row.role == ALL)
        .map(|row| row.update)
        .collect();
    assert_eq!(updates, [2, 4, 6, 8, 10, 12]);
    let roles: Vec<&str> = rows
        .iter()
        .filter(|row| row.format == "e4" && row.update == 2)
        .map(|row| row.role.as_str())
        .collect();
    for role in ["token table", "positions", "attention", "attention output", "mlp", "bias", "gain"]
    {
        assert!(roles.contains(&role), "{role} {roles:?}");
    }
    let elements = |role: &str| rows.iter().find(|row| row.role == role).unwrap().elements;
    let all: u64 = roles.iter().filter(|role| **role != ALL).map(|role| elements(role)).sum();
    assert_eq!(elements(ALL), all);

    let found = summaries(&rows);
    let of = |format: &str| {
        let mine = found.iter().find(|summary| summary.format == format && summary.role == ALL);
        mine.unwrap().means.clone()
    };
    // The f32 shadow is the f32 moments themselves.
    let exact = of("fp32");
    assert_eq!((exact.direction_error, exact.m_error, exact.r_error), (0.0, 0.0, 0.0));
    assert!((exact.direction_cosine - 1.0).abs() < 1e-12);
    assert_eq!((exact.stalled_m, exact.stalled_r), (0.0, 0.0));
    // Twelve bits of fraction and a half; small gradients fall among the subnormal numbers of a small bias, where
    // there are fewer.
    let (e4, coarse, auto) = (of("e4"), of("e4@8"), of("e4@auto"));
    assert!(e4.direction_error > 1e-5 && e4.direction_error < 0.05, "{e4:?}");
    assert!(coarse.direction_error > e4.direction_error, "{coarse:?}\n{e4:?}");
    assert!(coarse.subnormal_r.unwrap() > e4.subnormal_r.unwrap(), "{coarse:?}\n{e4:?}");
    assert!(auto.direction_error < coarse.direction_error, "{auto:?}");
    assert!(of("fp16").m_error < 1e-2);
}

#[test]
fn every_format_can_be_a_shadow() {
    let names: Vec<&str> = formats::Format::ALL.iter().map(|format| format.name()).collect();
    let list = format!("run.shadow={names:?}");
    let folder = tempdir().unwrap();
    let changes = ["optimizer.state=fp32", &list, "run.shadow_measure_every=4"];
    train(&settings(&changes), folder.path()).unwrap();
    let rows = read(&folder.path().join("shadow.jsonl")).unwrap();
    for name in names {
        let mine: Vec<_> =
            rows.iter().filter(|row| row.format == name && row.role == ALL).collect();
        assert_eq!(mine.len(), 3, "{name}");
        let last = mine[2];
        assert!(last.direction_cosine > 0.5 && last.direction_error.is_finite(), "{last:?}");
    }
}

#[test]
fn rows_after_a_resume_follow_those_before() {
    let folder = tempdir().unwrap();
    let changes = [SHADOWS, "run.shadow_every=2", "run.shadow_measure_every=1"];
    let settings = settings(&changes);
    stop_at(
        &settings,
        folder.path(),
        false,
        |event| matches!(event, trainer::events::Event::Update(update) if update.update == 7),
    )
    .unwrap();
    resume(&settings, folder.path()).unwrap();
    let rows = read(&folder.path().join("shadow.jsonl")).unwrap();
    let mine = rows.iter().filter(|row| row.format == "e4" && row.role == ALL);
    let found: Vec<(u64, u64)> = mine.map(|row| (row.update, row.fed)).collect();
    // The shadows began anew where the run went on.
    assert_eq!(found, [(2, 1), (4, 2), (6, 3), (8, 1), (10, 2), (12, 3)]);
}

#[test]
fn shadows_that_make_no_sense_are_refused() {
    for (list, words) in [
        ("run.shadow=[\"e5\"]", "e5"),
        ("run.shadow=[\"e4@41\"]", "a bias from 0 to 40"),
        ("run.shadow=[\"fp32@3\"]", "it has no bias"),
        ("run.shadow=[\"e4\", \"e4\"]", "without anything twice"),
        ("run.shadow=e4", "a list of formats"),
        ("run.shadow_every=0", "at least 1"),
    ] {
        let folder = tempdir().unwrap();
        let error = train(&settings(&[list]), folder.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{list}\n{error}");
    }
}
