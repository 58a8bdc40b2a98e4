//! The list of a tape that is several files: `train.tape-set.json`.
//!
//! The files of a set are tapes of their own, each with its sidecar. Put together in the order of the
//! list they are one tape: a document, and a window, may begin in one and end in the next. The list is
//! written last, so a set is whole where its list is there.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    Element, FORMAT_VERSION, Part, PreparationRecord, SourceRecord, SplitRecord, TapeFiles,
    TokenizerRecord, read_bounded,
};
use crate::Error;
use crate::checksum::Checksum;

/// The ending of the list of a set.
pub const SET_ENDING: &str = ".tape-set.json";

/// As for a sidecar.
const SET_BYTES_MAX: u64 = super::SIDECAR_BYTES_MAX;

/// The list of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapeSet {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// How an id is stored, in all files.
    pub element: Element,
    /// Tokens of all files.
    pub count: u64,
    /// The SHA-256 of the tokens of all files, one after the other: the hash of the one file that
    /// they would be.
    pub sha256: Checksum,
    /// What made the ids.
    pub tokenizer: TokenizerRecord,
    /// Documents that end in any of the files.
    pub documents: u64,
    /// The sum of all byte lengths.
    pub source_bytes: u64,
    /// The split, or null when the whole corpus is this set.
    pub split: Option<SplitRecord>,
    /// How the documents were prepared.
    pub preparation: PreparationRecord,
    /// Tokens of each file but the last, which may have fewer.
    pub shard_tokens: u64,
    /// The files, in order.
    pub shards: Vec<ShardRecord>,
    /// Everything that was read, in the order of reading.
    pub sources: Vec<SourceRecord>,
}

/// One tape of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The stem of its files, such as `train-00000`, without folders.
    pub stem: String,
    /// Its tokens.
    pub count: u64,
    /// The SHA-256 of its file of tokens.
    pub sha256: Checksum,
}

impl TapeSet {
    /// The list that [`prepare`](crate::prepare::prepare) writes for `part` in `folder`.
    pub fn in_folder(folder: &Path, part: Part) -> PathBuf {
        folder.join(format!("{}{SET_ENDING}", part.name()))
    }

    /// The stem of file number `index` of `part`.
    pub fn stem(part: Part, index: usize) -> String {
        format!("{}-{index:05}", part.name())
    }

    /// Reads and checks the list at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::SidecarVersion`] if it is of another
    /// layout, [`Error::Sidecar`] if it is no list of a set or contradicts itself.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::parse(path, &read_bounded(path, SET_BYTES_MAX)?)
    }

    /// Parses a list; `path` is for the messages.
    ///
    /// # Errors
    /// Those of [`TapeSet::load`] but [`Error::Read`].
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        super::check_version(path, text)?;
        let wrong = |problem: String| Error::Sidecar { path: path.to_owned(), problem };
        let set: Self = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        match set.contradiction() {
            Some(problem) => Err(wrong(problem)),
            None => Ok(set),
        }
    }

    /// The first thing in which the list cannot be true, whatever the files hold.
    fn contradiction(&self) -> Option<String> {
        debug_assert_eq!(self.format_version, FORMAT_VERSION, "checked before");
        let sum = self.shards.iter().try_fold(0_u64, |sum, shard| sum.checked_add(shard.count));
        let is_plain = |stem: &str| !stem.is_empty() && !stem.contains(['/', '\\']);
        if self.shards.is_empty() {
            Some("a set without files".to_owned())
        } else if sum != Some(self.count) {
            Some(format!("{} tokens, which is not the sum of its files", self.count))
        } else if let Some(shard) = self.shards.iter().find(|shard| shard.count == 0) {
            Some(format!("an empty file {:?}", shard.stem))
        } else {
            let shard = self.shards.iter().find(|shard| !is_plain(&shard.stem))?;
            Some(format!("a file {:?} outside its folder", shard.stem))
        }
    }

    /// The files of the shards, which lie beside the list.
    pub fn files(&self, list: &Path) -> Vec<TapeFiles> {
        let folder = list.parent().unwrap_or(Path::new(""));
        let files = |shard: &ShardRecord| TapeFiles::with_stem(folder, &shard.stem, self.element);
        self.shards.iter().map(files).collect()
    }

    /// The bytes that go to disk: indented JSON with a final newline.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a list has only plain fields");
        json.push(b'\n');
        json
    }
}
