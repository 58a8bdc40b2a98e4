//! Opening tapes: what is accepted, and the message for everything that is not.

use proptest::prelude::*;
use tape::Error;
use tape::checksum::Checksum;
use tape::layout::{Sidecar, TapeFiles};
use tape::reader::{Tape, TapeSource};

use super::fixture::{HAND_MADE_VOCABULARY, HandMade, check_message, ids_of};

/// The error of opening the tape as it is now.
#[track_caller]
fn refused(made: &HandMade) -> Error {
    Tape::open(&made.files, Some(HAND_MADE_VOCABULARY)).unwrap_err()
}

/// Saves the sidecar after `change`.
fn change_sidecar(made: &HandMade, change: impl FnOnce(&mut Sidecar)) {
    let mut sidecar = made.sidecar();
    change(&mut sidecar);
    sidecar.save(made.files.sidecar.as_ref().unwrap()).unwrap();
}

#[test]
fn a_true_tape_opens() {
    let made = HandMade::new(1000);
    let tape = Tape::open(&made.files, Some(HAND_MADE_VOCABULARY)).unwrap();
    assert_eq!(ids_of(&tape), made.ids);
    let mut lengths = Vec::new();
    assert!(tape.read_byte_lengths(0..1000, &mut lengths).unwrap());
    assert_eq!(lengths, made.lengths);
    assert_eq!(tape.len(), 1000);
    assert_eq!(tape.sidecar(), Some(&made.sidecar()));
    assert_eq!(tape.checksum(), made.sidecar().tokens.sha256);
    assert_eq!(tape.source(), &TapeSource::Files(made.files));
}

#[test]
fn companions_are_found_by_name() {
    let made = HandMade::new(20);
    assert_eq!(TapeFiles::beside(&made.files.tokens), made.files);

    std::fs::remove_file(made.files.sidecar.as_ref().unwrap()).unwrap();
    let files = TapeFiles::beside(&made.files.tokens);
    assert_eq!(files.sidecar, None);
    assert_eq!(files.byte_lengths, made.files.byte_lengths);

    let elsewhere = made.folder.write("ids.bin", [0; 8]);
    let files = TapeFiles::beside(&elsewhere).with_byte_lengths("lengths.bin");
    assert_eq!(files.byte_lengths, Some("lengths.bin".into()));
    assert_eq!(files.sidecar, None);
}

#[test]
fn a_tape_needs_neither_byte_lengths_nor_sidecar() {
    let made = HandMade::new(20);
    let files = TapeFiles { byte_lengths: None, sidecar: None, ..made.files.clone() };
    let tape = Tape::open(&files, Some(HAND_MADE_VOCABULARY)).unwrap();
    assert_eq!((tape.source_bytes(), tape.sidecar()), (None, None));
    assert!(!tape.read_byte_lengths(0..20, &mut Vec::new()).unwrap());
    assert_eq!(tape.source_bytes_of(0..3).unwrap(), None);
    assert_eq!(tape.tokens_for_source_bytes(1).unwrap(), None);
}

#[test]
fn byte_sums_are_sums() {
    let made = HandMade::new(100);
    let tape = Tape::open(&made.files, None).unwrap();
    let sum = |range: std::ops::Range<usize>| {
        made.lengths[range].iter().map(|&length| u64::from(length)).sum::<u64>()
    };
    assert_eq!(tape.source_bytes(), Some(sum(0..100)));
    for (start, end) in [(0, 0), (0, 1), (3, 50), (99, 100), (0, 100)] {
        assert_eq!(tape.source_bytes_of(start as u64..end as u64).unwrap(), Some(sum(start..end)));
    }
    for bytes in 0..=sum(0..100) {
        let tokens = (0..=100).find(|&tokens| sum(0..tokens) >= bytes).unwrap() as u64;
        assert_eq!(tape.tokens_for_source_bytes(bytes).unwrap(), Some(tokens));
    }
    assert_eq!(tape.tokens_for_source_bytes(sum(0..100) + 1).unwrap(), None);
}

