//! Sets of runs: compared in matched pairs, reported, resumed, refused.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use crate::program::{data, failure, json, text};

/// A configuration whose runs take a tenth of a second.
pub const CONFIG: &str = r#"
[model]
context = 16
channels = 16
layers = 1
heads = 2
[optimizer]
lr = 1e-2
[schedule]
warmup = 3
[data]
source = "stories"
stories_bytes = 30_000
stories_vocabulary = 300
[run]
device = "cpu"
updates = 20
batch = 4
validate_every = 10
checkpoint_every = 100
"#;

/// A folder with the configuration as `tiny.toml`.
pub fn folder() -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), CONFIG).unwrap();
    folder
}

fn compare<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let vary = ["compare", "--config", "tiny.toml", "--devices", "cpu", "--vary"];
    [&vary[..], &["optimizer.state=fp32,e4,fp16"], more].concat()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn matched_pairs_are_made_compared_and_reported() {
    let folder = folder();
    let here = folder.path();
    let every = ["--shadow", "--set", "run.shadow_measure_every=5"];
    let more = ["--seeds", "1..3", "--output-dir", "cmp", "--csv", "--json"];
    let args = compare(&[&more[..], &every].concat());
    let found = json(here, &args);
    assert_eq!((&found["varied"], &found["baseline"]), (&"optimizer.state".into(), &"fp32".into()));
    let variants = found["variants"].as_array().unwrap();
    let names: Vec<&str> = variants.iter().map(|v| v["value"].as_str().unwrap()).collect();
    assert_eq!(names, ["fp32", "e4", "fp16"]);
    assert_eq!(found["noise"]["differences"].as_array().unwrap().len(), 3);
    assert_eq!(found["noise"]["perturbation"], "1e-6");

    // The figures are those of the summaries.
    let bpb = |name: &str| {
        let text = read(&here.join("cmp/runs").join(name).join("summary.json"));
        serde_json::from_str::<Value>(&text).unwrap()["validation_bpb"].as_f64().unwrap()
    };
    let percent = |seed: u32| {
        let (loss, base) = (bpb(&format!("e4-seed-{seed}")), bpb(&format!("fp32-seed-{seed}")));
        (loss - base) / base * 100.0
    };
    let values = [percent(1), percent(2), percent(3)];
    let mean = values.iter().sum::<f64>() / 3.0;
    let deviation = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 2.0).sqrt();
    let e4 = &variants[1];
    let near = |found: &Value, expected: f64| {
        let found = found.as_f64().unwrap();
        assert!((found - expected).abs() < 1e-3 * expected.abs() + 1e-12, "{found} {expected}");
    };
    near(&e4["percent"]["mean"], mean);
    near(&e4["percent"]["half_width"], 4.302_652_7 * deviation / 3f64.sqrt());
    assert_eq!(e4["state_bytes_per_parameter"], 4.0);
    let stalled = e4["stalled"][1].as_f64().unwrap();
    assert!((0.0..1.0).contains(&stalled) && variants[0]["stalled"].is_null(), "{e4}");
    assert_ne!(bpb("fp32-seed-1"), bpb("fp32-seed-1-perturbed"));

    for name in ["report.md", "report.html", "comparison.json", "metrics.csv"] {
        assert!(here.join("cmp").join(name).is_file(), "{name}");
    }
    for name in ["learning-curves", "differences", "shadows-fp32-seed-1"] {
        let svg = read(&here.join(format!("cmp/{name}.svg")));
        assert!(svg.starts_with("<svg") && svg.contains("fp16"), "{name}");
        let png = fs::read(here.join(format!("cmp/{name}.png"))).unwrap();
        assert_eq!(&png[1..4], b"PNG");
    }
    let page = read(&here.join("cmp/report.md"));
    for words in ["optimizer.state: fp32 and others", "within the percent named", "| fp16 |"] {
        assert!(page.contains(words), "{words}\n{page}");
    }
    let html = read(&here.join("cmp/report.html"));
    assert!(html.matches("<svg").count() == 3 && !html.contains("src="));
    let rows = read(&here.join("cmp/metrics.csv"));
    assert_eq!(rows.lines().skip(1).filter(|line| line.contains(",update,")).count(), 12 * 20);
    let columns = |line: &str| line.split(',').count();
    assert!(rows.lines().all(|line| columns(line) == 16), "{rows}");

    // All is there, so going on makes nothing and says the same.
    let again = json(here, &[&args[..], &["--resume"]].concat());
    assert_eq!(again, found);
    let error = failure(here, &args, 2);
    assert!(error.contains("holds a study already"), "{error}");
    let changed = [&args[..], &["--resume", "--set", "run.batch=5"]].concat();
    let error = failure(here, &changed, 2);
    assert!(error.contains("`run.batch` = 4 and now has 5"), "{error}");

    existing_folders(here, &found);
}

