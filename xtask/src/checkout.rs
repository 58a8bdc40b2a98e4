//! The files of a commit, or of the work tree, as git has them: the same bytes for any umask, time, locale, line
//! ending of the platform and folder.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::archive::{File, Files};

/// A state of the tree.
#[derive(Debug)]
pub struct Checkout {
    /// The commit, as 40 or more hexadecimal digits.
    pub commit: String,
    /// Lines that name what differs from the commit or is not tracked, as `git status` has them.
    pub changes: Vec<String>,
    /// The tracked files, changes included.
    pub files: Files,
}

/// The tracked files of the work tree below `root`.
pub fn of_work_tree(root: &Path) -> Result<Checkout> {
    let commit = line(root, ["rev-parse", "HEAD"])?;
    let changes = text(git(root, ["status", "--porcelain=v1"])?)?;
    let changes: Vec<String> = changes.lines().map(str::to_owned).collect();
    let tree = if changes.is_empty() { commit.clone() } else { tree_of_changes(root)? };
    Ok(Checkout { files: files(root, &tree)?, commit, changes })
}

/// The files of a commit, by any name that git knows.
pub fn of_commit(root: &Path, name: &str) -> Result<Checkout> {
    ensure!(!name.starts_with('-'), "{name}: no commit");
    let commit = line(root, ["rev-parse", "--verify", &format!("{name}^{{commit}}")])?;
    Ok(Checkout { files: files(root, &commit)?, commit, changes: Vec::new() })
}

/// A tree of the tracked files as they are now. An index of its own leaves the user's as it is.
fn tree_of_changes(root: &Path) -> Result<String> {
    let folder = line(root, ["rev-parse", "--absolute-git-dir"])?;
    let index = Path::new(&folder).join(format!("release-index-{}", std::process::id()));
    let with_index = |args: &[&str]| {
        let mut command = command(root);
        command.args(args).env("GIT_INDEX_FILE", &index);
        output(command)
    };
    let tree = with_index(&["read-tree", "HEAD"])
        .and_then(|_| with_index(&["add", "--update", "--", "."]))
        .and_then(|_| with_index(&["write-tree"]));
    // Absent where already the first step failed.
    let _ = std::fs::remove_file(&index);
    Ok(text(tree?)?.trim().to_owned())
}

fn files(root: &Path, tree: &str) -> Result<Files> {
    let list = git(root, ["ls-tree", "-r", "-z", "--full-tree", tree])?;
    let list = text(list).context("a path that is not UTF-8")?;
    let mut entries = Vec::new();
    for line in list.split_terminator('\0') {
        let (kind, path) = line.split_once('\t').context("a line of ls-tree has a tab")?;
        let [mode, _, id] = kind.split(' ').collect::<Vec<_>>()[..] else {
            bail!("{kind}: expected mode, kind and id");
        };
        match mode {
            "100644" | "100755" => entries.push((path, mode == "100755", id)),
            "120000" => bail!("{path}: a symbolic link; a release holds files only"),
            _ => bail!("{path}: mode {mode}; a release holds files only"),
        }
    }
    let contents = contents(root, entries.iter().map(|&(_, _, id)| id))?;
    let named = entries.iter().zip(contents);
    Ok(named
        .map(|(&(path, executable, _), bytes)| (path.to_owned(), File { executable, bytes }))
        .collect())
}

/// The contents of objects, asked of one git process.
fn contents<'a>(root: &Path, ids: impl Iterator<Item = &'a str>) -> Result<Vec<Vec<u8>>> {
    let asked: String = ids.map(|id| format!("{id}\n")).collect();
    let mut child = command(root)
        .args(["cat-file", "--batch"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("git cannot be started")?;
    let mut input = child.stdin.take().expect("it was asked for");
    // Both pipes fill up, so one thread asks while this one listens.
    let count = asked.lines().count();
    let asking = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let answer = child.wait_with_output()?;
    asking.join().expect("writing does not panic").context("git stopped listening")?;
    ensure!(answer.status.success(), "git cat-file failed");
    let mut rest = &answer.stdout[..];
    let mut contents = Vec::new();
    for _ in 0..count {
        let head_end = rest.iter().position(|&byte| byte == b'\n').context("an answer is cut")?;
        let head = std::str::from_utf8(&rest[..head_end])?;
        let size: usize = head.rsplit(' ').next().unwrap_or("").parse().context(head.to_owned())?;
        let body = rest.get(head_end + 1..head_end + 1 + size).context("an answer is cut")?;
        contents.push(body.to_vec());
        rest = rest.get(head_end + 2 + size..).context("an answer is cut")?;
    }
    Ok(contents)
}

/// Git in `root`, deaf to the user's language and to variables that point elsewhere.
fn command(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).env("LC_ALL", "C");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    command
}

fn git<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(root: &Path, args: I) -> Result<Vec<u8>> {
    let mut command = command(root);
    command.args(args);
    output(command)
}

fn output(mut command: Command) -> Result<Vec<u8>> {
    let output = command.output().context("git cannot be started")?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

fn line<const N: usize>(root: &Path, args: [&str; N]) -> Result<String> {
    Ok(text(git(root, args)?)?.trim().to_owned())
}

fn text(bytes: Vec<u8>) -> Result<String> {
    Ok(String::from_utf8(bytes)?)
}