#[test]
fn sizes_and_counts_are_checked() {
    let made = HandMade::new(20);
    std::fs::write(&made.files.tokens, [0; 79]).unwrap();
    check_message(&refused(&made), &["train.tokens.u32", "79 bytes", "multiple of 4"]);

    std::fs::write(&made.files.tokens, []).unwrap();
    check_message(&refused(&made), &["train.tokens.u32", "is empty", "prepare it again"]);

    std::fs::remove_file(&made.files.tokens).unwrap();
    check_message(&refused(&made), &["cannot read", "train.tokens.u32", "check the path"]);

    made.write_ids();
    let lengths = made.files.byte_lengths.as_ref().unwrap();
    std::fs::write(lengths, [0; 39]).unwrap();
    check_message(&refused(&made), &["train.byte-lengths.u16", "39 bytes", "multiple of 2"]);

    std::fs::write(lengths, [0; 38]).unwrap();
    check_message(&refused(&made), &["20 tokens", "train.byte-lengths.u16", "19 byte lengths"]);

    let mut files = made.files.clone();
    files.tokens = made.folder.path().to_owned();
    check_message(
        &Tape::open(&files, None).unwrap_err(),
        &["cannot read", "expected a file, found a folder"],
    );

    // Neither waited for nor read without end.
    #[cfg(unix)]
    for device in ["/dev/zero", "/dev/null"] {
        files.tokens = device.into();
        let error = Tape::open(&files, None).unwrap_err();
        check_message(&error, &["cannot read", "expected a file, found a device or a pipe"]);
    }
}

#[test]
fn changed_files_differ_from_their_sidecar() {
    let mut made = HandMade::new(20);
    made.ids[11] ^= 1;
    made.write_ids();
    let sidecar = ["train.tokens.u32", "train.tape.json", "SHA-256", "expected"];
    check_message(&refused(&made), &sidecar);
    made.ids[11] ^= 1;
    made.write_ids();

    made.lengths[11] += 1;
    made.write_lengths();
    check_message(&refused(&made), &["train.byte-lengths.u16", "train.tape.json", "SHA-256"]);
    made.lengths[11] -= 1;
    made.write_lengths();

    change_sidecar(&made, |sidecar| {
        sidecar.tokens.count = 21;
        sidecar.byte_lengths.count = 21;
        sidecar.tokens.blocks.clear();
        sidecar.byte_lengths.blocks.clear();
    });
    check_message(&refused(&made), &["the count is 20", "expected 21"]);

    change_sidecar(&made, |sidecar| sidecar.documents += 1);
    check_message(&refused(&made), &["end-of-document ids is 2", "expected 3"]);

    change_sidecar(&made, |sidecar| sidecar.source_bytes += 1);
    check_message(&refused(&made), &["the sum of byte lengths is 36", "expected 37"]);
}

#[test]
fn ids_beyond_the_vocabulary_are_named_with_their_position() {
    let mut ids = vec![1; 3_000_000];
    ids[2_500_000] = 12;
    ids[2_700_000] = 13;
    let made = HandMade::of(ids, vec![1; 3_000_000]);
    let expected = ["id 12 at position 2500000", "vocabulary of 10"];
    check_message(&refused(&made), &expected);

    let files = TapeFiles { sidecar: None, ..made.files.clone() };
    check_message(&Tape::open(&files, Some(10)).unwrap_err(), &expected);
    Tape::open(&files, Some(14)).unwrap();
}

#[test]
fn exactly_ends_of_documents_stand_for_no_text() {
    let made = HandMade::of(vec![1, 2, 9, 1], vec![1, 1, 1, 1]);
    check_message(&refused(&made), &["position 2 has byte length 1", "expected 0"]);
    let made = HandMade::of(vec![1, 2, 9, 1], vec![1, 0, 0, 1]);
    check_message(&refused(&made), &["position 1 has byte length 0", "at least 1"]);
}

#[test]
fn the_model_must_know_all_ids_of_the_tape() {
    let made = HandMade::new(20);
    let error = Tape::open(&made.files, Some(9)).unwrap_err();
    check_message(&error, &["train.tape.json", "vocabulary is 10", "model's 9"]);
    Tape::open(&made.files, Some(16)).unwrap();
}

