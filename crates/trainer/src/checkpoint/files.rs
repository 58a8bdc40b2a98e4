//! The files of a checkpoint: tensors written and read, and bytes held against what the manifest says of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use formats::ElementType;
use optimizer::SavedArray;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use tape::checksum::Checksum;

use crate::error::Error;
use crate::manifest::FileRecord;
use crate::read;

/// The arrays of a file of optimizer state.
pub(super) fn arrays_of<'a>(bytes: &'a [u8], file: &Path) -> Result<Vec<SavedArray<'a>>, Error> {
    let array = |(name, tensor): (String, TensorView<'a>)| {
        let element = element_type(tensor.dtype()).ok_or_else(|| Error::CheckpointDamaged {
            file: file.to_owned(),
            expected: format!("`{name}` in an element type of optimizer state"),
            found: format!("{:?}", tensor.dtype()),
        })?;
        let bytes = Cow::Borrowed(tensor.data());
        Ok(SavedArray { name, element, shape: tensor.shape().to_vec(), bytes })
    };
    parse(bytes, file)?.tensors().into_iter().map(array).collect()
}

/// Writes tensors, with words about them for other programs, and makes the file durable.
pub(crate) fn write_tensors<'a>(
    path: &Path,
    about: Option<HashMap<String, String>>,
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize], &'a [u8])>,
) -> Result<(), Error> {
    let failed = |error: safetensors::SafeTensorError| {
        Error::io("write", path)(std::io::Error::other(error.to_string()))
    };
    let views = tensors
        .map(|(name, dtype, shape, bytes)| {
            Ok((name, TensorView::new(dtype, shape.to_vec(), bytes)?))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    serialize_to_file(views, about, path).map_err(failed)?;
    let file = File::open(path).map_err(Error::io("open", path))?;
    make_readable(&file).map_err(Error::io("change the mode of", path))?;
    file.sync_all().map_err(Error::io("make durable", path))
}

/// Temporary files start out private to their owner; results are for everybody to read.
#[cfg(unix)]
fn make_readable(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_file: &File) -> std::io::Result<()> {
    Ok(())
}

/// What the manifest says of a file that was written.
pub(super) fn record(path: &Path) -> Result<FileRecord, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let (sha256, bytes) = Checksum::of_reader(file).map_err(Error::io("read", path))?;
    Ok(FileRecord { sha256, bytes })
}

/// The bytes of a file, if they are those that were written; its length is looked at first.
pub(super) fn read_verified(path: &Path, record: &FileRecord) -> Result<Vec<u8>, Error> {
    let damaged = |expected: String, found: String| {
        Err(Error::CheckpointDamaged { file: path.to_owned(), expected, found })
    };
    let size = fs::metadata(path).map_err(Error::io("read", path))?.len();
    if size != record.bytes {
        return damaged(format!("{} bytes", record.bytes), format!("{size} bytes"));
    }
    let bytes = read::bytes(path).map_err(Error::io("read", path))?;
    let sha256 = Checksum::of(&bytes);
    if sha256 != record.sha256 {
        return damaged(format!("SHA-256 {}", record.sha256), sha256.to_string());
    }
    Ok(bytes)
}

/// The tensors of a safetensors file.
pub(super) fn parse<'a>(bytes: &'a [u8], file: &Path) -> Result<SafeTensors<'a>, Error> {
    SafeTensors::deserialize(bytes).map_err(|error| Error::CheckpointDamaged {
        file: file.to_owned(),
        expected: "a safetensors file".into(),
        found: error.to_string(),
    })
}

const ELEMENT_TYPES: [(ElementType, Dtype); 5] = [
    (ElementType::U8, Dtype::U8),
    (ElementType::F16, Dtype::F16),
    (ElementType::Bf16, Dtype::BF16),
    (ElementType::U32, Dtype::U32),
    (ElementType::F32, Dtype::F32),
];

/// The name that safetensors has for a type of elements.
pub(super) fn dtype(element: ElementType) -> Dtype {
    let found = ELEMENT_TYPES.iter().find(|&&(ours, _)| ours == element);
    found.expect("every element type has a dtype").1
}

fn element_type(dtype: Dtype) -> Option<ElementType> {
    ELEMENT_TYPES.iter().find(|&&(_, theirs)| theirs == dtype).map(|&(ours, _)| ours)
}
