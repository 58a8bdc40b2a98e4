//! Documents to tapes: the same bytes always, whole tapes or none, and fair splits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use tape::Error;
use tape::checksum::Checksum;
use tape::layout::{Part, TapeFiles};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::{Tape, TapeSource, Verify};
use tape::sources::{Document, DocumentSource, InMemory, SourceOptions, SourceProgress, Sources};
use tape::tokenizer::Tokenizer;
use tape::writer::TapeRecord;

use super::fixture::{
    Folder, check_message, go_on, ids_of, prepare_whole, shared_data, with_threads,
};

static BUNDLED: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::bundled);

fn options(folder: &Path, split: Split) -> PrepareOptions {
    PrepareOptions::new(folder, split)
}

fn by_hash(validation_fraction: f64) -> Split {
    Split::ByHash { validation_fraction }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("Text number {i} of {count}, with caf\u{e9}s.\n")).collect()
}

fn run(options: &PrepareOptions, texts: &[String]) -> Result<Vec<TapeRecord>, Error> {
    let mut documents = InMemory::new("texts", texts.iter().cloned());
    prepare(&mut documents, &BUNDLED, options, &mut go_on).map(|prepared| prepared.tapes)
}

/// Name and content of every file, the lock aside.
fn contents(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let content = |name: String| (name.clone(), std::fs::read(folder.path().join(name)).unwrap());
    folder.names().into_iter().map(content).collect()
}

/// The documents of a tape, decoded.
fn texts_of(prepared: &TapeRecord) -> Vec<String> {
    let tape = Tape::open_with(&prepared.source, Some(BUNDLED.vocabulary()), Verify::Now).unwrap();
    let ids = ids_of(&tape);
    let mut documents: Vec<_> = ids.split(|&id| id == BUNDLED.end_of_document()).collect();
    assert_eq!(documents.pop(), Some(&[][..]), "the last document ends too");
    documents.into_iter().map(|ids| BUNDLED.decode(ids).unwrap()).collect()
}

#[test]
fn a_tape_holds_every_document_and_its_end() {
    let folder = Folder::new();
    let mut texts = numbered(50);
    texts[7] = String::new();
    let prepared = prepare_whole(folder.path(), &BUNDLED, &texts);
    assert_eq!(texts_of(&prepared), texts);

    let TapeRecord { documents, source_bytes, count, split, sources, .. } = &prepared;
    assert_eq!(*documents, 50);
    assert_eq!(*source_bytes, texts.concat().len() as u64);
    assert_eq!(*split, None);
    assert_eq!(sources.len(), 1);
    assert_eq!(prepared.bytes_per_token(), *source_bytes as f64 / *count as f64);
    assert_eq!(folder.names(), ["train.byte-lengths.u16", "train.tape.json", "train.tokens.u32"]);
    let files = TapeFiles::in_folder(folder.path(), Part::Train);
    assert_eq!(prepared.source, TapeSource::Files(files));
}

#[test]
fn tapes_are_the_same_bytes_for_any_number_of_threads() {
    // More than one batch, and one document of several pieces.
    let mut texts = numbered(100_000);
    texts[5] = texts[..5000].concat();
    let prepare_with = |threads| {
        let folder = Folder::new();
        let options = options(folder.path(), by_hash(0.1));
        with_threads(threads, || run(&options, &texts)).unwrap();
        contents(&folder)
    };
    let expected = prepare_with(1);
    assert_eq!(expected.len(), 6);
    for threads in [2, 5] {
        assert!(prepare_with(threads) == expected, "{threads} threads give other bytes");
    }
}

#[test]
fn a_long_document_has_the_ids_of_the_whole_text() {
    let folder = Folder::new();
    let text = numbered(20_000).concat();
    let prepared = prepare_whole(folder.path(), &BUNDLED, std::slice::from_ref(&text));
    let tape = Tape::open_with(&prepared.source, None, Verify::Now).unwrap();
    let mut expected = BUNDLED.encode(&text);
    expected.push(BUNDLED.end_of_document());
    assert!(ids_of(&tape) == expected);
}

