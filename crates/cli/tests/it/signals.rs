//! Signals at any moment end in a complete checkpoint and code 75, and resuming changes no byte.

#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::tempdir;

use crate::program::{call, command, data, text, tiny};

/// The hashes of all files of the last checkpoint, as its manifest names them.
fn last_manifest(run: &Path) -> String {
    fs::read_to_string(run.join("checkpoints/update-00000060/manifest.json")).unwrap()
}

#[test]
fn a_signal_at_any_moment_loses_nothing() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    data(here, &tiny(&["--output-dir", "straight"]));
    let expected = last_manifest(&here.join("straight"));

    let mut stopped = 0;
    for (index, delay_ms) in [15, 40, 80, 120, 180, 260, 360, 480, 650, 900].into_iter().enumerate()
    {
        let signal = if index % 2 == 0 { "-TERM" } else { "-INT" };
        let run = format!("run-{delay_ms}");
        let child = command(here, &tiny(&["--output-dir", &run]))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = text(&output.stderr);
        match output.status.code() {
            // It was done before the signal came.
            Some(0) => continue,
            // On a busy machine the signal came before the program had begun to look for one.
            None => {
                assert!(!here.join(&run).exists(), "{delay_ms} ms");
                continue;
            }
            Some(75) => stopped += 1,
            code => panic!("{delay_ms} ms: {code:?}\n{errors}"),
        }
        assert!(errors.contains("--resume"), "{errors}");
        assert!(here.join(&run).join("checkpoints/latest").exists(), "{delay_ms} ms");
        let resumed = call(here, &["train", "--resume", "--output-dir", &run]);
        assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
        assert_eq!(last_manifest(&here.join(&run)), expected, "{delay_ms} ms");
    }
    assert!(stopped > 0, "no signal came while a run was going on");
}

#[test]
fn killing_a_run_outright_leaves_a_checkpoint_to_resume_from() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let often = ["--set", "run.checkpoint_every=2", "--set", "run.keep_last=2"];
    data(here, &tiny(&[&["--output-dir", "straight"], &often[..]].concat()));
    let expected = last_manifest(&here.join("straight"));
    for delay_ms in [200, 350, 500, 700] {
        let run = format!("run-{delay_ms}");
        let mut child = command(here, &tiny(&[&["--output-dir", &run], &often[..]].concat()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let resumed =
            call(here, &tiny(&[&["--resume", "--output-dir", &run], &often[..]].concat()));
        assert_eq!(resumed.status.code(), Some(0), "{delay_ms} ms\n{}", text(&resumed.stderr));
        assert_eq!(last_manifest(&here.join(&run)), expected, "{delay_ms} ms");
    }
}
