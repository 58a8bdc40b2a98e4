//! `cargo xtask check-docs`: does what README and docs show, and finds what is no longer true.
//!
//! Every call of the program is parsed by the program itself, for `--help` comes after the other flags were read;
//! of a form with parts to fill in, each flag must stand in the help. The quick calls are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::arguments::Arguments;
use crate::documents::{self, Document, RUN, Shown, shown};

/// How `check-docs` is called.
pub const USAGE: &str = "\
cargo xtask check-docs [--program FILE] [--parse-only]
    checks links and commands of README and docs; the quick commands are run, some two minutes in all. FILE is a built
    program to use instead of building one.";

/// Runs the task.
pub fn run(root: &Path, mut arguments: Arguments) -> Result<()> {
    let program = arguments.value("--program")?.map(PathBuf::from);
    let parse_only = arguments.flag("--parse-only");
    arguments.end()?;
    let program = match program {
        Some(program) => {
            fs::canonicalize(&program).with_context(|| program.display().to_string())?
        }
        None => build(root)?,
    };
    let mut faults = documents::faults(root)?;
    let mut parsed = 0;
    for command in documents::read(root)?.iter().flat_map(Document::commands) {
        let fault = match shown(&command.text) {
            Some(Shown::Call(arguments)) => parse(&program, arguments).err(),
            Some(Shown::Form(arguments)) => has_flags(&program, arguments).err(),
            Some(Shown::Elsewhere(_)) | None => continue,
        };
        parsed += 1;
        faults.extend(fault.map(|fault| format!("{}: {fault:#}", command.place)));
    }
    eprintln!("{parsed} calls parsed");
    if !parse_only {
        let folder = std::env::temp_dir().join(format!("packed-adamw-docs-{}", std::process::id()));
        faults.extend(run_all(root, &program, &folder)?);
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    ensure!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--locked", "--package", "cli"]);
    let status = cargo.current_dir(root).status().context("cargo cannot be started")?;
    ensure!(status.success(), "the program cannot be built");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/packed-adamw"))
}

/// Has the program read a call without acting on it.
fn parse(program: &Path, arguments: &str) -> Result<()> {
    let output = Command::new(program).args(words(arguments)?).arg("--help").output()?;
    if !output.status.success() {
        bail!("`{arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Looks for every flag of a form in the help of its command.
fn has_flags(program: &Path, form: &str) -> Result<()> {
    let command = form.split(' ').take_while(|word| !word.starts_with(['-', '[', '.', '<']));
    // What follows the names of commands is a value, in capitals or with a dot.
    let command = command
        .take_while(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
    let output = Command::new(program).args(command).arg("--help").output()?;
    ensure!(
        output.status.success(),
        "`{form}`: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_flag_end = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    let flags = form.split(is_flag_end).filter(|word| word.starts_with("--") && word.len() > 2);
    let known: Vec<&str> = help.split(is_flag_end).collect();
    for flag in flags {
        ensure!(known.contains(&flag), "`{form}`: {flag} is not in the help");
    }
    Ok(())
}

/// Runs the calls of the plan in a folder of their own.
fn run_all(root: &Path, program: &Path, folder: &Path) -> Result<Vec<String>> {
    lay_out(root, folder)?;
    let mut faults = Vec::new();
    for arguments in RUN {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(words(arguments)?).current_dir(folder).stdin(Stdio::null());
        let output = command.output().context("the program cannot be started")?;
        eprintln!("{:6.1} s  packed-adamw {arguments}", begun.elapsed().as_secs_f64());
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            faults.push(format!("`{arguments}`: {}: {}", output.status, said.trim()));
        }
    }
    Ok(faults)
}

/// What a user has at hand: configurations, notes, and documents as JSON lines. The texts are those of this tree.
fn lay_out(root: &Path, folder: &Path) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        fs::write(&path, bytes).with_context(|| path.display().to_string())
    };
    for entry in fs::read_dir(root.join("configs"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        write(&format!("configs/{name}"), &fs::read(&path)?)?;
    }
    let mut lines = String::new();
    for (index, source) in crate::sources::read(root, &["rs", "cu", "cuh"])?.iter().enumerate() {
        write(&format!("notes/{index:04}.txt"), source.text.as_bytes())?;
        lines.push_str(&format!("{}\n", serde_json::json!({ "text": source.text })));
    }
    // Often enough for the tokens that a configuration asks for.
    write("train.jsonl", lines.repeat(12).as_bytes())?;
    let (first, _) = lines.split_once('\n').context("no sources")?;
    write("valid.jsonl", format!("{first}\n").as_bytes())
}

/// The words of a command, as a shell parts them; only double quotes are known.
fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        let is_quoted = index % 2 == 1;
        let special: &[char] =
            if is_quoted { &['$', '`'] } else { &['\'', '$', '`', ';', '&', '|', '>', '<'] };
        ensure!(!part.contains(special), "`{text}`: needs a shell");
        if is_quoted {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    ensure!(text.matches('"').count().is_multiple_of(2), "`{text}`: a quote is not closed");
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn what_a_shell_would_read_is_refused_outside_of_quotes() {
        let parted = words(r#"prepare --document-end "<|endoftext|>" --output-dir data"#).unwrap();
        assert_eq!(parted, ["prepare", "--document-end", "<|endoftext|>", "--output-dir", "data"]);
        for text in ["a | b", "a > b", "a \"$HOME\"", "a 'b'", "a \"b"] {
            assert!(words(text).is_err(), "{text}");
        }
    }
}