#[test]
fn the_split_is_by_hash_and_complete() {
    let folder = Folder::new();
    let mut texts = numbered(4000);
    let tapes = run(&options(folder.path(), by_hash(0.1)), &texts).unwrap();
    assert_eq!((tapes[0].part, tapes[1].part), (Part::Train, Part::Validation));
    let (train, validation) = (texts_of(&tapes[0]), texts_of(&tapes[1]));
    assert!((300..500).contains(&validation.len()), "{} of 4000", validation.len());
    let below = |text: &String| Checksum::of(text.as_bytes()).split_key() < u64::MAX / 10 + 1;
    assert!(validation.iter().all(below));
    assert!(!train.iter().any(below));
    let split = tapes[1].split.unwrap();
    assert_eq!((split.part, split.validation_fraction), (Part::Validation, 0.1));

    // Order does not matter.
    texts.reverse();
    let other = Folder::new();
    let tapes = run(&options(other.path(), by_hash(0.1)), &texts).unwrap();
    let mut again = texts_of(&tapes[1]);
    again.reverse();
    assert_eq!(again, validation);
}

#[test]
fn a_corpus_that_was_chosen_by_leading_bytes_is_split_fairly() {
    let begins_low = |text: &String| Checksum::of(text.as_bytes()).to_string().as_str() < "4";
    let texts: Vec<String> = numbered(8000).into_iter().filter(begins_low).collect();
    let folder = Folder::new();
    let tapes = run(&options(folder.path(), by_hash(0.1)), &texts).unwrap();
    let share = tapes[1].documents as f64 / texts.len() as f64;
    assert!((0.06..0.14).contains(&share), "{share}");
}

#[test]
fn impossible_splits_are_refused() {
    let folder = Folder::new();
    for fraction in [0.0, 1.0, -0.1, f64::NAN, f64::INFINITY] {
        let error = run(&options(folder.path(), by_hash(fraction)), &numbered(9)).unwrap_err();
        check_message(&error, &["validation fraction", "more than 0 and less than 1"]);
    }
    let error = run(&options(folder.path(), by_hash(1e-9)), &numbered(9)).unwrap_err();
    check_message(&error, &["all 9 documents", "validation part", "0.000000001"]);
    let error = run(&options(folder.path(), by_hash(1.0 - 1e-9)), &numbered(9)).unwrap_err();
    check_message(&error, &["all 9 documents", "train part"]);
    let error = run(&options(folder.path(), by_hash(0.5)), &[]).unwrap_err();
    check_message(&error, &["corpus is empty"]);
    assert_eq!(folder.names(), [""; 0], "nothing is left behind");
}

#[test]
fn earlier_tapes_are_replaced_only_on_request() {
    let folder = Folder::new();
    let mut options = options(folder.path(), Split::Whole(Part::Train));
    run(&options, &numbered(5)).unwrap();
    let earlier = contents(&folder);
    let error = run(&options, &numbered(6)).unwrap_err();
    check_message(&error, &["train.", "exists", "allow overwriting"]);
    assert_eq!(contents(&folder), earlier);

    // A validation tape may be added to the same folder.
    options.split = Split::Whole(Part::Validation);
    run(&options, &numbered(6)).unwrap();
    assert_eq!(folder.names().len(), 6);

    options.split = Split::Whole(Part::Train);
    options.overwrite = true;
    let tapes = run(&options, &numbered(6)).unwrap();
    assert_eq!(texts_of(&tapes[0]), numbered(6));
}

/// Documents that end in an error.
struct Failing(InMemory<std::vec::IntoIter<String>>);

impl Iterator for Failing {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next().unwrap_or(Err(Error::EmptyFile { path: "last.txt".into() })))
    }
}

