//! Tapes that change while they are read, and tapes that are very long.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};

use tape::checksum::Checksum;
use tape::layout::{BLOCK_BYTES, Element, Sidecar, TapeFiles};
use tape::reader::{Tape, TapeSource, Verify};
use tape::windows::{WindowShape, Windows};

use super::fixture::{HandMade, check_message};

/// A tape of three blocks.
fn long() -> HandMade {
    HandMade::new(3 * BLOCK_BYTES as usize / 4 - 100)
}

/// The error of reading all of the tape after `change`, its first tokens having been read before.
fn error_after(change: impl FnOnce(&HandMade)) -> tape::Error {
    let made = long();
    let tape = Tape::open(&made.files, None).unwrap();
    let mut ids = Vec::new();
    tape.read(0..10, &mut ids).unwrap();
    change(&made);
    let error = tape.read(0..tape.len(), &mut ids).unwrap_err();
    let windows = Windows::new(&tape, WindowShape { batch: 1, context: 1 << 20 });
    let first = windows.all().find_map(Result::err).expect("a window gives the error too");
    assert_eq!(std::mem::discriminant(&first), std::mem::discriminant(&error));
    error
}

#[test]
fn a_tape_that_is_cut_short_is_an_error() {
    let error = error_after(|made| {
        let file = OpenOptions::new().write(true).open(&made.files.tokens).unwrap();
        file.set_len(BLOCK_BYTES + 40).unwrap();
    });
    check_message(&error, &["train.tokens.u32 has changed", "at byte 0", "it has 4194344 bytes"]);
}

#[test]
fn a_tape_that_is_rewritten_is_an_error() {
    let error = error_after(|made| {
        let mut file = OpenOptions::new().write(true).open(&made.files.tokens).unwrap();
        file.seek(SeekFrom::Start(2 * BLOCK_BYTES + 5)).unwrap();
        file.write_all(&[77]).unwrap();
    });
    check_message(
        &error,
        &["has changed", "at byte 8388608", "SHA-256 of this block", "then resume"],
    );
}

#[test]
fn a_tape_that_is_replaced_or_removed_is_an_error() {
    let error = error_after(|made| {
        let other = made.folder.write("other", fs::read(&made.files.tokens).unwrap());
        fs::rename(other, &made.files.tokens).unwrap();
    });
    check_message(&error, &["has changed", "another file has its name"]);
    let error = error_after(|made| fs::remove_file(&made.files.tokens).unwrap());
    check_message(&error, &["cannot read", "train.tokens.u32"]);
}

#[test]
fn byte_lengths_are_as_safe_as_tokens() {
    let made = long();
    let tape = Tape::open(&made.files, None).unwrap();
    let mut lengths = made.lengths.clone();
    lengths[2_500_000] ^= 1;
    let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
    fs::write(made.files.byte_lengths.as_ref().unwrap(), bytes).unwrap();
    let error = tape.source_bytes_of(0..tape.len()).unwrap_err();
    check_message(&error, &["train.byte-lengths.u16 has changed", "at byte 4194304"]);
}

#[test]
fn a_damaged_tape_opened_by_its_sidecar_is_found_when_it_is_read() {
    let mut made = long();
    made.ids[2_500_000] ^= 1;
    made.write_ids();
    let source = TapeSource::Files(made.files.clone());
    let tape = Tape::open_with(&source, None, Verify::WhenRead).unwrap();
    let mut ids = Vec::new();
    tape.read(0..2_000_000, &mut ids).unwrap();
    let error = tape.read(2_000_000..2_500_001, &mut ids).unwrap_err();
    check_message(&error, &["train.tokens.u32 has changed", "at byte 8388608"]);
    Tape::open_with(&source, None, Verify::Now).unwrap_err();
}

/// A tape of more than 2^32 tokens that takes no space: all ids are 0.
#[test]
fn positions_are_64_bits_wide() {
    let made = HandMade::new(8);
    let count = (1_u64 << 32) + 3 * (BLOCK_BYTES / 2) + 1001;
    let mut files = TapeFiles::with_stem(made.folder.path(), "long", Element::U16);
    File::create(&files.tokens).unwrap().set_len(2 * count).unwrap();
    let lengths = files.byte_lengths.take().unwrap();
    // The last tokens are others.
    let mut file = OpenOptions::new().write(true).open(&files.tokens).unwrap();
    file.seek(SeekFrom::Start(2 * (count - 3))).unwrap();
    file.write_all(&[7, 0, 8, 0, 1, 0]).unwrap();

    let block = Checksum::of(&vec![0; BLOCK_BYTES as usize]);
    let blocks = (2 * count).div_ceil(BLOCK_BYTES);
    let mut last = vec![0; (2 * count % BLOCK_BYTES) as usize];
    let at = last.len() - 6;
    last[at..].copy_from_slice(&[7, 0, 8, 0, 1, 0]);
    let mut sidecar = made.sidecar();
    sidecar.element = Element::U16;
    sidecar.tokens.count = count;
    sidecar.tokens.blocks = vec![block; blocks as usize - 1];
    sidecar.tokens.blocks.push(Checksum::of(&last));
    sidecar.byte_lengths.count = count;
    sidecar.byte_lengths.blocks = vec![block; blocks as usize];
    sidecar.save(files.sidecar.as_ref().unwrap()).unwrap();
    assert!(Sidecar::load(files.sidecar.as_ref().unwrap()).is_ok() && !lengths.exists());

    let source = TapeSource::at(&files.tokens);
    let tape = Tape::open_with(&source, Some(10), Verify::WhenRead).unwrap();
    assert_eq!(tape.len(), count);
    let windows = Windows::new(&tape, WindowShape { batch: 1, context: 1000 });
    let window = windows.at(count - 1 - 500).unwrap().unwrap();
    assert_eq!(window.targets()[497..], [7, 8, 1]);
    assert_eq!(window.next_cursor(), count - 1);
    assert_eq!(windows.at(count - 1).unwrap(), None);
    assert!(windows.count() > u64::from(u32::MAX) / 1000);
}

#[test]
fn what_is_no_file_is_not_replaced_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("made.json");
    fs::create_dir(&target).unwrap();
    let error = tape::aside::write_file(&target, b"{}").unwrap_err();
    check_message(&error, &["cannot write", "made.json", "found a folder"]);
    fs::remove_dir(&target).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/dev/null", &target).unwrap();
        let error = tape::aside::write_file(&target, b"{}").unwrap_err();
        check_message(&error, &["made.json", "found a device or a pipe"]);
        assert!(target.is_symlink(), "it is what it was");
        fs::remove_file(&target).unwrap();
    }
    tape::aside::write_file(&target, b"{}").unwrap();
    tape::aside::write_file(&target, b"[]").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"[]");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
}
