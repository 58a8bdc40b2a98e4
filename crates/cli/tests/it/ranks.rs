//! Several processes that share a run: the same bytes, one voice, and nothing left running.

#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::tempdir;

use crate::program::{call, command, data, text, tiny};

/// Settings of every run here; each rank finds the same data.
const SHARED: [&str; 6] =
    ["--set", "run.batch=1", "--set", "run.accumulation=4", "--set", "run.reduction=fixed"];

fn shared<'a>(more: &[&'a str]) -> Vec<&'a str> {
    tiny(&[&SHARED[..], more].concat())
}

/// Settings of a run that does not end by itself within a test.
const LONG: [&str; 6] =
    ["--set", "run.updates=100000", "--set", "data.order=shuffled", "--set", "data.epochs=1000000"];

fn launched<'a>(devices: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["launch", "--devices", devices, "--"], &shared(more)[..]].concat()
}

/// The hashes of all files of the last checkpoint, as its manifest names them.
fn last_manifest(run: &Path) -> String {
    fs::read_to_string(run.join("checkpoints/update-00000060/manifest.json")).unwrap()
}

fn port() -> String {
    ::ranks::free_port().unwrap().to_string()
}

/// One rank, started by hand.
fn rank(folder: &Path, rank: usize, world_size: usize, port: &str, args: &[&str]) -> Child {
    ready(folder, rank, world_size, port, args).spawn().unwrap()
}

/// As [`rank`], but one that does not wait long for others.
fn hasty_rank(folder: &Path, rank: usize, world_size: usize, port: &str, args: &[&str]) -> Child {
    ready(folder, rank, world_size, port, args).env("PACKED_ADAMW_JOIN_S", "3").spawn().unwrap()
}

fn ready(folder: &Path, rank: usize, world_size: usize, port: &str, args: &[&str]) -> Command {
    let mut command = command(folder, args);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("LOCAL_WORLD_SIZE", world_size.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// How ranks ended: their codes, and what all of them said.
fn ends(ranks: Vec<Child>) -> (Vec<Option<i32>>, String) {
    let outputs: Vec<Output> =
        ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let codes = outputs.iter().map(|output| output.status.code()).collect();
    (codes, outputs.iter().map(|output| text(&output.stderr)).collect())
}

fn errors(words: &str) -> usize {
    words.lines().filter(|line| line.starts_with("error:")).count()
}

#[test]
fn launched_processes_make_the_run_of_one() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    data(here, &shared(&["--output-dir", "one"]));
    for devices in ["2", "4"] {
        let output = call(here, &launched(devices, &["--json", "--output-dir", devices]));
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert!(words.contains(&format!("by {devices} ranks: 60 updates")), "{words}");
        assert_eq!(words.matches("final validation").count(), 1, "only rank 0 speaks\n{words}");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["updates"], 60);
        assert_eq!(last_manifest(&here.join(devices)), last_manifest(&here.join("one")));
    }
    let metrics = fs::read_to_string(here.join("2/metrics.jsonl")).unwrap();
    assert_eq!(metrics.matches("\"rank_ms\":[").count(), 60);
}

#[test]
fn processes_that_divide_the_state_write_what_one_reads() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let short = ["--set", "run.updates=6"];
    data(here, &shared(&[&short[..], &["--output-dir", "one"]].concat()));
    let divided = [&short[..], &["--set", "run.sharded=true"]].concat();
    let plan = call(here, &launched("2", &[&divided[..], &["--dry-run"]].concat()));
    let words = text(&plan.stderr);
    assert!(words.contains("on each of 2 ranks"), "{words}");
    let several = call(here, &launched("2", &[&divided[..], &["--output-dir", "two"]].concat()));
    let words = text(&several.stderr);
    assert_eq!(several.status.code(), Some(0), "{words}");
    assert!(words.contains("by 2 ranks, optimizer state of "), "{words}");
    let file = |run: &str, name: &str| {
        fs::read(here.join(run).join("checkpoints/update-00000006").join(name))
    };
    let parameters = "parameters.safetensors";
    assert!(file("one", parameters).unwrap() == file("two", parameters).unwrap());
    for rank in [1, 2] {
        assert!(file("two", &format!("optimizer-0000{rank}-of-00002.safetensors")).is_ok());
    }
    assert!(file("two", "optimizer.safetensors").is_err());
    let said = data(here, &["generate", "--checkpoint", "two", "--max-tokens", "4"]);
    assert_eq!(said, data(here, &["generate", "--checkpoint", "one", "--max-tokens", "4"]));
}

