//! Archives that a release did not write, each refused for what is wrong with it.

use std::io::{Cursor, Read as _};

use super::*;

fn file(bytes: &[u8]) -> File {
    File { executable: false, bytes: bytes.to_vec() }
}

fn files(entries: &[(&str, &[u8])]) -> Files {
    entries.iter().map(|&(path, bytes)| (path.to_owned(), file(bytes))).collect()
}

fn small_release() -> Files {
    let mut files = files(&[("README.md", b"# read\n"), ("src/lib.rs", b""), ("é", b"\0\xff")]);
    files.insert("run".into(), File { executable: true, bytes: b"#!/bin/sh\n".to_vec() });
    files
}

/// An archive of entries in the order given, whatever they are, its list of hashes of `listed`.
fn forged(entries: &[(&str, &[u8])], listed: &Files) -> Vec<u8> {
    let list = file(manifest(listed).as_bytes());
    let owned: Vec<(&str, File)> = [(MANIFEST, list)]
        .into_iter()
        .chain(entries.iter().map(|&(path, bytes)| (path, file(bytes))))
        .collect();
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (path, file) in &owned {
        let offset = archive.len() as u32;
        put_local(&mut archive, path, file);
        put_central(&mut directory, path, file, offset);
    }
    end(archive, &directory, owned.len() as u16)
}

fn end(mut archive: Vec<u8>, directory: &[u8], count: u16) -> Vec<u8> {
    let start = archive.len() as u32;
    archive.extend(directory);
    put_u32(&mut archive, END);
    [0, 0, count, count].into_iter().for_each(|field| put_u16(&mut archive, field));
    put_u32(&mut archive, directory.len() as u32);
    put_u32(&mut archive, start);
    put_u16(&mut archive, 0);
    archive
}

/// Where the directory of an archive begins.
fn directory_start(archive: &[u8]) -> usize {
    let at = archive.len() - 6;
    u32::from_le_bytes(archive[at..at + 4].try_into().unwrap()) as usize
}

#[track_caller]
fn refused(archive: &[u8], expected: &str) {
    let error = format!("{:#}", verified(archive).unwrap_err());
    assert!(error.contains(expected), "expected {expected:?}, found {error}");
}

#[test]
fn what_is_written_is_read_and_other_readers_agree() {
    let files = small_release();
    let bytes = write(&files);
    assert_eq!(bytes, write(&files));
    assert_eq!(verified(&bytes).unwrap(), files);
    let mut other = zip::ZipArchive::new(Cursor::new(&bytes)).unwrap();
    assert_eq!(other.by_index(0).unwrap().name().unwrap(), MANIFEST);
    assert_eq!(other.len(), files.len() + 1);
    for (path, file) in &files {
        let mut entry = other.by_name(path).unwrap();
        let mut found = Vec::new();
        entry.read_to_end(&mut found).unwrap();
        assert_eq!(found, file.bytes);
        assert_eq!(entry.unix_mode(), Some(if file.executable { 0o100_755 } else { 0o100_644 }));
    }
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let bytes = write(&small_release());
    for at in 0..bytes.len() {
        for change in [1, 0x20, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(verified(&changed).is_err(), "byte {at} ^ {change}");
        }
    }
}

#[test]
fn a_cut_or_longer_archive_is_found() {
    let bytes = write(&small_release());
    for length in 0..bytes.len() {
        assert!(verified(&bytes[..length]).is_err(), "{length} bytes");
    }
    refused(&[&bytes[..], b"x"].concat(), "something follows");
    refused(b"", "too short");
}

#[test]
fn names_that_would_leave_the_folder_or_fall_together_are_refused() {
    for (path, expected) in [
        ("/etc/passwd", "absolute"),
        ("../up", "leads out"),
        ("a/../../up", "leads out"),
        ("a\\b", "character"),
        ("folder/", "a folder"),
        ("MANIFEST.sha256", "twice"),
        ("manifest.SHA256", "case only"),
    ] {
        let one = [(path, &b"x"[..])];
        refused(&forged(&one, &files(&one)), expected);
    }
    let pair = [("a/x", &b""[..]), ("A/y", b"")];
    refused(&forged(&[pair[1], pair[0]], &files(&pair)), "case only");
    let both = [("a", &b""[..]), ("a/y", b"")];
    refused(&forged(&both, &files(&both)), "both a file and a folder");
    let twice = [("a", &b"1"[..]), ("a", b"1")];
    refused(&forged(&twice, &files(&twice)), "a: twice");
    let backwards = [("b", &b""[..]), ("a", b"")];
    refused(&forged(&backwards, &files(&backwards)), "a: out of the order");
}

