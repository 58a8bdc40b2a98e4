//! The archive of a release: a ZIP in which every byte follows from the files alone.
//!
//! Files are stored, not compressed: what a compressor writes may change with its version, and then an old
//! release could no longer be made again. Entries follow each other without gaps in the order of their names,
//! the manifest first; times are the earliest that the format knows; modes are 0644 or 0755; there are no extra
//! fields, comments, folders, links or data descriptors.
//!
//! [`write()`] makes such an archive and [`read`](read()) takes nothing else, so that bytes, files and names
//! determine each other; [`verified`](verified()) compares files with the list of hashes too. What the files are is not
//! decided here. The folder stands by itself, so that the fuzz target of archives can include it.

mod names;
mod read;
mod verified;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

pub use names::{clashes, refusal};
pub use read::read;
pub use verified::verified;

/// The name of the list of hashes, the first entry of every archive.
pub const MANIFEST: &str = "MANIFEST.sha256";

/// Bytes an archive may have, so that reading one takes bounded memory.
pub const BYTES_MAX: u64 = 512 << 20;

/// Signatures and fixed fields of the three records.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// Version 1.0 is all that stored files need.
const VERSION_NEEDED: u16 = 10;
/// Made on Unix, by version 3.0 of the format's description.
const VERSION_MADE: u16 = 0x031e;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
const STORED: u16 = 0;
/// 1 January 1980, 00:00, the earliest time there is.
const TIME: u16 = 0;
const DATE: u16 = 0x0021;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Whether it may be executed.
    pub executable: bool,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// Files by their paths from the root, with forward slashes.
pub type Files = BTreeMap<String, File>;

/// The SHA-256 of bytes, as hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The list of hashes of `files`, as `sha256sum -c` reads it.
pub fn manifest(files: &Files) -> String {
    files.iter().map(|(path, file)| format!("{}  {path}\n", sha256(&file.bytes))).collect()
}

/// The archive of `files` and their list of hashes.
///
/// # Panics
///
/// Where a name or the whole is too large for the format; [`refusal`] and [`BYTES_MAX`] are far below that.
pub fn write(files: &Files) -> Vec<u8> {
    let list = File { executable: false, bytes: manifest(files).into_bytes() };
    let entries: Vec<(&str, &File)> = [(MANIFEST, &list)]
        .into_iter()
        .chain(files.iter().map(|(path, file)| (path.as_str(), file)))
        .collect();
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for &(path, file) in &entries {
        let offset = small(archive.len());
        put_local(&mut archive, path, file);
        put_central(&mut directory, path, file, offset);
    }
    let (count, size, offset) = (tiny(entries.len()), small(directory.len()), small(archive.len()));
    archive.extend(directory);
    put_u32(&mut archive, END);
    for field in [0, 0, count, count] {
        put_u16(&mut archive, field);
    }
    put_u32(&mut archive, size);
    put_u32(&mut archive, offset);
    put_u16(&mut archive, 0);
    archive
}

fn put_local(into: &mut Vec<u8>, path: &str, file: &File) {
    put_u32(into, LOCAL);
    put_shared(into, path, file);
    into.extend(path.as_bytes());
    into.extend(&file.bytes);
}

fn put_central(into: &mut Vec<u8>, path: &str, file: &File, offset: u32) {
    put_u32(into, CENTRAL);
    put_u16(into, VERSION_MADE);
    put_shared(into, path, file);
    // No comment, the first disk, nothing known of the kind of content.
    for _ in 0..3 {
        put_u16(into, 0);
    }
    put_u32(into, attributes(file));
    put_u32(into, offset);
    into.extend(path.as_bytes());
}

/// The fields that both records of a file have, in one order.
fn put_shared(into: &mut Vec<u8>, path: &str, file: &File) {
    for field in [VERSION_NEEDED, FLAGS, STORED, TIME, DATE] {
        put_u16(into, field);
    }
    put_u32(into, crc32fast::hash(&file.bytes));
    for _ in 0..2 {
        put_u32(into, small(file.bytes.len()));
    }
    put_u16(into, tiny(path.len()));
    put_u16(into, 0);
}

/// The mode of a regular file where ZIP keeps it.
fn attributes(file: &File) -> u32 {
    let mode: u32 = if file.executable { 0o100_755 } else { 0o100_644 };
    mode << 16
}

fn put_u16(into: &mut Vec<u8>, value: u16) {
    into.extend(value.to_le_bytes());
}

fn put_u32(into: &mut Vec<u8>, value: u32) {
    into.extend(value.to_le_bytes());
}

fn tiny(length: usize) -> u16 {
    u16::try_from(length).expect("fewer than 65,536 files, and names of few bytes")
}

fn small(length: usize) -> u32 {
    u32::try_from(length).expect("an archive is far below 4 GiB")
}
