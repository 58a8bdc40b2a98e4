//! Calling the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A configuration whose runs take a second or two.
pub const TINY: &[&str] = &[
    "--set",
    "model.context=32",
    "--set",
    "model.channels=32",
    "--set",
    "model.layers=1",
    "--set",
    "model.heads=2",
    "--set",
    "data.stories_bytes=60_000",
    "--set",
    "data.stories_vocabulary=400",
    "--set",
    "run.batch=4",
    "--set",
    "run.updates=60",
    "--set",
    "run.validate_every=20",
    "--set",
    "run.checkpoint_every=20",
    "--set",
    "run.sample_tokens=8",
    "--set",
    "schedule.warmup=5",
];

/// The program: the one just built, or the one on the path where tests run away from it.
pub fn path() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_packed-adamw"));
    if built.exists() { built.to_owned() } else { PathBuf::from("packed-adamw") }
}

/// The program with arguments, in a folder.
pub fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(path());
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn call(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().expect("the program starts")
}

/// Runs the program, which must succeed; what it wrote to standard output.
pub fn data(folder: &Path, args: &[&str]) -> String {
    let output = call(folder, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs the program, which must succeed; what it wrote to standard output, as JSON.
pub fn json(folder: &Path, args: &[&str]) -> serde_json::Value {
    let text = data(folder, args);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs the program, which must fail with `code`; what it wrote to standard error.
pub fn failure(folder: &Path, args: &[&str], code: i32) -> String {
    let output = call(folder, args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{errors}");
    errors
}

/// `train` with the tiny configuration and more arguments.
pub fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train"], TINY, more].concat()
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