#[test]
fn files_that_differ_from_their_list_are_named() {
    let listed = files(&[("a", b"1"), ("b", b"2")]);
    refused(&forged(&[("a", b"1"), ("b", b"3")], &listed), "b: changed");
    refused(&forged(&[("a", b"1")], &listed), "b: missing");
    refused(&forged(&[("a", b"1"), ("b", b"2"), ("c", b"")], &listed), "c: extra");
    let archive = forged(&[("a", b"1")], &files(&[("a", b"1")]));
    let text = manifest(&files(&[("a", b"1")]));
    for (from, to, expected) in
        [("  a", "  /", "absolute"), ("  a", " *a", "two spaces"), ("6b", "6B", "no SHA-256")]
    {
        assert!(text.contains(from), "{text}");
        let changed = file(text.replacen(from, to, 1).as_bytes());
        let (mut local, mut directory) = (Vec::new(), Vec::new());
        put_local(&mut local, MANIFEST, &changed);
        put_central(&mut directory, MANIFEST, &changed, 0);
        let offset = local.len() as u32;
        put_local(&mut local, "a", &file(b"1"));
        put_central(&mut directory, "a", &file(b"1"), offset);
        refused(&end(local, &directory, 2), expected);
    }
    assert!(verified(&archive).is_ok());
}

#[test]
fn links_devices_and_folders_are_refused() {
    let bytes = write(&small_release());
    let attributes = directory_start(&bytes) + 38;
    for (mode, expected) in [
        (0o120_777_u32, "a symbolic link"),
        (0o040_755, "no regular file"),
        (0o020_666, "no regular file"),
        (0o104_755, "mode 104755"),
        (0, "no regular file"),
    ] {
        let mut changed = bytes.clone();
        changed[attributes..attributes + 4].copy_from_slice(&(mode << 16).to_le_bytes());
        refused(&changed, expected);
    }
}

#[test]
fn bombs_are_refused_without_being_unpacked() {
    let bytes = write(&small_release());
    let start = directory_start(&bytes);
    // A file said to be compressed, and one said to be larger than all there is.
    let mut compressed = bytes.clone();
    compressed[start + 10..start + 12].copy_from_slice(&8_u16.to_le_bytes());
    refused(&compressed, "compressed");
    let mut grows = bytes.clone();
    grows[start + 24..start + 28].copy_from_slice(&u32::MAX.to_le_bytes());
    refused(&grows, "compressed");
    let mut huge = bytes.clone();
    huge[start + 20..start + 24].copy_from_slice(&u32::MAX.to_le_bytes());
    huge[start + 24..start + 28].copy_from_slice(&u32::MAX.to_le_bytes());
    refused(&huge, "disagree");
    // Many entries that share the bytes of one.
    let (one, list) = (file(b"shared"), file(b""));
    let (mut local, mut directory) = (Vec::new(), Vec::new());
    put_local(&mut local, MANIFEST, &list);
    put_central(&mut directory, MANIFEST, &list, 0);
    let offset = local.len() as u32;
    put_local(&mut local, "a", &one);
    put_central(&mut directory, "a", &one, offset);
    put_central(&mut directory, "b", &one, offset);
    refused(&end(local, &directory, 3), "overlapping");
    // Bytes between two files.
    let mut gap = Vec::new();
    put_local(&mut gap, MANIFEST, &list);
    gap.extend(b"hidden");
    let mut directory = Vec::new();
    put_central(&mut directory, MANIFEST, &list, 0);
    refused(&end(gap, &directory, 1), "6 bytes belong to no file");
}
