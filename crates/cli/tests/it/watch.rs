//! The live view, as the picture that it gives where there is no terminal, and shadows as `train` takes them.

use std::fs;

use crate::program::{data, failure, json};
use crate::studies::folder;

#[test]
fn a_finished_run_and_a_study_can_be_watched() {
    let folder = folder();
    let here = folder.path();
    data(here, &["train", "--config", "tiny.toml", "--output-dir", "run"]);
    let picture = data(here, &["watch", "run", "--width", "110", "--height", "24"]);
    assert_eq!(picture.lines().count(), 24);
    for words in
        ["run", "finished", "20/20", "e4", "cpu", "bits per byte over training tokens", "q ends"]
    {
        assert!(picture.contains(words), "{words}\n{picture}");
    }
    // A curve of Braille dots.
    assert!(picture.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{picture}");

    // A line that is being written is not there yet.
    let metrics = here.join("run/metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let half = whole.find("\"update\":15").unwrap();
    fs::write(&metrics, &whole[..half + 30]).unwrap();
    let picture = data(here, &["watch", "run", "--once"]);
    assert!(picture.contains("14/20") && picture.contains("running"), "{picture}");

    let vary = ["compare", "--config", "tiny.toml", "--vary", "optimizer.state=fp32,e4"];
    data(
        here,
        &[&vary[..], &["--seeds", "1,2", "--output-dir", "cmp", "--devices", "cpu"]].concat(),
    );
    let picture = data(here, &["watch", "cmp", "--once"]);
    for name in ["fp32-seed-1", "e4-seed-1", "fp32-seed-1-perturbed", "e4-seed-2", "cmp: tiny"] {
        assert!(picture.contains(name), "{name}\n{picture}");
    }
    assert_eq!(picture.matches("finished").count(), 6, "{picture}");
    // A report takes a study by its folder too.
    data(here, &["report", "cmp", "--output-dir", "pages", "--tensorboard"]);
    assert!(fs::read_to_string(here.join("pages/report.md")).unwrap().contains("| e4-seed-2 |"));
    let events = "pages/tensorboard/e4-seed-2/events.out.tfevents.0.packed-adamw";
    assert!(here.join(events).is_file());

    let error = failure(here, &["watch", "absent"], 2);
    assert!(error.contains("neither a run folder"), "{error}");
}

#[test]
fn shadows_are_asked_for_on_the_command_line() {
    let folder = folder();
    let here = folder.path();
    let args =
        ["train", "--config", "tiny.toml", "--output-dir", "run", "--shadow", "e4@12,e4@auto,fp16"];
    data(here, &[&args[..], &["--set", "run.shadow_measure_every=5"]].concat());
    let found = json(here, &["report", "run", "--output-dir", "pages", "--json"]);
    let shadows = found["runs"][0]["shadows"].as_array().unwrap();
    let all: Vec<&str> = shadows
        .iter()
        .filter(|shadow| shadow["role"] == "all")
        .map(|shadow| shadow["format"].as_str().unwrap())
        .collect();
    assert_eq!(all, ["e4@12", "e4@auto", "fp16"]);
    let page = fs::read_to_string(here.join("pages/report.md")).unwrap();
    assert!(page.contains("## Shadows of run") && page.contains("| e4@auto |"), "{page}");
    assert!(here.join("pages/shadows-run.png").is_file());
    let error = failure(here, &["train", "--config", "tiny.toml", "--shadow", "e4@99"], 2);
    assert!(error.contains("--shadow: `run.shadow` must be a bias from 0 to 40"), "{error}");
}
