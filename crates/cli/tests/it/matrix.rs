//! `bench train` as a matrix, and a campaign that takes the fastest from it.

use std::fs;

use serde_json::Value;

use crate::program::{call, data, failure, json, text};
use crate::studies::folder;

#[test]
fn a_matrix_measures_every_combination_at_one_effective_batch() {
    let folder = folder();
    let here = folder.path();
    let matrix = ["bench", "train", "--config", "tiny.toml", "--vary", "run.batch=1,2,4"];
    let more = ["--vary", "run.precision=fp32,bf16", "--effective-batch", "8", "--updates", "2"];
    let file = ["--output", "benchmark_results.json", "--json", "--warm-up", "1"];
    let rows = json(here, &[&matrix[..], &more, &file].concat());
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let settings = &row["settings"];
        let number = |key: &str| settings[key].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(number("run.batch") * number("run.accumulation"), 8);
        assert_eq!(row["name"], "tiny");
        if settings["run.precision"] == "bf16" {
            // What the processor does not have is said, and the others are measured.
            assert!(row["error"].as_str().unwrap().contains("fp32 or auto"), "{row}");
        } else {
            assert_eq!((&row["batch"], &row["context"]), (&8.into(), &16.into()));
            assert!(row["tokens_per_s"].as_f64().unwrap() > 0.0);
        }
    }
    let written: Value =
        serde_json::from_slice(&fs::read(here.join("benchmark_results.json")).unwrap()).unwrap();
    assert_eq!(written.as_array().unwrap(), rows);

    // Rows of another configuration stay, those of the same one are replaced.
    fs::copy(here.join("tiny.toml"), here.join("other.toml")).unwrap();
    let other = ["bench", "train", "--config", "other.toml", "--vary", "run.batch=2,4"];
    let more = ["--updates", "1", "--output", "benchmark_results.json"];
    let table = data(here, &[&other[..], &more].concat());
    assert!(table.contains("run.accumulation") && table.contains("fastest"), "{table}");
    let written: Value =
        serde_json::from_slice(&fs::read(here.join("benchmark_results.json")).unwrap()).unwrap();
    assert_eq!(written.as_array().unwrap().len(), 6 + 2);

    let error = failure(here, &[&matrix[..], &["--effective-batch", "6"]].concat(), 2);
    assert!(error.contains("4 sequences does not divide the effective batch of 6"), "{error}");
    let error =
        failure(here, &[&matrix[..3], &["tiny.toml", "--vary", "run.batc=1,2"]].concat(), 2);
    assert!(error.contains("`run.batch`"), "{error}");
}

#[test]
fn a_campaign_takes_the_fastest() {
    let folder = folder();
    let here = folder.path();
    let campaign =
        "[[models]]\nname = \"small\"\nconfig = \"tiny.toml\"\n[grid]\noptimizer.lr = [1e-2]\n";
    fs::write(here.join("one.toml"), campaign).unwrap();
    let row = |batch: u64, accumulation: u64, rate: f64| {
        format!(
            "{{\"name\": \"tiny\", \"tokens_per_s\": {rate}, \"settings\": {{\"run.batch\": \"{batch}\", \
             \"run.accumulation\": \"{accumulation}\"}}}}"
        )
    };
    let failed = "{\"name\": \"tiny\", \"error\": \"x\", \"settings\": {}}";
    let rows = format!("[{}, {}, {failed}]", row(4, 1, 10.0), row(2, 2, 20.0));
    fs::write(here.join("rows.json"), rows).unwrap();
    let args = ["campaign", "one.toml", "--output-dir", "out", "--benchmark", "rows.json"];
    let output = call(here, &args);
    let said = text(&output.stderr);
    assert!(said.contains("fastest, small: run.accumulation=2, run.batch=2"), "{said}");
    let config = fs::read_to_string(here.join("out/runs/small-lr=0.01/config.toml")).unwrap();
    assert!(config.contains("batch = 2") && config.contains("accumulation = 2"), "{config}");
    fs::write(here.join("rows.json"), format!("[{failed}]")).unwrap();
    assert!(failure(here, &args, 2).contains("no measurement in it"));
}