/// The same runs, named as folders, compare as they did.
fn existing_folders(here: &Path, found: &Value) {
    let run = |name: &str| format!("cmp/runs/{name}");
    let all: Vec<String> = ["fp32", "e4"]
        .iter()
        .flat_map(|state| (1..=3).map(move |seed| format!("{state}-seed-{seed}")))
        .map(|name| run(&name))
        .collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let again = json(here, &[&["compare"], &names[..], &["--json"]].concat());
    assert_eq!(again["variants"][1]["pairs"], found["variants"][1]["pairs"]);
    assert_eq!(again["varied"], "optimizer.state");
    assert!(here.join("comparison/report.html").is_file());
    let table = data(here, &[&["compare"], &names[..]].concat());
    assert!(table.contains("the baseline") && table.contains(" e4 "), "{table}");

    // One of them twice; none that differs.
    let error = failure(here, &["compare", names[0], names[3], names[0]], 2);
    assert!(error.contains("the same run as"), "{error}");
    let error = failure(here, &["compare", names[0], names[1]], 2);
    assert!(error.contains("differ in nothing but seeds"), "{error}");
}

#[test]
fn numbers_are_the_same_however_they_are_spelled() {
    let folder = folder();
    let here = folder.path();
    let vary = ["compare", "--config", "tiny.toml", "--devices", "cpu", "--seeds", "1,2"];
    let more = ["--tune", "optimizer.weight_decay=1e-1,0", "--output-dir", "cmp", "--json"];
    let found = json(here, &[&vary[..], &["--vary", "optimizer.lr=1e-2,3e-3"], &more].concat());
    let variants = found["variants"].as_array().unwrap();
    let of = |key: &str| variants.iter().map(|v| v[key].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!((&found["baseline"], of("value")), (&"0.01".into(), vec!["0.01", "0.003"]));
    assert!(of("tuned").iter().all(|rate| ["1e-1", "0"].contains(rate)), "{found}");
    assert_eq!(variants[1]["pairs"].as_array().unwrap().len(), 2);

    let all: Vec<String> = fs::read_dir(here.join("cmp/runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with("-seed-2"))
        .map(|name| format!("cmp/runs/{name}"))
        .collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let pair = [&["compare"], &names[..], &["--vary", "optimizer.lr", "--json"]].concat();
    let again = json(here, &[&pair[..], &["--baseline", "3.0e-3"]].concat());
    assert_eq!(again["baseline"], "0.003");
    let twice = [&vary[..], &["--vary", "optimizer.lr=1e-2,0.01"], &more].concat();
    assert!(failure(here, &twice, 2).contains("0.01 is twice there"));
}

#[test]
fn runs_that_do_not_match_are_refused_by_the_key() {
    let folder = folder();
    let here = folder.path();
    let train = |name: &str, more: &[&str]| {
        let args = ["train", "--config", "tiny.toml", "--output-dir", name];
        data(here, &[&args[..], more].concat());
    };
    train("one", &["--set", "optimizer.state=fp32"]);
    train("batch", &["--set", "optimizer.state=e4", "--set", "run.batch=5"]);
    train("text", &["--set", "optimizer.state=e4", "--set", "data.stories_seed=7"]);
    train("state", &["--set", "optimizer.state=e4"]);
    let error = failure(here, &["compare", "one", "batch"], 2);
    assert!(error.contains("`run.batch` is 4 in the one and 5 in the other"), "{error}");
    assert!(error.contains("one and batch cannot be compared"), "{error}");
    let error = failure(here, &["compare", "one", "batch", "--vary", "optimizer.state"], 2);
    assert!(error.contains("`run.batch`"), "{error}");
    // Another validation set is another experiment.
    let error = failure(here, &["compare", "one", "text", "--vary", "optimizer.state"], 2);
    assert!(error.contains("`data.stories_seed`") || error.contains("sha256"), "{error}");
    let error = failure(here, &["compare", "one", "absent"], 1);
    assert!(error.contains("absent"), "{error}");

    // One pair has a difference and no verdict.
    let found = json(here, &["compare", "one", "state", "--json"]);
    assert_eq!(found["variants"][1]["verdict"], "one_pair");
    assert_eq!(found["noise"], Value::Null);

    // Not finished.
    fs::remove_file(here.join("state/summary.json")).unwrap();
    let error = failure(here, &["compare", "one", "state"], 1);
    assert!(error.contains("not finished"), "{error}");
}

#[test]
fn metrics_cut_in_the_middle_of_a_line_lose_that_line_only() {
    let folder = folder();
    let here = folder.path();
    data(here, &["train", "--config", "tiny.toml", "--output-dir", "run"]);
    let metrics = here.join("run/metrics.jsonl");
    let whole = read(&metrics);
    fs::write(&metrics, &whole[..whole.len() - 30]).unwrap();
    fs::remove_file(here.join("run/summary.json")).unwrap();
    let args = ["report", "run", "--output-dir", "pages", "--title", "One & only", "--csv"];
    data(here, &args);
    let page = read(&here.join("pages/report.md"));
    assert!(page.starts_with("# One & only"), "{page}");
    assert!(page.contains("cut in the middle and is left out: run."), "{page}");
    assert!(page.contains("Not finished: run."), "{page}");
    let rows = read(&here.join("pages/metrics.csv"));
    assert_eq!(rows.lines().skip(1).filter(|line| line.contains(",update,")).count(), 20);

    // A whole line that is none of ours is an error with its place.
    let lines: Vec<&str> = whole.lines().collect();
    let damaged = format!("{}\n{}\nnonsense\n{}\n", lines[0], lines[1], lines[2]);
    fs::write(&metrics, damaged).unwrap();
    let error = failure(here, &args, 1);
    assert!(error.contains("metrics.jsonl line 3"), "{error}");
}

#[test]
fn tuning_gives_each_variant_its_own_best_rate() {
    let folder = folder();
    let here = folder.path();
    let tune = ["--tune", "optimizer.lr=1e-5,1e-2,5", "--seeds", "4,5", "--perturbation", "0"];
    let vary = ["compare", "--config", "tiny.toml", "--vary", "optimizer.state=fp32,e4"];
    let args = [&vary[..], &tune[..], &["--output-dir", "cmp", "--json", "--devices", "cpu"]];
    let found = json(here, &args.concat());
    // A rate of 5 destroys the model and one of 1e-5 leaves it as it was.
    for variant in found["variants"].as_array().unwrap() {
        assert_eq!(variant["tuned"], "1e-2");
    }
    assert_eq!(found["tuned"]["key"], "optimizer.lr");
    assert!(found["tuned"]["step_percent"].as_f64().unwrap() > 1.0, "{found}");
    // A step of these rates is larger than anything a format does.
    let verdict = found["variants"][1]["verdict"].as_str().unwrap();
    assert!(["within_noise", "within_step"].contains(&verdict), "{found}");
    // The run that tuned the best rate is that of the first pair: it is not made twice.
    let runs = fs::read_dir(here.join("cmp/runs")).unwrap().count();
    assert_eq!(runs, 6 + 2);
}

#[test]
fn comparisons_that_make_no_sense_are_refused() {
    let folder = folder();
    let here = folder.path();
    for (more, words) in [
        (&["--vary", "optimizer.state=fp32"][..], "nothing to be compared with"),
        (&["--vary", "optimizer.stat=fp32,e4"], "nearest known one is `optimizer.state`"),
        (&["--vary", "optimizer.state=fp32,e5"], "one of fp32"),
        (&["--vary", "optimizer.state=fp32,fp32"], "twice"),
        (&["--vary", "optimizer.state=fp32,e4", "--seeds", "3..1"], "no seed"),
        (&[], "--vary"),
        (&["--vary", "optimizer.state=fp32,e4", "--devices", "tpu"], "cpu, cuda or cuda:N"),
    ] {
        let args = ["compare", "--config", "tiny.toml", "--output-dir", "cmp"];
        let error = failure(here, &[&args[..], more].concat(), 2);
        assert!(error.contains(words), "{more:?}\n{error}");
        // Nothing is left that would be in the way of the next try but an empty study.
        let _ = fs::remove_dir_all(here.join("cmp"));
    }
}

#[test]
fn a_run_that_fails_is_marked_and_the_others_go_on() {
    let folder = folder();
    let here = folder.path();
    let vary = ["compare", "--config", "tiny.toml", "--vary", "run.updates=20,30,1000000"];
    let more = ["--seeds", "1", "--output-dir", "cmp", "--devices", "cpu,cpu"];
    let error = failure(here, &[&vary[..], &more].concat(), 1);
    assert!(error.contains("failed and is tried again"), "{error}");
    assert!(error.contains("1 of 4 runs failed: 1000000-seed-1"), "{error}");
    let state: Value = serde_json::from_str(&read(&here.join("cmp/study.json"))).unwrap();
    let runs = state["runs"].as_array().unwrap();
    let states: Vec<&str> = runs.iter().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["finished", "finished", "failed", "finished"]);
    assert!(runs[2]["message"].as_str().unwrap().contains("shorten the run"), "{state}");
    assert!(read(&here.join("cmp/logs/1000000-seed-1.log")).contains("shorten the run"));
    // The others are compared all the same.
    assert!(read(&here.join("cmp/report.md")).contains("| 30 |"));
}

#[cfg(unix)]
#[test]
fn a_stopped_comparison_goes_on_to_the_same_end() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let folder = folder();
    let here = folder.path();
    let args = |output: &'static str| {
        let more = ["--seeds", "1,2", "--json", "--output-dir", output];
        let long = ["--set", "run.updates=300", "--set", "run.validate_every=100"];
        compare(&[&more[..], &long].concat())
    };
    let mut straight = json(here, &args("straight"));
    let mut said = String::new();
    // Killed outright, it can tell its runs nothing; they find out for themselves.
    for (signal, delay_ms) in [("-TERM", 500), ("-KILL", 300)] {
        let resume: &[&str] = if said.is_empty() { &[] } else { &["--resume"] };
        let child = crate::program::command(here, &[&args("cmp")[..], resume].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        said.push_str(&text(&output.stderr));
        if output.status.code().is_some_and(|code| code != 0) {
            assert_eq!(output.status.code(), Some(75), "{said}");
            assert!(said.contains("--resume"), "{said}");
        }
    }
    // Runs of the killed one may still be writing their checkpoints; they are waited for.
    let mut resumed = json(here, &[&args("cmp")[..], &["--resume"]].concat());
    // Times are not the same twice.
    for found in [&mut straight, &mut resumed] {
        for variant in found["variants"].as_array_mut().unwrap() {
            variant["ms_per_update"] = Value::Null;
        }
    }
    assert_eq!(resumed, straight);
}
