//! Compiled kernels on disk, so that only the first run on a machine compiles.
//!
//! An entry is a file named by the hash of all that its image depends on: source, options,
//! architecture, compiler version. It begins with a line of its own and the hash of the image,
//! so that a damaged one is found and made anew. Entries are written aside and renamed, so that no
//! program ever reads half of one. A cache is never in the way: a folder that cannot be read or
//! written means compiling again.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::compile::hex;

/// The environment variable that names the folder of the cache.
pub const FOLDER_VARIABLE: &str = "PACKED_ADAMW_KERNEL_CACHE";

/// What an entry begins with; its digit grows when the layout changes.
const HEAD: &[u8] = b"packed-adamw kernel 1\n";
/// Bytes of the hash behind it.
const HASH_BYTES: usize = 32;

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The folder that [`FOLDER_VARIABLE`] names, or `packed-adamw/kernels` in the user's cache
    /// folder; none if there is neither.
    #[must_use]
    pub fn of_user() -> Cache {
        let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let users = named("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| named("HOME").map(|home| Path::new(&home).join(".cache")));
        let folder = named(FOLDER_VARIABLE)
            .map(PathBuf::from)
            .or_else(|| users.map(|users| users.join("packed-adamw").join("kernels")));
        Cache { folder }
    }

    /// A folder of the caller's choice.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The image of `key`, if there is a sound entry.
    #[must_use]
    pub fn load(&self, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.file(key)?).ok()?;
        let rest = entry.strip_prefix(HEAD)?;
        let (hash, image) = rest.split_at_checked(HASH_BYTES)?;
        (Sha256::digest(image)[..] == *hash).then(|| image.to_vec())
    }

    /// Keeps an image. What goes wrong is forgotten: the next run compiles again.
    pub fn store(&self, key: &str, image: &[u8]) {
        let Some(file) = self.file(key) else { return };
        let _ = write_aside(&file, &entry_of(image));
    }

    /// Keeps `value` unless there is a sound entry; either way, what the entry holds from now on. Without
    /// a folder that is `value`. Of programs that do this at the same time the first one wins.
    #[must_use]
    pub fn keep_first(&self, key: &str, value: Vec<u8>) -> Vec<u8> {
        if let Some(kept) = self.load(key) {
            return kept;
        }
        let Some(file) = self.file(key) else { return value };
        // A damaged entry is in the way of a new one.
        let _ = fs::remove_file(&file);
        if link_aside(&file, &entry_of(&value)).is_ok() {
            return value;
        }
        self.load(key).unwrap_or(value)
    }

    /// The name of an entry: of a program's key and the version of the compiler.
    #[must_use]
    pub fn key(program_key: &str, compiler_version: &str) -> String {
        hex(&Sha256::digest(format!("{program_key} {compiler_version}")))
    }

    fn file(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.kernel")))
    }
}

/// The bytes of an entry.
fn entry_of(image: &[u8]) -> Vec<u8> {
    let mut entry = HEAD.to_vec();
    entry.extend_from_slice(&Sha256::digest(image));
    entry.extend_from_slice(image);
    entry
}

/// Writes a file beside its name and renames it, making its folder if need be.
pub(crate) fn write_aside(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    finish_aside(file, bytes, |aside| fs::rename(aside, file))
}

/// Writes a file beside its name and links it there, unless there is one.
fn link_aside(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    finish_aside(file, bytes, |aside| {
        fs::hard_link(aside, file)?;
        fs::remove_file(aside)
    })
}

/// Writes a file beside its name, and then does the rest.
fn finish_aside(
    file: &Path,
    bytes: &[u8],
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let aside = file.with_extension(format!("{}-{number}.part", process::id()));
    let written = fs::write(&aside, bytes).and_then(|()| finish(&aside));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}
