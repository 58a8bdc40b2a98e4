//! Checkpoints: written aside, made durable, renamed, verified when read.
//!
//! A checkpoint is a directory `checkpoints/update-00000512/` that holds
//!
//! * `parameters.safetensors`: every parameter by its slot name, f32;
//! * `optimizer.safetensors`: every section of the optimizer's state, in its stored form; where ranks divide it, a file
//!   `optimizer-00001-of-00004.safetensors` of each, with its part, which [`divided`] writes;
//! * `tokenizer.json`, so that a checkpoint alone can read and write text;
//! * `manifest.json`: see `manifest.rs`.
//!
//! It is written under a name that begins with a dot, every file and the directory are flushed to the
//! device, and then it is renamed. The file `latest` beside it is replaced last, so it always names a
//! complete checkpoint; older ones are removed only after that. `best` names the checkpoint with the lowest
//! validation loss, if that is kept.

mod divided;
mod files;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model::Layout;
use optimizer::SavedState;
use safetensors::tensor::Dtype;
use tape::aside::{sync_folder, write_file};

use crate::error::Error;
use crate::manifest::Manifest;
use crate::read;
use crate::settings::is_same_value;

pub(crate) use files::write_tensors;
use files::{arrays_of, dtype, parse, read_verified, record};

const PARAMETERS: &str = "parameters.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const LATEST: &str = "latest";
const BEST: &str = "best";
const PARTIAL: &str = ".partial-";

/// What is to be written.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The manifest; hashes are filled in while writing.
    pub manifest: Manifest,
    /// Where each parameter lies in `parameters`.
    pub layout: &'a Layout,
    /// All parameters.
    pub parameters: &'a [f32],
    /// The optimizer's state.
    pub optimizer: &'a SavedState<'a>,
    /// The bytes of the tokenizer file.
    pub tokenizer: &'a [u8],
}

/// What was read back.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory that it came from.
    pub directory: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    parameters: Vec<u8>,
    /// The files of the optimizer's state, by name.
    optimizer: Vec<(String, Vec<u8>)>,
    /// The bytes of the tokenizer file.
    pub tokenizer: Vec<u8>,
}

/// Which checkpoints survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// How many of the latest, at least one.
    pub last: usize,
    /// Whether the best one too.
    pub best: bool,
}

