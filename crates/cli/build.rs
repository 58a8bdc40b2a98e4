//! Tells the program which commit it was built from, where git knows one.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=PACKED_ADAMW_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // What a commit or a checkout writes to; a file that is not there would mean building every time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// What git prints, when it is there, this is a checkout of this very workspace, and it succeeds.
fn git(args: &[&str]) -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    let output = Command::new("git").args(args).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim().to_owned())
}
