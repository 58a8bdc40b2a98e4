//! Checkpoints of ranks that divide the optimizer's state: each writes its part, all at the same time.
//!
//! Rank 0 makes the folder, writes everything else, and gives the checkpoint its name once all parts are durable. A rank
//! that does not see the folder, on a host that shares no file system with rank 0, sends its part there instead. A part is
//! a safetensors file whose header has the metadata of the part; together they are the state that one process would
//! have written, byte for byte.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use optimizer::SavedState;
use safetensors::tensor::{SafeTensors, TensorView, serialize};
use tape::aside::write_file;

use super::{
    Checkpoints, Keep, OPTIMIZER, PARAMETERS, Snapshot, TOKENIZER, arrays_of, directory_name,
    record, sections_of, write_parameters, write_tensors,
};
use crate::error::Error;
use crate::manifest::{FileRecord, Manifest};
use crate::world::World;

/// How the names of parts begin.
const PART: &str = "optimizer-";

/// What a rank tells rank 0 of its part.
#[derive(serde::Serialize, serde::Deserialize)]
enum Told {
    /// It is written.
    Written(FileRecord),
    /// These are its bytes, which follow.
    Sent,
}

/// The files of a checkpoint's optimizer state, in the order of ranks.
pub fn files_of(manifest: &Manifest) -> Vec<String> {
    let parts: Vec<String> =
        manifest.files.keys().filter(|name| name.starts_with(PART)).cloned().collect();
    if parts.is_empty() { vec![OPTIMIZER.to_owned()] } else { parts }
}

/// The whole state of parts.
pub fn join<'a>(parts: &'a [(String, Vec<u8>)], directory: &Path) -> Result<SavedState<'a>, Error> {
    let state = |(name, bytes): &'a (String, Vec<u8>)| {
        let file = directory.join(name);
        let arrays = arrays_of(bytes, &file)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| {
            let (expected, found) = ("a safetensors file".into(), error.to_string());
            Error::CheckpointDamaged { file, expected, found }
        })?;
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(SavedState { arrays, metadata })
    };
    let states: Vec<SavedState<'_>> = parts.iter().map(state).collect::<Result<_, Error>>()?;
    Ok(SavedState::join(&states)?)
}

impl Checkpoints {
    /// As [`Checkpoints::write`], by all ranks at the same time; the optimizer of `snapshot` is the own part. Returns the
    /// path on rank 0.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoints::write`], and ranks that are gone.
    pub fn write_divided(
        &self,
        snapshot: &Snapshot<'_>,
        keep: Keep,
        world: &World,
    ) -> Result<Option<PathBuf>, Error> {
        let progress = &snapshot.manifest.progress;
        if !world.is_first() {
            let partial = world.text_of_first(String::new())?;
            if !partial.is_empty() {
                write_part(snapshot, Path::new(&partial), world)?;
            }
            return Ok(None);
        }
        let path = self.path_of(progress.update);
        if self.write_again(&snapshot.manifest)? {
            world.text_of_first(String::new())?;
        } else {
            self.write_complete(progress.update, |partial| fill(snapshot, partial, world))?;
        }
        self.make_latest(&path, progress.best.map(|best| directory_name(best.update)), keep)?;
        Ok(Some(path))
    }
}

/// Rank 0: the tokenizer first, which shows others that they see the folder, and the manifest last.
fn fill(snapshot: &Snapshot<'_>, partial: &Path, world: &World) -> Result<(), Error> {
    write_file(&partial.join(TOKENIZER), snapshot.tokenizer)?;
    let there = fs::canonicalize(partial).map_err(Error::io("find", partial))?;
    world.text_of_first(there.to_string_lossy().into_owned())?;
    write_parameters(partial, snapshot.layout, snapshot.parameters)?;
    let told = write_part(snapshot, partial, world)?;
    let mut manifest = snapshot.manifest.clone();
    for (rank, told) in told.iter().enumerate() {
        let name = part_name(rank, world);
        let kind = told.iter().position(|&byte| byte == b'\n').unwrap_or(told.len());
        let record = match serde_json::from_slice(&told[..kind]) {
            Ok(Told::Written(record)) => record,
            Ok(Told::Sent) => {
                write_file(&partial.join(&name), &told[kind + 1..])?;
                record(&partial.join(&name))?
            }
            Err(error) => {
                let (expected, found) = ("what a rank tells of its part".into(), error.to_string());
                return Err(Error::CheckpointDamaged { file: partial.join(name), expected, found });
            }
        };
        manifest.files.insert(name, record);
    }
    for name in [PARAMETERS, TOKENIZER] {
        manifest.files.insert(name.to_owned(), record(&partial.join(name))?);
    }
    manifest.write(partial)
}

/// Writes the own part, or sends it; returns on rank 0 what all tell of theirs.
fn write_part(
    snapshot: &Snapshot<'_>,
    partial: &Path,
    world: &World,
) -> Result<Vec<Vec<u8>>, Error> {
    let path = partial.join(part_name(world.share().rank, world));
    let metadata: HashMap<String, String> =
        snapshot.optimizer.metadata.clone().into_iter().collect();
    let sections = sections_of(snapshot.optimizer);
    let json = |told: &Told| serde_json::to_vec(told).expect("records are JSON");
    let told = if partial.join(TOKENIZER).is_file() {
        write_tensors(&path, Some(metadata), sections)?;
        json(&Told::Written(record(&path)?))
    } else {
        let failed = |error: safetensors::SafeTensorError| {
            Error::io("write", &path)(std::io::Error::other(error.to_string()))
        };
        let views = sections.map(|(name, dtype, shape, bytes)| {
            Ok((name, TensorView::new(dtype, shape.to_vec(), bytes)?))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let bytes = serialize(views, Some(metadata)).map_err(failed)?;
        [json(&Told::Sent), b"\n".to_vec(), bytes].concat()
    };
    world.bytes_to_first(told)
}

fn part_name(rank: usize, world: &World) -> String {
    format!("{PART}{:05}-of-{:05}.safetensors", rank + 1, world.share().world_size)
}