fn json_list(value: &serde_json::Value, count: usize) -> serde_json::Value {
    vec![value.clone(); count].into()
}

#[test]
fn sidecars_are_parsed_with_suspicion() {
    let made = HandMade::new(20);
    let good = serde_json::to_value(made.sidecar()).unwrap();
    let check = |change: &dyn Fn(&mut serde_json::Value), parts: &[&str]| {
        let mut json = good.clone();
        change(&mut json);
        made.folder.write("train.tape.json", json.to_string());
        check_message(&refused(&made), &["train.tape.json"]);
        check_message(&refused(&made), parts);
    };
    check(&|json| json["surprise"] = 1.into(), &["unknown field `surprise`"]);
    check(&|json| json["format_version"] = 2.into(), &["version 2", "expected 1"]);
    check(&|json| json["format_version"] = "1".into(), &["expected u32"]);
    check(&|json| json["documents"] = (-3).into(), &["-3", "u64"]);
    check(&|json| json["documents"] = 21.into(), &["21 documents in 20 tokens"]);
    check(&|json| json["byte_lengths"]["count"] = 19.into(), &["20 tokens but 19 byte lengths"]);
    check(&|json| json["tokenizer"]["vocabulary"] = 11.into(), &["vocabulary of 11"]);
    check(&|json| json["end_of_document"]["id"] = 0.into(), &["end-of-document id 0"]);
    check(&|json| json["tokens"]["sha256"] = "abc".into(), &["64 lower-case hexadecimal"]);
    check(&|json| *json = serde_json::json!([]), &["no valid sidecar"]);
    check(&|json| json["element"] = "u64".into(), &["unknown variant `u64`"]);
    check(
        &|json| json["element"] = "u16".into(),
        &["size of an id by its name is 4", "expected 2"],
    );
    let again = json_list(&good["tokens"]["blocks"][0], 2);
    check(&|json| json["tokens"]["blocks"] = again.clone(), &["2 hashes of blocks", "expected 1"]);
    check(
        &|json| {
            json["tokens"]["count"] = u64::MAX.into();
            json["byte_lengths"]["count"] = u64::MAX.into();
        },
        &["more than a file can hold"],
    );

    made.folder.write("train.tape.json", [0xFF, 0xFE]);
    check_message(&refused(&made), &["no valid sidecar", "prepare the tape again"]);
}

#[test]
fn checksums_are_read_as_they_are_written() {
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(Checksum::of(b"").to_string(), empty);
    assert_eq!(empty.parse::<Checksum>().unwrap(), Checksum::of(b""));
    assert_eq!(Checksum::of(b"").split_key(), 0x9afb_f4c8_996f_b924);
    for wrong in ["", "e3", &empty[1..], &empty.to_uppercase(), &empty.replace('e', "\u{e9}")] {
        wrong.parse::<Checksum>().unwrap_err();
    }
}

proptest! {
    #[test]
    fn no_sidecar_makes_a_panic(cut in 0_usize..2000, at in 0_usize..2000, byte: u8) {
        let made = HandMade::new(8);
        let path = made.files.sidecar.as_ref().unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        bytes.truncate(cut);
        if let Some(there) = bytes.get_mut(at) {
            *there = byte;
        }
        std::fs::write(path, bytes).unwrap();
        // Names and such may change without harm; then the tape opens.
        let _ = Tape::open(&made.files, Some(HAND_MADE_VOCABULARY));
    }

    #[test]
    fn no_tape_makes_a_panic(ids: Vec<u8>, lengths: Vec<u8>, vocabulary: u32) {
        let made = HandMade::new(8);
        std::fs::write(&made.files.tokens, ids).unwrap();
        std::fs::write(made.files.byte_lengths.as_ref().unwrap(), lengths).unwrap();
        let _ = Tape::open(&made.files, Some(vocabulary));
        let files = TapeFiles { sidecar: None, ..made.files.clone() };
        let _ = Tape::open(&files, Some(vocabulary));
    }
}
