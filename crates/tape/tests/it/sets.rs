//! Sets of tapes, ids of 16 bits, equal texts, and preparations that are made once.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use tape::layout::set::TapeSet;
use tape::layout::{Element, Part, TapeFiles};
use tape::prepare::{PrepareOptions, Prepared, Split, estimate, prepare};
use tape::reader::{Tape, TapeSource, Verify};
use tape::sources::{InMemory, SourceOptions, Sources};
use tape::tokenizer::Tokenizer;
use tape::writer::Form;

use super::fixture::{Folder, HandMade, check_message, go_on, ids_of, with_threads};

static BUNDLED: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::bundled);

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("Text number {i} of {count}, with caf\u{e9}s.\n")).collect()
}

fn options(folder: &Path, form: Form) -> PrepareOptions {
    let split = Split::ByHash { validation_fraction: 0.1 };
    PrepareOptions { form, ..PrepareOptions::new(folder, split) }
}

fn run(options: &PrepareOptions, texts: &[String]) -> Result<Prepared, tape::Error> {
    let mut documents = InMemory::new("texts", texts.iter().cloned());
    prepare(&mut documents, &BUNDLED, options, &mut go_on)
}

fn open(source: &TapeSource, verify: Verify) -> Result<Tape, tape::Error> {
    Tape::open_with(source, Some(BUNDLED.vocabulary()), verify)
}

#[test]
fn every_form_holds_the_same_tokens() {
    let texts = texts(3000);
    let whole = Folder::new();
    let expected = run(&options(whole.path(), Form::default()), &texts).unwrap().tapes;
    for element in Element::ALL {
        for shard_tokens in [None, Some(1), Some(777), Some(10_000_000)] {
            if shard_tokens == Some(1) && element == Element::U32 {
                continue; // One such case is enough, it takes a file a token.
            }
            let texts = if shard_tokens == Some(1) { &texts[..40] } else { &texts[..] };
            let folder = Folder::new();
            let options = options(folder.path(), Form { element, shard_tokens });
            let prepared = with_threads(2, || run(&options, texts).unwrap());
            for (tape, expected) in prepared.tapes.iter().zip(&expected) {
                for verify in [Verify::Now, Verify::WhenRead] {
                    let opened = open(&tape.source, verify).unwrap();
                    assert_eq!(opened.element(), element);
                    assert_eq!((opened.len(), opened.checksum()), (tape.count, tape.sha256));
                    assert_eq!(opened.source_bytes(), Some(tape.source_bytes));
                    assert_eq!(opened.tokenizer().unwrap().sha256, BUNDLED.sha256());
                    if texts.len() == 40 {
                        continue;
                    }
                    let of_expected = open(&expected.source, Verify::Now).unwrap();
                    assert!(
                        ids_of(&opened) == ids_of(&of_expected),
                        "{element:?} {shard_tokens:?}"
                    );
                    let reads = [0..1, 776..778, 700..5000, tape.count - 3..tape.count];
                    for range in reads.into_iter().filter(|range| range.end <= tape.count) {
                        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                        opened.read(range.clone(), &mut ours).unwrap();
                        of_expected.read(range.clone(), &mut theirs).unwrap();
                        assert_eq!(ours, theirs);
                        let bytes = opened.source_bytes_of(range.clone()).unwrap();
                        assert_eq!(bytes, of_expected.source_bytes_of(range).unwrap());
                    }
                }
                if texts.len() > 40 && element == Element::U32 {
                    assert_eq!(tape.sha256, expected.sha256, "a set is known by its tokens");
                }
            }
        }
    }
}