#[test]
fn a_bench_of_ranks_says_how_it_scales() {
    let folder = tempdir().unwrap();
    let bench = ["--set", "run.accumulation=2", "--updates", "2", "--json"];
    let small = tiny(&bench);
    let command = [&["launch", "--devices", "2", "--", "bench"], &small[..]].concat();
    let output = call(folder.path(), &command);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows[0]["ranks"], 2);
    let scaling = rows[0]["scaling"].as_f64().unwrap();
    assert!(scaling > 0.0 && scaling.is_finite(), "{scaling}");
}

#[test]
fn a_run_that_names_no_folder_has_one() {
    let folder = tempdir().unwrap();
    let output = call(folder.path(), &launched("3", &["--set", "run.updates=4"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let runs = fs::read_dir(folder.path().join("runs")).unwrap();
    assert_eq!(runs.count(), 1);
}

/// Waits until a run has made updates.
fn await_updates(run: &Path) {
    await_updates_after(run, 1);
}

/// Waits until a run has made updates since its start or since it went on, the `starts`th time of these.
fn await_updates_after(run: &Path, starts: usize) {
    let begun = Instant::now();
    let has_update = || {
        let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        let since = metrics.split("\"event\":\"started\"").nth(starts).unwrap_or_default();
        since.contains("\"event\":\"update\"")
    };
    while !has_update() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no update was made");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_stopped_run_goes_on_with_fewer_processes() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let long = [&LONG[..], &["--output-dir", "run"]].concat();
    let child = command(here, &launched("3", &long))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_updates(&here.join("run"));
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{words}");
    assert_eq!(words.matches("--resume").count(), 1, "{words}");
    let again = ["launch", "--devices", "2", "--", "train", "--resume", "--output-dir", "run"];
    let child = command(here, &again).stderr(Stdio::piped()).spawn().unwrap();
    await_updates_after(&here.join("run"), 2);
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
}

#[test]
fn a_killed_process_is_named_and_nothing_is_left_running() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let long = shared(&[&LONG[..], &["--output-dir", "run"]].concat());
    let port = port();
    let mut ranks: Vec<Child> = (0..3).map(|own| rank(here, own, 3, &port, &long)).collect();
    await_updates(&here.join("run"));
    ranks[2].kill().unwrap();
    let begun = Instant::now();
    let (codes, words) = ends(ranks);
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(codes, [Some(1), Some(1), None]);
    assert_eq!(errors(&words), 1, "{words}");
    assert!(words.contains("rank 2 ended during"), "{words}");

    let (codes, words) = {
        let port = self::port();
        let args = shared(&[&LONG[..], &["--output-dir", "other"]].concat());
        let mut ranks: Vec<Child> = (0..3).map(|own| rank(here, own, 3, &port, &args)).collect();
        await_updates(&here.join("other"));
        ranks[0].kill().unwrap();
        ends(ranks)
    };
    assert_eq!(codes, [None, Some(1), Some(1)]);
    assert_eq!(errors(&words), 1, "{words}");
    assert!(words.contains("rank 0 ended during"), "{words}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_launcher_leaves_nothing_running() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let long = [&LONG[..], &["--output-dir", "run"]].concat();
    let mut launcher = command(here, &launched("2", &long))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_updates(&here.join("run"));
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let ranks: Vec<String> =
        fs::read_to_string(children).unwrap().split_whitespace().map(String::from).collect();
    assert_eq!(ranks.len(), 2);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let begun = Instant::now();
    let state = |id: &String| fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let runs = |id: &String| !state(id).is_empty() && !state(id).contains(") Z ");
    while ranks.iter().any(runs) {
        assert!(begun.elapsed() < Duration::from_secs(20), "ranks {ranks:?} go on");
        std::thread::sleep(Duration::from_millis(20));
    }
    // They stopped in good order.
    assert!(here.join("run/checkpoints/latest").exists());
}

#[test]
fn ranks_that_do_not_fit_together_end_with_one_message() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let (one, other) = (shared(&["--output-dir", "run"]), shared(&["--set", "run.seed=9"]));
    let job = [port(), port(), port()];
    let cases = [
        // Another configuration.
        (
            vec![rank(here, 0, 2, &job[0], &one), rank(here, 1, 2, &job[0], &other)],
            2,
            "rank 1 differs from rank 0: `run.seed` is 9 there and 1 on rank 0",
        ),
        // A rank that does not come.
        (
            vec![hasty_rank(here, 0, 2, &job[1], &one)],
            1,
            "of 2 ranks, rank 1 did not come to 127.0.0.1:",
        ),
        // No rank 0.
        (
            vec![hasty_rank(here, 1, 3, &job[2], &one), hasty_rank(here, 2, 3, &job[2], &one)],
            1,
            "rank 1 did not reach rank 0 at 127.0.0.1:",
        ),
        // A configuration that only one rank cannot read.
        (
            {
                let port = port();
                let wrong = ["train", "--config", "nowhere.toml"];
                vec![rank(here, 0, 2, &port, &one), rank(here, 1, 2, &port, &wrong)]
            },
            -1,
            "rank 1 stopped the job: cannot read the configuration nowhere.toml",
        ),
    ];
    for (ranks, code, expected) in cases {
        let (codes, words) = ends(ranks);
        assert!(words.contains(expected), "{words}");
        assert_eq!(errors(&words), 1, "{words}");
        let is_expected =
            |found: Option<i32>| if code < 0 { found != Some(0) } else { found == Some(code) };
        assert!(codes.iter().all(|&found| is_expected(found)), "{codes:?}\n{words}");
    }
    assert!(!here.join("run/checkpoints/latest").exists());
}

#[test]
fn a_port_in_use_is_said() {
    let folder = tempdir().unwrap();
    let port = port();
    let _taken = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let ranks = [0, 1].map(|own| rank(folder.path(), own, 2, &port, &shared(&[])));
    let (codes, words) = ends(ranks.into());
    assert_eq!(codes, [Some(1), Some(1)]);
    assert_eq!(errors(&words), 1, "{words}");
    assert!(words.contains(&format!("rank 0 cannot listen on 127.0.0.1:{port}")), "{words}");
}

#[test]
fn what_a_launcher_forgot_is_said_before_anything_begins() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let output = command(here, &shared(&[])).env("WORLD_SIZE", "2").output().unwrap();
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("environment variable WORLD_SIZE is set without RANK"), "{words}");

    let few = call(here, &launched("2", &["--set", "run.accumulation=1"]));
    let words = text(&few.stderr);
    assert_eq!(few.status.code(), Some(2), "{words}");
    assert_eq!(errors(&words), 1, "{words}");
    assert!(words.contains("`run.accumulation` must be at least 2"), "{words}");

    let many = call(here, &launched("64", &["--device", "cuda", "--set", "run.accumulation=64"]));
    let words = text(&many.stderr);
    assert_eq!(many.status.code(), Some(3), "{words}");
    assert_eq!(errors(&words), 1, "{words}");
    assert!(words.contains("this host has 64 ranks and"), "{words}");
}
