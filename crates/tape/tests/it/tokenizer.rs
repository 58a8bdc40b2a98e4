//! The tokenizer: exact round trips, the ids of the library's own pipeline, and hostile files.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use tape::Error;
use tape::sources::{InMemory, SourceOptions, Sources};
use tape::tokenizer::Tokenizer;

use super::fixture::{
    Folder, check_message, crate_file, go_on, repository, shared_data, updates_golden, with_threads,
};

static BUNDLED: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::bundled);

/// The same file in the library that defines the format.
static LIBRARY: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
    tokenizers::Tokenizer::from_file(repository().join("tokenizer/tokenizer.json")).unwrap()
});

const SAMPLES: [&str; 12] = [
    "Once upon a time, there was a little fox.",
    "It's what they'd've said: \u{201c}Don't!\u{201d}",
    "  two leading spaces\n\n\tand a tab",
    "trailing spaces   ",
    "numbers 3.14159 and 1,000,000",
    "<|endoftext|>",
    "caf\u{e9}, na\u{ef}ve, \u{3b1}\u{3b2}\u{3b3}, \u{65e5}\u{672c}\u{8a9e}",
    "\u{1F600} \u{1F469}\u{200D}\u{1F680}",
    "\u{a0}\u{3000}\u{2028}",
    "fn main() { println!(\"hello\"); }",
    "\0\u{1}\u{7f}",
    "AAAAAAAAAAAAAAAAaaaaaaaaaaaaaaaa",
];

#[test]
fn the_bundled_tokenizer_is_as_the_design_says() {
    let tokenizer = &*BUNDLED;
    assert_eq!(tokenizer.entries(), 12_095);
    assert_eq!(tokenizer.end_of_document(), 12_095);
    assert_eq!(tokenizer.vocabulary(), 12_096);
    let lengths = tokenizer.byte_lengths();
    assert_eq!(lengths.len(), 12_096);
    for (id, &length) in lengths.iter().enumerate() {
        let bytes = tokenizer.token_bytes(id as u32).unwrap();
        assert_eq!(bytes.len(), usize::from(length));
        assert_eq!(length == 0, id == 12_095, "only the end of document stands for no text");
    }
    assert_eq!(tokenizer.token_bytes(12_096), None);
    assert_eq!(format!("{tokenizer:?}").matches("12095").count(), 1);
}

#[test]
fn the_end_of_document_is_no_text() {
    let ids = BUNDLED.encode("<|endoftext|>");
    assert!(ids.len() > 1);
    let with_ends: Vec<u32> = ids.iter().flat_map(|&id| [id, 12_095]).collect();
    assert_eq!(BUNDLED.decode(&with_ends).unwrap(), "<|endoftext|>");
}

#[test]
fn parts_of_characters_decode_to_replacement_characters() {
    let byte = |byte: u8| {
        (0..12_095).find(|&id| BUNDLED.token_bytes(id) == Some(&[byte])).expect("all bytes are in")
    };
    assert_eq!(BUNDLED.decode(&[byte(b'a'), byte(0xC3)]).unwrap(), "a\u{fffd}");
    assert_eq!(BUNDLED.decode(&[byte(0xC3), byte(0xA9)]).unwrap(), "\u{e9}");
    assert_eq!(BUNDLED.decode(&[byte(0xA9), byte(b'b')]).unwrap(), "\u{fffd}b");
    let error = BUNDLED.decode(&[1, 12_096]).unwrap_err();
    check_message(&error, &["id 12096 at position 1", "vocabulary of 12096"]);
}

#[test]
fn samples_have_their_golden_ids() {
    let mut text = String::new();
    for sample in SAMPLES {
        let ids: Vec<String> = BUNDLED.encode(sample).iter().map(u32::to_string).collect();
        writeln!(text, "{sample:?}\n    {}", ids.join(" ")).unwrap();
    }
    let path = crate_file("tests/it/golden/tokenizer.txt");
    if updates_golden() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text);
}

#[test]
fn a_word_without_end_is_encoded() {
    let text = "ab".repeat(1_500_000);
    assert_eq!(BUNDLED.decode(&BUNDLED.encode(&text)).unwrap(), text);
}

#[test]
fn batches_are_the_same_for_any_number_of_threads() {
    let texts: Vec<String> = (0..200).map(|i| SAMPLES[i % 12].repeat(i % 7)).collect();
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| BUNDLED.encode(text)).collect();
    for threads in [1, 2, 5] {
        assert_eq!(with_threads(threads, || BUNDLED.encode_batch(&texts)), expected);
    }
}

#[track_caller]
fn check(text: &str) {
    let ids = BUNDLED.encode(text);
    assert_eq!(BUNDLED.decode(&ids).unwrap(), text);
    let bytes: usize = ids.iter().map(|&id| usize::from(BUNDLED.byte_lengths()[id as usize])).sum();
    assert_eq!(bytes, text.len());
    assert!(ids.iter().all(|&id| id < BUNDLED.entries()));
    assert_eq!(ids, LIBRARY.encode_fast(text, false).unwrap().get_ids(), "{text:?}");
}

