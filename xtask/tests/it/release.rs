//! Archives of two clones, and what verifying them finds.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::clones::{Clone, done, failed};

const WITHOUT_KERNELS: [&str; 5] = ["release", "--kernels", "none", "--output", "out"];

/// The hash that a release printed, and the archive's path.
fn printed(out: &str) -> (&str, &str) {
    out.trim().split_once("  ").expect("as sha256sum prints it")
}

/// The page beside an archive.
fn page(clone: &Clone, zip: &str, ending: &str) -> String {
    fs::read_to_string(clone.root.join(zip).with_extension(ending)).unwrap()
}

/// Makes a program that writes kernels like `packed-adamw kernels` does, without any.
fn stand_in(folder: &Path, script: &str) -> String {
    let path = folder.join("program.sh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    done({
        let mut chmod = Command::new("chmod");
        chmod.arg("+x").arg(&path);
        chmod
    });
    path.to_string_lossy().into_owned()
}

#[test]
fn two_clones_give_the_same_bytes() {
    let Some(one) = Clone::new("one", "022") else { return };
    let Some(two) = Clone::new("another folder é", "077") else { return };
    let mut touch = Command::new("sh");
    touch.args(["-c", "find . -path ./.git -prune -o -type f -exec touch -d 2001-02-03 {} +"]);
    touch.current_dir(&two.root);
    done(touch);
    let first = done(one.task(&WITHOUT_KERNELS));
    let mut second = two.task(&WITHOUT_KERNELS);
    second.env("LC_ALL", "de_DE.UTF-8").env("LANG", "tr_TR.UTF-8").env("TZ", "Asia/Kathmandu");
    let second = done(second);
    assert_eq!(printed(&first).0, printed(&second).0);
    let zip = printed(&first).1;
    let page = |ending: &str| {
        let text = page(&one, zip, ending);
        assert_eq!(text, page(&two, zip, ending));
        text
    };
    for text in [page("md"), page("html")] {
        for expected in
            [printed(&first).0, "11,637,760", "reference_data_quantum", "deliberately not"]
        {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("src=") && !text.contains("href="), "a page that loads something");
    }
    done(one.task(&["verify", zip, "--sha256", printed(&second).0, "--commit", "HEAD"]));
    let errors = failed(one.task(&["verify", zip, "--sha256", &"0".repeat(64)]));
    assert!(errors.contains("SHA-256"), "{errors}");
}

#[test]
fn a_dirty_tree_is_refused_unless_told() {
    let Some(clone) = Clone::new("clone", "022") else { return };
    let before = done(clone.task(&WITHOUT_KERNELS));
    fs::remove_dir_all(clone.root.join("out")).unwrap();
    fs::write(clone.root.join("forgotten.txt"), "x").unwrap();
    let errors = failed(clone.task(&WITHOUT_KERNELS));
    assert!(errors.contains("forgotten.txt"), "{errors}");
    fs::remove_file(clone.root.join("forgotten.txt")).unwrap();
    fs::write(clone.root.join("LICENSE"), "changed\n").unwrap();
    let errors = failed(clone.task(&WITHOUT_KERNELS));
    assert!(errors.contains("LICENSE"), "{errors}");
    let changed = done(clone.task(&[&WITHOUT_KERNELS[..], &["--allow-dirty"]].concat()));
    assert_ne!(printed(&before).0, printed(&changed).0);
    let errors = failed(clone.task(&["verify", printed(&changed).1, "--commit", "HEAD"]));
    assert!(errors.contains("LICENSE: changed"), "{errors}");
    assert!(page(&clone, printed(&changed).1, "md").contains("in no commit"));
}

#[test]
fn prebuilt_kernels_are_included_and_named_as_such() {
    let Some(clone) = Clone::new("clone", "022") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let program = stand_in(
        scratch.path(),
        "mkdir -p \"$4\" && printf '.version 9.0\\n' > \"$4/0123.ptx\"\n\
         echo '{\"compiler\": \"nvrtc 13.0\", \"architecture\": \"compute_80\"}'",
    );
    let out = done(clone.task(&[
        "release",
        "--program",
        &program,
        "--version",
        "1.2.3-rc.1",
        "--output",
        "out",
    ]));
    let (_, zip) = printed(&out);
    assert!(zip.ends_with("packed-adamw-1.2.3-rc.1-nvrtc-13.0.zip"), "{zip}");
    let page = page(&clone, zip, "md");
    assert!(page.contains("1 prebuilt kernels: PTX for compute_80"), "{page}");
    done(clone.task(&["verify", zip, "--commit", "HEAD"]));
    let missing = stand_in(scratch.path(), "exit 3");
    let require =
        ["release", "--program", &missing, "--allow-dirty", "--output", "out", "--kernels"];
    assert!(failed(clone.task(&[&require[..], &["require"]].concat())).contains("no NVRTC"));
    assert!(printed(&done(clone.task(&[&require[..], &["auto"]].concat()))).1.ends_with("0.zip"));
    let broken = stand_in(scratch.path(), "echo went wrong >&2; exit 1");
    let errors = failed(clone.task(&["release", "--program", &broken, "--allow-dirty"]));
    assert!(errors.contains("went wrong"), "{errors}");
}

#[test]
fn mistakes_in_the_call_are_named() {
    let Some(clone) = Clone::new("clone", "022") else { return };
    for (args, expected) in [
        (&["frobnicate"][..], "expected a task"),
        (&["release", "--version", "../1"], "a version begins with a digit"),
        (&["release", "--kernels", "some"], "auto, none or require"),
        (&["release", "--frobnicate"], "--frobnicate"),
        (&["verify"], "the ZIP"),
        (&["verify", "absent.zip"], "absent.zip"),
        (&["verify", "README.md"], "no ZIP"),
        (&["tidy", "x"], "too many words"),
    ] {
        let errors = failed(clone.task(args));
        assert!(errors.contains(expected), "{args:?}\n{errors}");
    }
}
