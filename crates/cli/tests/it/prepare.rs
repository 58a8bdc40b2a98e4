//! `prepare` from the outside: standard input, mixed inputs, what is left out.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use tempfile::tempdir;

use crate::program::{command, failure, json, text};

/// Prepares what is written to standard input; the report.
fn from_standard_input(folder: &Path, input: &[u8], more: &[&str]) -> serde_json::Value {
    let args = ["prepare", "--input", "-", "--output-dir", "tapes", "--validation-fraction", "0"];
    let args = [&args[..], &["--json", "--overwrite"], more].concat();
    let mut child = command(folder, &args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn standard_input_is_prepared_like_a_file() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let lines = b"{\"text\": \"One day.\"}\n{\"text\": \"Another day.\"}\n";
    fs::write(here.join("a.jsonl"), lines).unwrap();
    let of_file = ["prepare", "--input", "a.jsonl", "--output-dir", "file", "--json"];
    let expected = json(here, &[&of_file[..], &["--validation-fraction", "0"]].concat());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(lines).unwrap();
    for input in [lines.to_vec(), encoder.finish().unwrap()] {
        let report = from_standard_input(here, &input, &["--stdin", "jsonl"]);
        assert_eq!(report["tapes"][0]["sha256"], expected["tapes"][0]["sha256"]);
        assert_eq!(report["tapes"][0]["documents"], 2);
    }
    let stories = b"One day.\n<|endoftext|>\nAnother day.\n";
    let report = from_standard_input(here, stories, &["--document-end", "<|endoftext|>"]);
    assert_eq!(report["tapes"][0]["documents"], 2);
}

#[test]
fn mixed_inputs_with_bad_documents_are_prepared_by_choice() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::create_dir(here.join("notes")).unwrap();
    for i in 0..20 {
        fs::write(here.join(format!("notes/{i:02}.txt")), format!("Sentence {i}.")).unwrap();
    }
    fs::write(here.join("a.jsonl"), "{\"text\": \"One.\"}\n{\"title\": \"no text\"}\n").unwrap();
    fs::write(here.join("b.json"), "{\"text\": \"Two.\"}\n").unwrap();
    let args = ["prepare", "--input", "notes", "*.js*", "--output-dir", "tapes"];
    let args = [&args[..], &["--validation-fraction", "0", "--json"]].concat();
    let errors = failure(here, &args, 1);
    assert!(errors.contains("a.jsonl, line 2"), "{errors}");
    assert!(!here.join("tapes/train.tokens.u32").exists());

    let report = json(here, &[&args[..], &["--on-error", "skip"]].concat());
    assert_eq!(report["tapes"][0]["documents"], 22);
    assert_eq!(report["skipped"], 1);
    assert!(report["skipped_first"][0].as_str().unwrap().contains("a.jsonl, line 2"));
}