/// The folder of a run's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// Opens the folder, creating it if need be, and removes what an interrupted write left there.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
            let path = entry.map_err(Error::io("list", folder))?.path();
            if name_of(&path).starts_with(PARTIAL) {
                fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Those of another rank: nothing is read or written here.
    #[must_use]
    pub fn elsewhere() -> Self {
        Self { folder: PathBuf::new() }
    }

    /// Writes a checkpoint and makes it the latest, then removes those that `keep` lets go.
    ///
    /// # Errors
    ///
    /// What the file system refuses, a full disk included; every earlier checkpoint is then as it was and the
    /// partial one is removed.
    pub fn write(&self, snapshot: Snapshot<'_>, keep: Keep) -> Result<PathBuf, Error> {
        let (update, best) = (snapshot.manifest.progress.update, snapshot.manifest.progress.best);
        let path = self.path_of(update);
        if !self.write_again(&snapshot.manifest)? {
            self.write_complete(update, |partial| write_files(snapshot, partial))?;
        }
        self.make_latest(&path, best.map(|best| directory_name(best.update)), keep)?;
        Ok(path)
    }

    fn path_of(&self, update: u64) -> PathBuf {
        self.folder.join(directory_name(update))
    }

    /// Where the checkpoint is there already, its manifest is written anew: a run is exact, so the tensors are the same, and
    /// only what was validated since may be new. Says whether that was so.
    fn write_again(&self, manifest: &Manifest) -> Result<bool, Error> {
        let path = self.path_of(manifest.progress.update);
        let Ok(Checkpoint { manifest: Manifest { files, optimizer, .. }, .. }) =
            Checkpoint::read(&path)
        else {
            return Ok(false);
        };
        Manifest { files, optimizer, ..manifest.clone() }.write(&path)?;
        Ok(true)
    }

    fn make_latest(&self, path: &Path, best: Option<String>, keep: Keep) -> Result<(), Error> {
        let name = name_of(path);
        write_file(&self.folder.join(LATEST), name.as_bytes())?;
        if let Some(best) = best.filter(|best| keep.best && *best == name) {
            write_file(&self.folder.join(BEST), best.as_bytes())?;
        }
        self.prune(keep)
    }

    /// Has `fill` write all files of a checkpoint, and gives it its name when they are durable.
    fn write_complete(
        &self,
        update: u64,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let path = self.path_of(update);
        let partial = self.folder.join(format!("{PARTIAL}{}", name_of(&path)));
        let complete = || {
            fs::create_dir(&partial).map_err(Error::io("create", &partial))?;
            fill(&partial)?;
            sync_folder(&partial)?;
            if path.exists() {
                fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
            }
            fs::rename(&partial, &path).map_err(Error::io("rename", &partial))?;
            Ok(sync_folder(&self.folder)?)
        };
        complete().inspect_err(|_: &Error| {
            // The error at hand matters more than one of cleaning up.
            let _ = fs::remove_dir_all(&partial);
        })
    }

    /// Reads the latest checkpoint, or none where nothing was written yet. If the one that `latest` names is gone, or
    /// `latest` itself, it is the newest that is there: each has its name since it is complete.
    ///
    /// # Errors
    ///
    /// A damaged checkpoint.
    pub fn latest(&self) -> Result<Option<Checkpoint>, Error> {
        let newest = || Ok(self.list()?.pop());
        let latest = self.named(LATEST)?.map_or_else(newest, |path| Ok::<_, Error>(Some(path)))?;
        latest.map(|path| Checkpoint::read(&path)).transpose()
    }

    /// Reads the last checkpoint of fewer than `update` updates, or none where none is kept.
    ///
    /// # Errors
    ///
    /// A damaged checkpoint.
    pub fn before(&self, update: u64) -> Result<Option<Checkpoint>, Error> {
        let name = directory_name(update);
        let older = |path: &PathBuf| name_of(path) < name.as_str();
        let last = self.list()?.into_iter().rfind(older);
        last.map(|path| Checkpoint::read(&path)).transpose()
    }

    /// The checkpoint that a pointer names, if both are there.
    fn named(&self, pointer: &str) -> Result<Option<PathBuf>, Error> {
        let file = self.folder.join(pointer);
        let name = match read::bytes(&file) {
            Ok(name) => name,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &file)(error)),
        };
        let is_named = |path: &PathBuf| name_of(path).as_bytes() == name.trim_ascii();
        Ok(self.list()?.into_iter().find(is_named))
    }

    /// Directories of all checkpoints, oldest first.
    fn list(&self) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(Error::io("list", &self.folder))? {
            let path = entry.map_err(Error::io("list", &self.folder))?.path();
            if path.is_dir() && name_of(&path).starts_with("update-") {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    fn prune(&self, keep: Keep) -> Result<(), Error> {
        let best = if keep.best { self.named(BEST)? } else { None };
        let all = self.list()?;
        let old = all.len().saturating_sub(keep.last.max(1));
        for path in all.iter().take(old).filter(|path| Some(*path) != best.as_ref()) {
            fs::remove_dir_all(path).map_err(Error::io("remove", path))?;
        }
        Ok(sync_folder(&self.folder)?)
    }
}

impl Checkpoint {
    /// Reads a checkpoint directory and verifies the hash of every file before anything is parsed.
    ///
    /// # Errors
    ///
    /// A directory that is no checkpoint, another format version, a file that is missing, cut or changed.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let manifest = Manifest::read(directory)?;
        let file = |name: &str| {
            let path = directory.join(name);
            let record = manifest.files.get(name).ok_or_else(|| Error::CheckpointDamaged {
                file: path.clone(),
                expected: "a record of it in the manifest".into(),
                found: "none".into(),
            })?;
            read_verified(&path, record)
        };
        Ok(Self {
            directory: directory.to_owned(),
            parameters: file(PARAMETERS)?,
            optimizer: divided::files_of(&manifest)
                .into_iter()
                .map(|name| Ok((name.clone(), file(&name)?)))
                .collect::<Result<_, Error>>()?,
            tokenizer: file(TOKENIZER)?,
            manifest,
        })
    }

    /// The checkpoint as bytes, for ranks that do not read it themselves.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let manifest = serde_json::to_vec(&self.manifest).expect("a manifest is JSON");
        let directory = self.directory.to_string_lossy().into_owned().into_bytes();
        let names = self.optimizer.iter().map(|(name, _)| name.as_str());
        let names = names.collect::<Vec<_>>().join("\n").into_bytes();
        let mut parts = vec![&directory, &manifest, &self.parameters, &self.tokenizer, &names];
        parts.extend(self.optimizer.iter().map(|(_, file)| file));
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| 8 + part.len()).sum());
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// What [`Checkpoint::to_bytes`] wrote; none of anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut next = || -> Option<Vec<u8>> {
            let (length, behind) = rest.split_first_chunk()?;
            let (part, behind) = behind.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            rest = behind;
            Some(part.to_vec())
        };
        let directory = String::from_utf8(next()?).ok()?.into();
        let manifest = serde_json::from_slice(&next()?).ok()?;
        let (parameters, tokenizer) = (next()?, next()?);
        let names = String::from_utf8(next()?).ok()?;
        let files = names.split('\n').map(|name| Some((name.to_owned(), next()?)));
        let optimizer = files.collect::<Option<_>>()?;
        Some(Self { directory, manifest, parameters, optimizer, tokenizer })
    }

    /// Reads what `path` names: a checkpoint, or the latest one of a run folder or its `checkpoints`.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoint::read`], and a path that is none of these.
    pub fn find(path: &Path) -> Result<Self, Error> {
        for folder in [path.join("checkpoints"), path.to_owned()] {
            if folder.join(LATEST).is_file() {
                let checkpoints = Checkpoints { folder };
                if let Some(checkpoint) = checkpoints.latest()? {
                    return Ok(checkpoint);
                }
            }
        }
        Self::read(path)
    }

    /// All parameters, laid out as `layout` says.
    ///
    /// # Errors
    ///
    /// A slot that is missing, too many tensors, another shape or element type.
    pub fn parameters(&self, layout: &Layout) -> Result<Vec<f32>, Error> {
        let file = self.directory.join(PARAMETERS);
        let tensors = parse(&self.parameters, &file)?;
        let damaged = |expected: String, found: String| Error::CheckpointDamaged {
            file: file.clone(),
            expected,
            found,
        };
        if tensors.len() != layout.slots().len() {
            let expected = format!("{} tensors", layout.slots().len());
            return Err(damaged(expected, tensors.len().to_string()));
        }
        let mut parameters = vec![0.0; layout.parameters()];
        for slot in layout.slots() {
            let expected = || format!("`{}` of shape {:?} in f32", slot.name, slot.shape);
            let tensor = tensors
                .tensor(&slot.name)
                .map_err(|error| damaged(expected(), error.to_string()))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != slot.shape {
                let found = format!("shape {:?} in {:?}", tensor.shape(), tensor.dtype());
                return Err(damaged(expected(), found));
            }
            let into = &mut parameters[slot.range()];
            bytemuck::cast_slice_mut::<f32, u8>(into).copy_from_slice(tensor.data());
        }
        Ok(parameters)
    }

    /// The optimizer's state, the whole of it also where ranks wrote parts.
    ///
    /// # Errors
    ///
    /// A file that is no safetensors file or has an element type that no state has, and parts that are no whole.
    pub fn optimizer(&self) -> Result<SavedState<'_>, Error> {
        match &self.optimizer[..] {
            [(name, bytes)] if name == OPTIMIZER => {
                let arrays = arrays_of(bytes, &self.directory.join(name))?;
                Ok(SavedState { arrays, metadata: self.manifest.optimizer.clone() })
            }
            parts => divided::join(parts, &self.directory),
        }
    }

    /// Compares what decides the bits of a run with what `identity` says of this one.
    ///
    /// # Errors
    ///
    /// The first key whose value differs, with both values.
    pub fn must_match(&self, identity: &BTreeMap<String, String>) -> Result<(), Error> {
        let none = String::from("none");
        for key in self.manifest.identity.keys().chain(identity.keys()) {
            let (found, expected) = (self.manifest.identity.get(key), identity.get(key));
            let is_same = match (found, expected) {
                (Some(found), Some(expected)) => is_same_value(found, expected),
                _ => false,
            };
            if !is_same {
                return Err(Error::CheckpointMismatch {
                    checkpoint: self.directory.clone(),
                    key: key.clone(),
                    expected: expected.unwrap_or(&none).clone(),
                    found: found.unwrap_or(&none).clone(),
                });
            }
        }
        Ok(())
    }
}

