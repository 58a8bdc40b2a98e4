//! What the targets share: a folder in memory for parsers that read files.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a folder can be made")
});

/// Writes `bytes` to a file of this name, in place of an earlier one.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    std::fs::write(&path, bytes).expect("the folder can be written");
    path
}
