//! The whole way: text to tapes, tapes to a model, a model to text.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::tempdir;

use crate::program::{TINY, call, data, failure, json, text, tiny};

/// A folder of texts with enough variety for a tiny tokenizer.
fn texts(folder: &Path) -> PathBuf {
    let path = folder.join("texts");
    fs::create_dir(&path).unwrap();
    let stories = tape::stories::Stories::new(3).take(120).collect::<Vec<_>>();
    for (index, chunk) in stories.chunks(3).enumerate() {
        let ending = if index % 2 == 0 { "txt" } else { "md" };
        fs::write(path.join(format!("{index:02}.{ending}")), chunk.concat()).unwrap();
    }
    path
}

/// Trains a tokenizer on the texts and prepares tapes; the report of `prepare`.
fn prepared(here: &Path) -> Value {
    texts(here);
    let train = ["tokenizer", "train", "--input", "texts", "--vocabulary", "400"];
    data(here, &[&train[..], &["--output", "tok.json"]].concat());
    let prepare =
        ["prepare", "--input", "texts", "--output-dir", "tapes", "--tokenizer", "tok.json"];
    json(here, &[&prepare[..], &["--validation-fraction", "0.2", "--json"]].concat())
}

/// Trains the tiny model on the tapes; its summary.
fn trained(here: &Path) -> Value {
    let tapes = [
        "--set",
        "data.tokenizer=tok.json",
        "--train-tokens",
        "tapes/train.tokens.u32",
        "--validation-tokens",
        "tapes/validation.tokens.u32",
    ];
    json(here, &[&tiny(&tapes)[..], &["--output-dir", "run", "--json"]].concat())
}

#[test]
fn text_to_tapes_to_a_model_to_text() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let report = prepared(here);
    let tapes = report["tapes"].as_array().unwrap();
    assert_eq!(tapes.len(), 2);
    let bytes: u64 = tapes.iter().map(|tape| tape["source_bytes"].as_u64().unwrap()).sum();
    let files = fs::read_dir(here.join("texts")).unwrap();
    let size: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(bytes, size);

    let summary = trained(here);
    assert_eq!(summary["updates"], 60);
    let loss = |value: &Value| value["loss_nats"].as_f64().unwrap();
    let last = summary["validation_loss_nats"].as_f64().unwrap();
    assert!(last < loss(&summary["first_validation"]) - 0.5, "{last}");

    let eval = ["eval", "--checkpoint", "run", "--tokens", "tapes/validation.tokens.u32"];
    let score = json(here, &[&eval[..], &["--batch", "3", "--json"]].concat());
    // Another batch shape sums in another order; f32 activations differ in their last bits.
    assert!((loss(&score) - last).abs() < 1e-5, "{} {last}", loss(&score));

    let generate = ["generate", "--checkpoint", "run", "--prompt", "Once", "--max-tokens", "12"];
    let first = data(here, &generate);
    assert!(first.starts_with("Once") && !first.starts_with("OnceOnce"), "{first}");
    assert_eq!(first, data(here, &generate), "the same seed gives the same text");
    let greedy = ["--temperature", "0", "--seed", "9", "--json"];
    let greedy = json(here, &[&generate[..], &greedy].concat());
    let said = greedy["text"].as_str().unwrap();
    assert!(said.starts_with("Once") && !said.starts_with("OnceOnce"), "{said}");
    let long = "Once upon a time ".repeat(200);
    let error = failure(here, &["generate", "--checkpoint", "run", "--prompt", &long], 2);
    assert!(error.contains("give a shorter prompt"), "{error}");

    assert_eq!(json(here, &["inspect", "run", "--json"])["progress"]["update"], 60);
    let inspect = ["inspect", "tapes/train.tokens.u32", "--tokenizer", "tok.json", "--json"];
    assert_eq!(json(here, &inspect)["tokens"], tapes[0]["tokens"]);
}

#[test]
fn train_without_a_folder_numbers_its_runs_and_resume_takes_the_last() {
    let folder = tempdir().unwrap();
    data(folder.path(), &tiny(&[]));
    let output = call(folder.path(), &tiny(&["--set", "run.updates=20"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let updates = |name: &str| {
        let bytes = fs::read(folder.path().join("runs").join(name).join("summary.json")).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()["updates"].clone()
    };
    assert_eq!((updates("quickstart-1"), updates("quickstart-2")), (60.into(), 20.into()));
    let again = call(folder.path(), &["train", "--resume"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("from update 20"), "{}", text(&again.stderr));
}

#[test]
fn a_dry_run_plans_and_writes_nothing() {
    let folder = tempdir().unwrap();
    let plan = json(folder.path(), &tiny(&["--dry-run", "--json"]));
    assert_eq!((plan["updates"].as_u64(), plan["update_tokens"].as_u64()), (Some(60), Some(128)));
    assert!(plan["estimated_s"].as_f64().unwrap() > 0.0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn smoke_and_benches_report_what_they_measured() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let smoke = json(here, &[&["smoke"], TINY, &["--json"]].concat());
    assert_eq!(smoke["good"], true);
    let sizes = [
        "bench",
        "optimizer",
        "--sizes",
        "1k,3x100",
        "--formats",
        "fp32,e4",
        "--repeats",
        "3",
        "--json",
    ];
    let rows = json(here, &sizes);
    assert_eq!(rows.as_array().unwrap().len(), 4);
    for key in [
        "device",
        "format",
        "size",
        "tensors",
        "parameters",
        "mode",
        "parameter_type",
        "gradient_type",
        "ms_median",
        "ms_min",
        "ms_max",
        "bytes_per_parameter",
        "state_bytes_per_parameter",
        "gb_per_s",
        "copy_gb_per_s",
        "share_of_copy",
    ] {
        assert!(!rows[0][key].is_null(), "{key}");
    }
    let rows = json(here, &[&["bench", "train"], TINY, &["--updates", "2", "--json"]].concat());
    for key in [
        "device",
        "model",
        "precision",
        "state_format",
        "batch",
        "context",
        "ms_per_update",
        "tokens_per_s",
        "model_tflops",
        "share_of_peak",
        "peak_bytes",
        "launches",
        "host_us_per_update",
        "parts",
    ] {
        assert!(!rows[0][key].is_null(), "{key}");
    }
    assert!(data(here, &["doctor"]).contains("GFLOP/s"));
}

#[test]
fn real_text_from_the_shared_corpus_becomes_tapes() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let data_folder = Path::new(&manifest).join("../../../shared/data");
    let source = data_folder.join("lite-valid.jsonl.zst");
    if !source.exists() {
        eprintln!("skipped: {} is not there", source.display());
        return;
    }
    let folder = tempdir().unwrap();
    let args = ["prepare", "--input", source.to_str().unwrap(), "--output-dir", "tapes", "--json"];
    let report = json(folder.path(), &args);
    let bytes: u64 = report["tapes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tape| tape["source_bytes"].as_u64().unwrap())
        .sum();
    // The byte count that SOURCES.md of the corpus states for it.
    assert_eq!(bytes, 2_131_859);
}
