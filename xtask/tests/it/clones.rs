//! Clones of this repository to work on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A clone of the commit that is checked out here.
pub struct Clone {
    _folder: TempDir,
    pub root: PathBuf,
}

impl Clone {
    /// A clone in a folder of this name, made under this umask; none outside of a checkout.
    pub fn new(name: &str, umask: &str) -> Option<Clone> {
        let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
        let here = Path::new(&here).parent().unwrap().to_owned();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(name);
        let script = "umask \"$1\" && git clone --quiet --no-hardlinks \"$2\" \"$3\"";
        let cloned =
            Command::new("sh").args(["-c", script, "sh", umask]).arg(&here).arg(&root).output();
        if !here.join(".git").exists() || !cloned.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no checkout of git here");
            return None;
        }
        Some(Clone { _folder: folder, root })
    }

    /// A task that works on the clone.
    pub fn task(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(args)
            .env("CARGO_MANIFEST_DIR", self.root.join("xtask"))
            .current_dir(&self.root);
        command
    }
}

/// Runs a command, which must succeed; what it wrote to standard output.
pub fn done(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command, which must fail; what it wrote to standard error.
pub fn failed(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success(), "{command:?} succeeded");
    text(&stderr)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
