//! What shells, manuals and terminals are owed.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use crate::program::{call, command, data, text, tiny};

#[test]
fn every_shell_gets_completions_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = data(Path::new("."), &["completions", shell]);
        for word in ["inspect-formats", "export", "checkpoint", "warm-up"] {
            assert!(script.contains(word), "{shell} knows no {word}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempdir().unwrap();
    data(folder.path(), &["manual", "--output", "man"]);
    let pages: Vec<String> = fs::read_dir(folder.path().join("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for page in ["packed-adamw.1", "packed-adamw-train.1", "packed-adamw-bench-optimizer.1"] {
        assert!(pages.iter().any(|found| found == page), "{page}: {pages:?}");
        let text = fs::read_to_string(folder.path().join("man").join(page)).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{text}");
    }
}

#[test]
fn the_version_names_commit_and_features() {
    let version = data(Path::new("."), &["--version"]);
    let expected = format!("packed-adamw {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&expected) && version.contains("features cuda"), "{version}");
    let doctor = data(Path::new("."), &["doctor"]);
    assert_eq!(doctor.lines().next(), version.lines().next());
}

/// Neither output is a terminal here; what a terminal is told by colours or moving lines must not reach a file.
#[test]
fn nothing_but_text_reaches_a_file() {
    let folder = tempdir().unwrap();
    for args in [vec!["--help"], vec!["train", "--frobnicate"], vec!["inspect-formats"], tiny(&[])]
    {
        for no_color in [false, true] {
            let mut command = command(folder.path(), &args);
            if no_color {
                command.env("NO_COLOR", "1");
            }
            let output = command.output().unwrap();
            let all = [output.stdout, output.stderr].concat();
            assert!(!all.contains(&0x1b) && !all.contains(&b'\r'), "{args:?}\n{}", text(&all));
        }
    }
}

/// On a terminal, which `script` stands for, there are colours, unless NO_COLOR is set.
#[cfg(target_os = "linux")]
#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let folder = tempdir().unwrap();
    let program = command(folder.path(), &[]).get_program().to_string_lossy().into_owned();
    let on_terminal = |no_color: bool| {
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &format!("'{program}' train --frobnicate"), "/dev/null"]);
        script.env("TERM", "xterm").stdin(std::process::Stdio::null());
        if no_color {
            script.env("NO_COLOR", "1")
        } else {
            script.env_remove("NO_COLOR")
        };
        script.output().ok().map(|output| output.stdout)
    };
    let (Some(plain), Some(coloured)) = (on_terminal(true), on_terminal(false)) else {
        eprintln!("skipped: no `script` here");
        return;
    };
    assert!(text(&plain).contains("--frobnicate") && !plain.contains(&0x1b), "{}", text(&plain));
    assert!(coloured.contains(&0x1b), "{}", text(&coloured));
}

#[test]
fn errors_say_what_to_do() {
    let folder = tempdir().unwrap();
    for (args, hint) in [
        (&["train", "--config", "absent.toml"][..], "absent.toml"),
        (
            &["generate", "--checkpoint", "absent"],
            "a checkpoint is a directory with a manifest.json",
        ),
        (&["train", "--set", "run.batc=2"], "nearest known one is `run.batch`"),
        (&["import", "--input", "absent", "--output", "out"], "config.json"),
    ] {
        let output = call(folder.path(), args);
        assert_ne!(output.status.code(), Some(0), "{args:?}");
        assert!(text(&output.stderr).contains(hint), "{args:?}\n{}", text(&output.stderr));
    }
}
