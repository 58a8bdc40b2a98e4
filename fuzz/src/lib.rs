//! What the targets share: a folder in memory for parsers that read files, and a tokenizer that is quick to read.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tape::sources::InMemory;
use tape::tokenizer::Tokenizer;
use tempfile::TempDir;

/// A tokenizer of one entry a byte, with one more vocabulary id for the end.
pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut texts = InMemory::new("texts", vec!["some text".to_owned()]);
    let go_on = &mut |_| ControlFlow::Continue(());
    Tokenizer::train(&mut texts, 256, go_on).expect("every byte is an entry")
});

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
