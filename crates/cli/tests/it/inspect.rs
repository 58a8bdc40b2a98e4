//! `tokenizer`, `inspect-formats` and `inspect` on good and bad paths.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use tempfile::tempdir;

use crate::program::{command, data, failure, json, text};

/// Every state format, and the bits of a parameter's state in it.
const FORMATS: [(&str, f64); 9] = [
    ("fp32", 64.0),
    ("fp16", 32.0),
    ("e4", 32.0),
    ("e4s", 32.0),
    ("block8", 16.25),
    ("block8-original", 16.25),
    ("ustate1q", 6.5),
    ("ustate1q-original", 6.5),
    ("n4l4", 8.5),
];

#[test]
fn encode_and_decode_are_inverse_on_standard_input() {
    let original = "Ä naïve café, 3 × 7 <|endoftext|>\n\ttabs \u{1F600}\n";
    let pipe = |args: &[&str], input: &str| {
        let mut child = command(Path::new("."), args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        text(&child.wait_with_output().unwrap().stdout)
    };
    let ids = pipe(&["tokenizer", "encode"], original);
    assert!(ids.split_whitespace().all(|id| id.parse::<u32>().unwrap() < 12_095), "{ids}");
    assert_eq!(pipe(&["tokenizer", "decode"], &ids), original);
}

#[test]
fn the_bundled_tokenizer_is_what_it_says() {
    let info = json(Path::new("."), &["tokenizer", "info", "--json"]);
    assert_eq!((&info["entries"], &info["vocabulary"]), (&12_095.into(), &12_096.into()));
    assert_eq!(info["end_of_document"], 12_095);
}

#[test]
fn formats_as_json_have_exact_sizes() {
    let formats = json(Path::new("."), &["inspect-formats", "--json"]);
    let bits: Vec<(&str, f64)> = formats
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["format"].as_str().unwrap(), f["bits_per_parameter"].as_f64().unwrap()))
        .collect();
    assert_eq!(bits, FORMATS);
    let errors = failure(Path::new("."), &["inspect-formats", "--format", "e5"], 2);
    assert!(errors.contains("fp32") && errors.contains("e4s"), "{errors}");
    let errors = failure(Path::new("."), &["inspect-formats", "--bias", "41"], 2);
    assert!(errors.contains("41"), "{errors}");
}

#[test]
fn a_path_that_is_nothing_known_says_what_was_expected() {
    let folder = tempdir().unwrap();
    let errors = failure(folder.path(), &["inspect", "nothing"], 1);
    assert!(errors.contains("there is nothing here"), "{errors}");
    std::fs::write(folder.path().join("x.bin"), "x").unwrap();
    let errors = failure(folder.path(), &["inspect", "x.bin"], 1);
    assert!(errors.contains("expected a tape"), "{errors}");
    let errors = failure(folder.path(), &["inspect", "."], 1);
    assert!(errors.contains("manifest.json"), "{errors}");
    std::fs::write(folder.path().join("train.tokens.u32"), "").unwrap();
    let errors = failure(folder.path(), &["inspect", "."], 1);
    assert!(errors.contains("inspect one of them, such as ./train.tokens.u32"), "{errors}");
    std::fs::write(folder.path().join("train.tape-set.json"), "").unwrap();
    let errors = failure(folder.path(), &["inspect", "."], 1);
    assert!(errors.contains("such as ./train.tape-set.json"), "{errors}");
    std::fs::write(folder.path().join("study.json"), "").unwrap();
    let errors = failure(folder.path(), &["inspect", "."], 1);
    assert!(errors.contains("a folder of several runs; `watch` shows it"), "{errors}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command(Path::new("."), &["inspect-formats"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(!data(Path::new("."), &["inspect-formats"]).is_empty());
}

#[test]
fn check_finds_no_differing_word_on_the_processor() {
    let rows = json(Path::new("."), &["check", "--device", "cpu", "--json"]);
    let (rows, passes): (Vec<_>, Vec<_>) =
        rows.as_array().unwrap().iter().partition(|row| row.get("format").is_some());
    let whats: Vec<&str> = passes.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["loss against f64", "logits against f64", "gradients against f64"]);
    for row in passes {
        assert!(row["distance"].as_f64().unwrap() < row["bound"].as_f64().unwrap(), "{row}");
    }
    let formats: Vec<&str> = rows.iter().map(|row| row["format"].as_str().unwrap()).collect();
    let every: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
    assert_eq!(formats, every);
    for row in rows {
        assert!(row["elements"].as_u64().unwrap() > 80_000, "{row}");
        assert_eq!(row["differing"], 0, "{row}");
    }
}

#[test]
fn doctor_names_every_library_and_where_it_was_looked_for() {
    let facts = json(Path::new("."), &["doctor", "--json"]);
    let libraries = facts["libraries"].as_array().unwrap();
    for name in ["CUDA driver", "NVRTC", "cuBLASLt"] {
        let found = libraries.iter().find(|library| library["library"] == name);
        let found = found.unwrap_or_else(|| panic!("{name} in {facts}"));
        assert!(found["path"].is_string() || found["problem"].is_string(), "{found}");
    }
    assert!(facts["processor"]["threads"].as_u64().unwrap() > 0);
}

#[test]
fn a_device_that_is_not_there_is_exit_code_3() {
    for flag in ["--variants", "--quantized=2048"] {
        let error = failure(Path::new("."), &["bench", "optimizer", "--device=cpu", flag], 2);
        assert!(error.contains("name one with --device cuda"), "{error}");
    }
    for args in [["check", "--device", "cuda:99"], ["bench", "optimizer", "--device=cuda:99"]] {
        let errors = failure(Path::new("."), &args, 3);
        assert!(errors.contains("cuda:99") || errors.contains("libcuda"), "{errors}");
    }
    let errors = failure(Path::new("."), &["check", "--device", "tpu"], 2);
    assert!(errors.contains("tpu") && errors.contains("cuda:N"), "{errors}");
}
