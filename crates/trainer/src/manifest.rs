//! `manifest.json`: what a checkpoint is, where the run stood, and the hash of every file.
//!
//! The manifest holds no clock, path or host: two runs that did the same have the same manifest, byte for
//! byte. Its own last field is the SHA-256 of the rest, so a flipped bit anywhere is found.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use model::Dimensions;
use serde::{Deserialize, Serialize};
use tape::aside::write_file;
use tape::checksum::Checksum;

use crate::error::Error;
use crate::read;

/// The version of the checkpoint format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// The name of the manifest in a checkpoint directory.
pub const MANIFEST: &str = "manifest.json";

/// What a checkpoint is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format.
    pub format_version: u32,
    /// The shape of the network.
    pub model: Shape,
    /// Where the run stood.
    pub progress: Progress,
    /// What a run must share to go on from here: settings that decide the bits, and hashes of its data.
    pub identity: BTreeMap<String, String>,
    /// What the optimizer says of its state besides its tensors.
    pub optimizer: BTreeMap<String, String>,
    /// SHA-256 and size of every other file, by name.
    pub files: BTreeMap<String, FileRecord>,
    /// SHA-256 of this manifest with this field empty.
    pub checksum: String,
}

/// The shape of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// V.
    pub vocabulary: usize,
    /// T.
    pub context: usize,
    /// C.
    pub channels: usize,
    /// L.
    pub layers: usize,
    /// H.
    pub heads: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vocabulary, context, channels, layers, heads } = self;
        write!(f, "V {vocabulary} T {context} C {channels} L {layers} H {heads}")
    }
}

impl From<model::Config> for Shape {
    fn from(config: model::Config) -> Self {
        Self {
            vocabulary: config.vocabulary(),
            context: config.context(),
            channels: config.channels(),
            layers: config.layers(),
            heads: config.heads(),
        }
    }
}

impl Shape {
    /// The network of this shape.
    ///
    /// # Errors
    ///
    /// A shape that no network has.
    pub fn network(self) -> Result<model::Config, Error> {
        let Self { vocabulary, context, channels, layers, heads } = self;
        Ok(model::Config::new(Dimensions { vocabulary, context, channels, layers, heads })?)
    }
}

/// Where a run stands between two updates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Updates done.
    pub update: u64,
    /// Training tokens read, which is the position in the tape.
    pub tokens: u64,
    /// Source bytes of the target tokens read, as far as known.
    pub source_bytes: u64,
    /// Elements that were not finite, all updates together.
    pub nonfinite: u64,
    /// First moments clamped, all updates together.
    pub saturated_m: u64,
    /// RMS values clamped, all updates together.
    pub saturated_r: u64,
    /// Mean training loss of the last update that had a finite one, in nats a token.
    pub train_loss_nats: f64,
    /// The last validation.
    pub validated: Option<Score>,
    /// The first validation.
    pub first: Option<Score>,
    /// The validation with the lowest loss.
    pub best: Option<Score>,
}

/// The outcome of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Updates done before it.
    pub update: u64,
    /// Mean next-token loss, in nats a token.
    pub loss_nats: f64,
    /// Bits per source byte, where byte lengths are known.
    pub bpb: Option<f64>,
}

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its SHA-256.
    pub sha256: Checksum,
    /// Size.
    pub bytes: u64,
}

impl Manifest {
    /// Writes the manifest into a checkpoint directory, with its checksum.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn write(&mut self, directory: &Path) -> Result<(), Error> {
        self.checksum = self.computed_checksum();
        Ok(write_file(&directory.join(MANIFEST), self.text().as_bytes())?)
    }

    /// Reads and checks the manifest of a checkpoint directory.
    ///
    /// # Errors
    ///
    /// A directory without one, text that is no manifest, another format version, a wrong checksum.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let file = directory.join(MANIFEST);
        if !file.is_file() {
            let hint = "a checkpoint is a directory with a manifest.json";
            return Err(Error::NoCheckpoint { folder: directory.to_owned(), hint });
        }
        let text = read::own_text(&file).map_err(Error::io("read", &file))?;
        let damaged = |expected: &str, found: String| Error::CheckpointDamaged {
            file: file.clone(),
            expected: expected.to_owned(),
            found,
        };
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| damaged("a manifest", error.to_string()))?;
        let version = &value["format_version"];
        if version.as_u64() != Some(u64::from(FORMAT_VERSION)) {
            return Err(Error::CheckpointMismatch {
                checkpoint: directory.to_owned(),
                key: "format_version".into(),
                expected: FORMAT_VERSION.to_string(),
                found: version.to_string(),
            });
        }
        let manifest: Self = serde_json::from_str(&text)
            .map_err(|error| damaged("a manifest", error.to_string()))?;
        let checksum = manifest.computed_checksum();
        if manifest.checksum != checksum {
            return Err(damaged(&format!("checksum {}", manifest.checksum), checksum));
        }
        Ok(manifest)
    }

    fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        text.push('\n');
        text
    }

    fn computed_checksum(&self) -> String {
        let bare = Self { checksum: String::new(), ..self.clone() };
        Checksum::of(bare.text().as_bytes()).to_string()
    }
}
