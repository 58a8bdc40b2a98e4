//! Exit codes and messages for what goes wrong.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use crate::program::{call, data, failure, text, tiny};

#[test]
fn mistakes_of_the_user_end_with_code_2() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("mine.toml"), "[run]\nupdates = 3\nbatc = 2\n").unwrap();
    for (args, expected) in [
        (
            &["train", "--config", "mine.toml"][..],
            "mine.toml line 3: unknown key `run.batc`; the nearest known one is `run.batch`",
        ),
        (&["train", "--config", "absent.toml"], "cannot read the configuration absent.toml"),
        (&["train", "--set", "model.heads=3"], "cannot be divided among 3 heads"),
        (&["train", "--set", "run.updates"], "expected KEY=VALUE"),
        (&["train", "--frobnicate"], "unexpected argument"),
        (&["inspect-formats", "--format", "e9"], "e9"),
    ] {
        let errors = failure(here, args, 2);
        assert!(errors.contains(expected), "{args:?}\n{errors}");
    }
    assert!(!here.join("runs/quickstart-1/metrics.jsonl").exists());
}

#[test]
fn a_missing_device_ends_with_code_3() {
    let folder = tempdir().unwrap();
    let errors = failure(folder.path(), &["train", "--device", "cuda:7"], 3);
    assert!(errors.contains("cuda:7"), "{errors}");
}

#[test]
fn texts_that_cannot_be_prepared_are_named() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("latin.txt"), b"caf\xe9").unwrap();
    fs::write(here.join("empty.txt"), "").unwrap();
    fs::write(here.join("broken.jsonl"), "{\"text\": \"a\"}\n{\"text\": 3}\n").unwrap();
    fs::write(here.join("other.pdf"), "x").unwrap();
    fs::create_dir(here.join("nothing")).unwrap();
    for (input, expected) in [
        ("latin.txt", "not UTF-8 at byte 3"),
        ("empty.txt", "empty.txt is empty"),
        ("broken.jsonl", "line 2"),
        ("other.pdf", "no known kind"),
        ("nothing", "holds no text"),
        ("absent", "absent"),
    ] {
        let errors = failure(here, &["prepare", "--input", input, "--output-dir", "out"], 1);
        assert!(errors.contains(expected), "{input}\n{errors}");
        assert!(errors.matches("No such file").count() <= 1, "told twice: {errors}");
        let left = fs::read_dir(here.join("out")).map_or(0, |entries| {
            entries
                .filter(|e| !e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
                .count()
        });
        assert_eq!(left, 0, "{input}");
    }
}

#[test]
fn a_run_folder_that_is_taken_is_left_alone() {
    let folder = tempdir().unwrap();
    data(folder.path(), &tiny(&["--output-dir", "run", "--set", "run.updates=20"]));
    let before = fs::read(folder.path().join("run/summary.json")).unwrap();
    let errors = failure(folder.path(), &tiny(&["--output-dir", "run"]), 2);
    assert!(errors.contains("--resume"), "{errors}");
    assert_eq!(fs::read(folder.path().join("run/summary.json")).unwrap(), before);
}

/// A limit on file sizes stands in for a full disk: the write in the middle of a checkpoint fails.
#[cfg(unix)]
#[test]
fn a_full_disk_in_a_checkpoint_leaves_the_earlier_ones_whole() {
    use crate::program::command;
    let folder = tempdir().unwrap();
    let here = folder.path();
    let args = tiny(&["--output-dir", "run"]);
    data(here, &[&args[..], &["--set", "run.updates=20"]].concat());
    // The same run again, where parameters fit under the limit of the file size and the tapes do not grow.
    let size = fs::metadata(here.join("run/checkpoints/update-00000020/parameters.safetensors"))
        .unwrap()
        .len();
    let limit_kib = size / 1024 / 2;
    let program = command(here, &[]).get_program().to_string_lossy().into_owned();
    let quoted: Vec<String> =
        args.iter().map(|arg| arg.replace("=run", "=full")).map(|arg| format!("'{arg}'")).collect();
    let script = format!(
        "trap '' XFSZ; ulimit -f {limit_kib}; exec '{program}' {}",
        quoted.join(" ").replace("'run'", "'full'")
    );
    // Tapes of the second run are copied from the first, so that only checkpoints meet the limit.
    copy_folder(&here.join("run/data"), &here.join("full/data"));
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(here)
        .output()
        .expect("bash starts");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("parameters.safetensors"), "{errors}");
    let left: Vec<_> = fs::read_dir(here.join("full/checkpoints")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // With room again, the run starts over in the same folder and ends.
    let resumed = call(here, &tiny(&["--output-dir", "full", "--resume"]));
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_files_of_a_run() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    data(here, &tiny(&["--output-dir", "run", "--set", "run.updates=2"]));
    let commands: [(&str, &[&str]); 5] = [
        ("run/config.toml", &["train", "--resume", "--output-dir", "run"]),
        ("run/metrics.jsonl", &["report", "run", "--output-dir", "pages"]),
        ("run/summary.json", &["report", "run", "--output-dir", "pages"]),
        ("run/checkpoints/latest", &["train", "--resume", "--output-dir", "run"]),
        ("run/data/train.tokens.u32", &["inspect", "run/data/train.tokens.u32"]),
    ];
    for (name, args) in commands {
        let (path, aside) = (here.join(name), here.join("aside"));
        fs::rename(&path, &aside).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // One that waited for the pipe would be ended with another code.
        let mut bounded = std::process::Command::new("timeout");
        bounded.arg("60").arg(crate::program::path()).args(args).current_dir(here);
        let output = bounded.output().expect("timeout starts");
        let errors = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{name}: {errors}");
        assert!(errors.contains("found a device or a pipe"), "{name}: {errors}");
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    // Settings may come out of a pipe, but not without end.
    let errors = failure(here, &["train", "--config", "/dev/zero"], 2);
    assert!(errors.contains("expected text of at most"), "{errors}");
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}