#[test]
fn a_set_without_its_list_or_with_another_file_is_refused() {
    let folder = Folder::new();
    let form = Form { shard_tokens: Some(5000), ..Form::default() };
    let prepared = run(&options(folder.path(), form), &texts(3000)).unwrap();
    let source = &prepared.tapes[0].source;
    let list = TapeSet::in_folder(folder.path(), Part::Train);
    assert_eq!(source, &TapeSource::at(&list));
    let stem = TapeSet::stem(Part::Train, 1);
    let files = TapeFiles::with_stem(folder.path(), &stem, Element::U32);

    // A tape of the same size in the place of another, true to its own sidecar.
    let good = std::fs::read(&files.tokens).unwrap();
    let other = HandMade::of(vec![1; 5000], vec![1; 5000]);
    std::fs::copy(other.files.sidecar.as_ref().unwrap(), files.sidecar.as_ref().unwrap()).unwrap();
    std::fs::copy(&other.files.tokens, &files.tokens).unwrap();
    let error = open(source, Verify::WhenRead).unwrap_err();
    check_message(&error, &["train-00001.tape.json", "train.tape-set.json", "the SHA-256"]);
    std::fs::write(&files.tokens, good).unwrap();
    std::fs::remove_file(files.sidecar.unwrap()).unwrap();
    check_message(
        &open(source, Verify::Now).unwrap_err(),
        &["cannot read", "train-00001.tape.json"],
    );
    std::fs::remove_file(&list).unwrap();
    check_message(&open(source, Verify::Now).unwrap_err(), &["cannot read", "train.tape-set.json"]);
}

#[test]
fn lists_are_parsed_with_suspicion() {
    let folder = Folder::new();
    let form = Form { shard_tokens: Some(5000), ..Form::default() };
    run(&options(folder.path(), form), &texts(3000)).unwrap();
    let list = TapeSet::in_folder(folder.path(), Part::Train);
    let good: serde_json::Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
    let check = |change: &dyn Fn(&mut serde_json::Value), parts: &[&str]| {
        let mut json = good.clone();
        change(&mut json);
        std::fs::write(&list, json.to_string()).unwrap();
        check_message(&TapeSet::load(&list).unwrap_err(), parts);
    };
    check(&|json| json["format_version"] = 7.into(), &["version 7", "expected 1"]);
    check(&|json| json["count"] = 3.into(), &["3 tokens", "not the sum"]);
    check(&|json| json["shards"] = serde_json::json!([]), &["a set without files"]);
    check(&|json| json["shards"][0]["stem"] = "../x".into(), &["\"../x\" outside its folder"]);
    check(&|json| json["surprise"] = 1.into(), &["unknown field `surprise`"]);
    check(&|json| json["shards"][0]["count"] = u64::MAX.into(), &["not the sum"]);
}