#[test]
fn samples_come_back() {
    SAMPLES.into_iter().for_each(check);
}

proptest! {
    #[test]
    fn any_text_comes_back_and_has_the_ids_of_the_library(text in "(?s).{0,80}") {
        check(&text);
    }

    #[test]
    fn long_words_have_the_ids_of_the_library(text in "([a-e]{0,300}|[a-z]{40,60}|(the|ing|tion){10,90})") {
        check(&text);
    }

    #[test]
    fn any_ascii_text_comes_back(text in "[ -~\\n\\t]{0,200}") {
        check(&text);
    }

    #[test]
    fn any_ids_decode(ids in prop::collection::vec(0_u32..12_096, 0..50)) {
        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| BUNDLED.token_bytes(id).unwrap()).copied().collect();
        prop_assert_eq!(BUNDLED.decode(&ids).unwrap(), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn real_text_has_the_ids_of_the_library() {
    for name in ["books-valid", "prose-web-valid"] {
        let Some(paths) = shared_data(&[&format!("{name}.jsonl.zst")]) else { return };
        let documents = Sources::open(&paths, SourceOptions::default()).unwrap();
        let texts: Vec<String> = documents.map(|document| document.unwrap().text).collect();
        let ours = BUNDLED.encode_batch(&texts);
        let theirs = LIBRARY.encode_batch_fast(texts.iter().map(String::as_str).collect(), false);
        for ((ours, theirs), text) in ours.iter().zip(theirs.unwrap()).zip(&texts) {
            assert!(ours == theirs.get_ids(), "{name}: {}", &text[..40]);
        }
    }
}

/// A few hundred different sentences.
fn sentences() -> Vec<String> {
    let (who, what) = (["fox", "owl", "badger", "hare"], ["river", "hill", "lantern", "kite"]);
    let of = |i: usize| {
        format!(
            "The {} number {i} saw the {} and the {}.\n",
            who[i % 4],
            what[i / 4 % 4],
            what[i % 3]
        )
    };
    (0..300).map(of).collect()
}

fn train(texts: Vec<String>, entries: usize) -> Result<Tokenizer, Error> {
    Tokenizer::train(&mut InMemory::new("texts", texts), entries, &mut go_on)
}

#[test]
fn training_depends_on_the_text_alone() {
    let texts = sentences();
    let first = train(texts.clone(), 320).unwrap();
    assert_eq!(first.entries(), 320);
    let mut reversed = texts.clone();
    reversed.reverse();
    for threads in [1, 2, 5] {
        let again = with_threads(threads, || train(reversed.clone(), 320).unwrap());
        assert_eq!(again.sha256(), first.sha256());
    }

    let folder = Folder::new();
    let path = folder.path().join("tokenizer.json");
    first.save(&path).unwrap();
    assert_eq!(folder.names(), ["tokenizer.json"]);
    let loaded = Tokenizer::load(&path).unwrap();
    assert_eq!(loaded.sha256(), first.sha256());
    let text = texts.concat();
    assert_eq!(loaded.encode(&text), first.encode(&text));
    assert_eq!(loaded.decode(&loaded.encode(&text)).unwrap(), text);
    assert!(loaded.encode(&text).len() < text.len() * 2 / 3, "training made the text shorter");
}

#[test]
fn training_says_what_is_wrong() {
    let check = |result: Result<Tokenizer, Error>, parts: &[&str]| {
        check_message(&result.unwrap_err(), parts);
    };
    check(train(sentences(), 255), &["255 entries is too small", "256"]);
    check(train(sentences(), 50_000), &["of 50000 tokenizer entries", "give more text"]);
    check(train(Vec::new(), 300), &["corpus is empty"]);
    let mut stop = |_| ControlFlow::Break(());
    let mut texts = InMemory::new("texts", sentences());
    check(Tokenizer::train(&mut texts, 300, &mut stop), &["stopped on request"]);
}

#[test]
fn the_bundled_tokenizer_can_be_trained_again() {
    let of =
        |set: &str| (0..3).map(|i| format!("{set}-train-{i:02}.jsonl.zst")).collect::<Vec<_>>();
    let names = [of("books"), of("prose-web")].concat();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(paths) = shared_data(&names) else { return };
    let mut documents = Sources::open(&paths, SourceOptions::default()).unwrap();
    let trained = Tokenizer::train(&mut documents, 12_095, &mut go_on).unwrap();
    assert_eq!(trained.sha256(), BUNDLED.sha256());
}

/// A small valid tokenizer file to be broken.
static SMALL: LazyLock<serde_json::Value> = LazyLock::new(|| {
    let folder = Folder::new();
    let path = folder.path().join("tokenizer.json");
    train(sentences(), 260).unwrap().save(&path).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
});

fn load(bytes: impl AsRef<[u8]>) -> Result<Tokenizer, Error> {
    Tokenizer::load(&Folder::new().write("tokenizer.json", bytes))
}

#[test]
fn other_tokenizers_are_refused() {
    let check = |change: &dyn Fn(&mut serde_json::Value), parts: &[&str]| {
        let mut json = SMALL.clone();
        change(&mut json);
        let error = load(json.to_string()).unwrap_err();
        check_message(&error, &["tokenizer.json: expected", "tokenizer train"]);
        check_message(&error, parts);
    };
    load(SMALL.to_string()).unwrap();
    check(&|json| *json = 5.into(), &["something else"]);
    check(&|json| json["surprise"] = 5.into(), &["unknown field `surprise`"]);
    check(
        &|json| json["normalizer"] = serde_json::json!({"type": "NFC"}),
        &["no normalizer", "NFC"],
    );
    check(&|json| json["added_tokens"] = serde_json::json!([{"id": 0}]), &["no added tokens"]);
    check(
        &|json| json["pre_tokenizer"]["add_prefix_space"] = true.into(),
        &["without prefix space"],
    );
    check(&|json| json["pre_tokenizer"]["use_regex"] = false.into(), &["ByteLevel"]);
    check(&|json| json["decoder"] = serde_json::Value::Null, &["the decoder ByteLevel"]);
    check(&|json| json["model"]["type"] = "WordPiece".into(), &["type BPE", "WordPiece"]);
    check(&|json| json["model"]["dropout"] = 0.5.into(), &["no dropout", "0.5"]);
    check(&|json| json["model"]["unk_token"] = "<unk>".into(), &["no unknown token"]);
    check(&|json| json["model"]["byte_fallback"] = true.into(), &["no byte fallback"]);
    check(&|json| json["model"]["ignore_merges"] = true.into(), &["not ignored"]);
}

#[test]
fn impossible_vocabularies_are_refused() {
    let check = |change: &dyn Fn(&mut serde_json::Value), parts: &[&str]| {
        let mut model = SMALL["model"].clone();
        change(&mut model);
        let mut json = SMALL.clone();
        json["model"] = model;
        check_message(&load(json.to_string()).unwrap_err(), parts);
    };
    let rename = |model: &mut serde_json::Value, from: &str, to: &str| {
        let vocab = model["vocab"].as_object_mut().unwrap();
        let id = vocab.remove(from).unwrap();
        vocab.insert(to.to_owned(), id);
    };
    check(&|model| model["vocab"]["a"] = 9_999.into(), &["id 64 is missing"]);
    check(&|model| model["vocab"]["a"] = 0.into(), &["id 1 is missing", "or there twice"]);
    check(&|model| model["vocab"]["a"] = (-1).into(), &["something else"]);
    check(&|model| rename(model, "q", "qqq"), &["an entry for every byte", "113"]);
    check(&|model| rename(model, "q", "\u{4e00}"), &["names spelled in bytes", "\u{4e00}"]);
    check(&|model| rename(model, "q", ""), &["of 0 bytes"]);
    check(&|model| rename(model, "q", &"q".repeat(65_536)), &["of 65536 bytes"]);
    let merges = |model: &mut serde_json::Value, merge| model["merges"] = merge;
    check(&|model| merges(model, serde_json::json!([["a", "zzz"]])), &["\"zzz\""]);
    check(&|model| merges(model, serde_json::json!([["q", "q"]])), &["without entry \"qq\""]);
    check(&|model| merges(model, serde_json::json!(["a b"])), &["something else"]);
}

#[test]
fn a_file_of_another_program_that_is_no_tokenizer() {
    for json in ["0", "[]", "null", "\"model\"", "{}", "{\"model\": 1}"] {
        let error = Tokenizer::from_foreign(json.as_bytes(), Path::new("t.json")).unwrap_err();
        check_message(&error, &["t.json", "a tokenizer with a model"]);
    }
}

#[test]
fn a_missing_tokenizer_is_named() {
    let error = Tokenizer::load(Path::new("no/tokenizer.json")).unwrap_err();
    check_message(&error, &["cannot read no/tokenizer.json", "check the path"]);
}

proptest! {
    #[test]
    fn no_tokenizer_file_makes_a_panic(cut in 0_usize..9000, at in 0_usize..9000, byte: u8) {
        let mut bytes = SMALL.to_string().into_bytes();
        if let Some(there) = bytes.get_mut(at) {
            *there = byte;
        }
        let whole = load(&bytes);
        if let Ok(tokenizer) = whole {
            let text = "The fox saw the kite.";
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(text)).unwrap(), text);
        }
        let _ = Tokenizer::from_foreign(&bytes, Path::new("t.json"));
        bytes.truncate(cut);
        let _ = load(&bytes);
    }
}