/// Writes all files of a checkpoint into `directory` and makes each durable, the manifest last.
fn write_files(snapshot: Snapshot<'_>, directory: &Path) -> Result<(), Error> {
    let Snapshot { mut manifest, layout, parameters, optimizer, tokenizer } = snapshot;
    write_parameters(directory, layout, parameters)?;
    write_tensors(&directory.join(OPTIMIZER), None, sections_of(optimizer))?;
    write_file(&directory.join(TOKENIZER), tokenizer)?;

    manifest.optimizer = optimizer.metadata.clone();
    for name in [PARAMETERS, OPTIMIZER, TOKENIZER] {
        manifest.files.insert(name.to_owned(), record(&directory.join(name))?);
    }
    manifest.write(directory)
}

fn write_parameters(directory: &Path, layout: &Layout, parameters: &[f32]) -> Result<(), Error> {
    let parameters = layout.slots().iter().map(|slot| {
        let bytes = bytemuck::cast_slice(&parameters[slot.range()]);
        (slot.name.as_str(), Dtype::F32, slot.shape.as_slice(), bytes)
    });
    write_tensors(&directory.join(PARAMETERS), None, parameters)
}

/// The arrays of a state, as [`write_tensors`] takes them.
fn sections_of<'s>(
    state: &'s SavedState<'_>,
) -> impl Iterator<Item = (&'s str, Dtype, &'s [usize], &'s [u8])> {
    state.arrays.iter().map(|tensor| {
        let bytes: &[u8] = &tensor.bytes;
        (tensor.name.as_str(), dtype(tensor.element), tensor.shape.as_slice(), bytes)
    })
}

fn directory_name(update: u64) -> String {
    format!("update-{update:08}")
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}