#[test]
fn ids_that_do_not_fit_are_refused() {
    // Every pair of bytes is an entry, so there are 65,792.
    let mut json: serde_json::Value = serde_json::from_slice(BUNDLED.json()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut names: Vec<(u64, &String)> =
        vocab.iter().map(|(name, id)| (id.as_u64().unwrap(), name)).collect();
    names.sort();
    let bytes: Vec<String> = names[..256].iter().map(|(_, name)| (*name).clone()).collect();
    let pairs: Vec<[&String; 2]> =
        bytes.iter().flat_map(|a| bytes.iter().map(move |b| [a, b])).collect();
    let of_pairs = pairs.iter().map(|pair| format!("{}{}", pair[0], pair[1]));
    let names = bytes.iter().cloned().chain(of_pairs).zip(0..);
    json["model"]["vocab"] =
        names.map(|(name, id)| (name, id.into())).collect::<serde_json::Map<_, _>>().into();
    json["model"]["merges"] = serde_json::to_value(&pairs).unwrap();
    let json = json.to_string().into_bytes();
    let tokenizer = Tokenizer::from_json(json, Path::new("pairs.json")).unwrap();
    let folder = Folder::new();
    let form = Form { element: Element::U16, shard_tokens: None };
    let mut documents = InMemory::new("text", ["x"]);
    let options =
        PrepareOptions { form, ..PrepareOptions::new(folder.path(), Split::Whole(Part::Train)) };
    let error = prepare(&mut documents, &tokenizer, &options, &mut go_on).unwrap_err();
    check_message(&error, &["2 bytes", "65536", "65793", "use u32"]);
}

#[test]
fn equal_texts_are_kept_once_by_choice() {
    let folder = Folder::new();
    let mut twice = texts(2000);
    twice.extend(texts(2000));
    twice.push("Another.".to_owned());
    let mut options = options(folder.path(), Form::default());
    options.deduplicate = true;
    let prepared = run(&options, &twice).unwrap();
    let documents: u64 = prepared.tapes.iter().map(|tape| tape.documents).sum();
    assert_eq!(documents, 2001);
    assert!(prepared.tapes.iter().all(|tape| tape.preparation.duplicate_documents == 2000));
    options.overwrite = true;
    let again = with_threads(3, || run(&options, &twice).unwrap());
    assert_eq!(again, prepared);
    assert_eq!(folder.names().len(), 6, "nothing else is left: {:?}", folder.names());
}

fn from_files(folder: &Folder, options: &PrepareOptions) -> Result<Prepared, tape::Error> {
    let reading = SourceOptions::default();
    let mut sources = Sources::open(&[folder.path().join("texts")], reading).unwrap();
    prepare(&mut sources, &BUNDLED, options, &mut |progress| {
        assert!(progress.documents > 0);
        ControlFlow::Continue(())
    })
}

#[test]
fn what_is_prepared_already_is_reused_and_nothing_stale_is() {
    let folder = Folder::new();
    for (i, text) in texts(300).iter().enumerate() {
        folder.write(&format!("texts/{i:03}.txt"), text);
    }
    let output = Folder::new();
    for form in [Form::default(), Form { element: Element::U16, shard_tokens: Some(900) }] {
        let mut options = options(output.path(), form);
        options.overwrite = true;
        let made = from_files(&folder, &options).unwrap();
        assert!(!made.reused);
        options.overwrite = false;
        let again = from_files(&folder, &options).unwrap();
        assert!(again.reused);
        assert!(again.tapes == made.tapes);

        // Other options, other text, or a damaged tape: not the same.
        let other = PrepareOptions { deduplicate: true, ..options.clone() };
        check_message(&from_files(&folder, &other).unwrap_err(), &["exists", "overwriting"]);
        let before = std::fs::read(folder.path().join("texts/007.txt")).unwrap();
        folder.write("texts/007.txt", "changed");
        check_message(&from_files(&folder, &options).unwrap_err(), &["exists"]);
        folder.write("texts/007.txt", before);
        assert!(from_files(&folder, &options).unwrap().reused);
        let name = output.names().into_iter().find(|name| name.contains(".tokens.")).unwrap();
        let mut bytes = std::fs::read(output.path().join(&name)).unwrap();
        bytes[100] ^= 1;
        output.write(&name, bytes);
        check_message(&from_files(&folder, &options).unwrap_err(), &["exists"]);
    }
    // The earlier form is gone, and only the earlier form.
    let names = output.names();
    assert!(names.contains(&"train.tape-set.json".to_owned()));
    assert!(!names.iter().any(|name| name.starts_with("train.tokens")), "{names:?}");
}

#[test]
fn an_estimate_of_everything_is_exact_and_of_a_part_close() {
    let folder = Folder::new();
    let many = texts(60_000);
    for (i, texts) in many.chunks(1000).enumerate() {
        folder.write(&format!("texts/{i:03}.txt"), texts.concat());
    }
    let output = Folder::new();
    let options = options(output.path(), Form { element: Element::U16, shard_tokens: None });
    let sources = || Sources::open(&[folder.path()], SourceOptions::default()).unwrap();
    let whole = estimate(&mut sources(), &BUNDLED, &options, u64::MAX).unwrap();
    let part = estimate(&mut sources(), &BUNDLED, &options, 100_000).unwrap();
    assert!(whole.whole && !part.whole);
    assert_eq!(output.names(), [""; 0], "nothing is written");
    let made = prepare(&mut sources(), &BUNDLED, &options, &mut go_on).unwrap().tapes;
    let tokens: u64 = made.iter().map(|tape| tape.count).sum();
    assert_eq!(whole.tokens, tokens as f64);
    assert_eq!(whole.disk_bytes, 4.0 * tokens as f64);
    assert!((part.tokens / whole.tokens - 1.0).abs() < 0.1, "{part:?} {whole:?}");
    let empty = InMemory::new("none", [""; 0]);
    let error = estimate(&mut { empty }, &BUNDLED, &options, 10).unwrap_err();
    check_message(&error, &["corpus is empty"]);
}