impl DocumentSource for Failing {
    fn records(&self) -> Vec<tape::layout::SourceRecord> {
        self.0.records()
    }

    fn progress(&self) -> SourceProgress {
        self.0.progress()
    }
}

#[test]
fn an_interrupted_preparation_leaves_earlier_tapes_as_they_were() {
    let folder = Folder::new();
    let mut options = options(folder.path(), by_hash(0.3));
    run(&options, &numbered(40)).unwrap();
    let earlier = contents(&folder);
    options.overwrite = true;

    let mut failing = Failing(InMemory::new("texts", numbered(50)));
    let error = prepare(&mut failing, &BUNDLED, &options, &mut go_on).unwrap_err();
    check_message(&error, &["last.txt is empty"]);
    assert_eq!(contents(&folder), earlier);

    let mut documents = InMemory::new("texts", numbered(50));
    let mut stop = |_| ControlFlow::Break(());
    let error = prepare(&mut documents, &BUNDLED, &options, &mut stop).unwrap_err();
    check_message(&error, &["stopped on request"]);
    assert_eq!(contents(&folder), earlier);

    // What a killed process left behind goes away with the next preparation.
    folder.write(".train.tokens.u32.77.partial", "half");
    run(&options, &numbered(40)).unwrap();
    assert_eq!(contents(&folder), earlier);
}

#[test]
fn two_preparations_do_not_share_a_folder() {
    let folder = Folder::new();
    let lock = std::fs::File::create(folder.path().join(".prepare.lock")).unwrap();
    lock.lock().unwrap();
    let options = options(folder.path(), Split::Whole(Part::Train));
    let error = run(&options, &numbered(5)).unwrap_err();
    check_message(&error, &["another process is preparing", "wait for it"]);
    lock.unlock().unwrap();
    run(&options, &numbered(5)).unwrap();
}

#[test]
fn an_output_folder_that_cannot_be_made_is_named() {
    let folder = Folder::new();
    let file = folder.write("taken", "");
    let options = options(&file.join("tapes"), Split::Whole(Part::Train));
    let error = run(&options, &numbered(5)).unwrap_err();
    check_message(&error, &["cannot write", "taken", "earlier files are unchanged"]);
}

#[test]
fn progress_grows_to_the_whole() {
    let folder = Folder::new();
    let texts = numbered(200_000);
    let mut documents = InMemory::new("texts", texts.iter().cloned());
    let options = options(folder.path(), Split::Whole(Part::Train));
    let mut seen = Vec::new();
    let mut note = |progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    };
    let tapes = prepare(&mut documents, &BUNDLED, &options, &mut note).unwrap().tapes;
    assert!(seen.len() > 1 && seen.is_sorted_by_key(|progress| progress.tokens));
    let last = seen.last().unwrap();
    assert_eq!(last.documents, 200_000);
    assert_eq!(last.text_bytes, tapes[0].source_bytes);
    assert_eq!(last.tokens, tapes[0].count);
    assert_eq!(last.source.bytes_read, last.text_bytes);
}

/// The figures of docs/data.md.
#[test]
fn held_out_text_has_the_documented_bytes_per_token() {
    for (name, bytes, tokens) in [
        ("books-valid", 2_074_692, 544_783),
        ("prose-web-valid", 2_061_427, 505_315),
        ("lite-valid", 2_131_859, 545_439),
    ] {
        let Some(paths) = shared_data(&[&format!("{name}.jsonl.zst")]) else { return };
        let folder = Folder::new();
        let mut documents = Sources::open(&paths, SourceOptions::default()).unwrap();
        let options = options(folder.path(), Split::Whole(Part::Validation));
        let tapes = prepare(&mut documents, &BUNDLED, &options, &mut go_on).unwrap().tapes;
        assert_eq!((tapes[0].source_bytes, tapes[0].count), (bytes, tokens), "{name}");
    }
}
