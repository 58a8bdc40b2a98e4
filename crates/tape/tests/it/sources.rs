//! Files to documents: what they become, and the message for everything that is wrong.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use tape::Error;
use tape::checksum::Checksum;
use tape::sources::{Document, DocumentSource, InMemory, SourceOptions, Sources};

use super::fixture::{Folder, check_message};

fn open(path: &Path) -> Sources {
    Sources::open(&[path], SourceOptions::default()).unwrap()
}

fn texts(path: &Path) -> Vec<String> {
    open(path).map(|document| document.unwrap().text).collect()
}

#[track_caller]
fn refused(path: &Path) -> Error {
    match Sources::open(&[path], SourceOptions::default()) {
        Err(error) => error,
        Ok(mut sources) => {
            let error = sources.find_map(Result::err).expect("an error");
            assert!(sources.next().is_none(), "nothing follows an error");
            error
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd_with_window(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(window_log).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn text_files_are_documents_as_they_are() {
    let folder = Folder::new();
    for name in ["a.txt", "b.md", "c.markdown", "D.TXT"] {
        let path = folder.write(name, "# One\r\n\r\ntwo \u{e9}");
        assert_eq!(texts(&path), ["# One\r\n\r\ntwo \u{e9}"]);
    }
}

#[test]
fn a_byte_order_mark_is_dropped_at_the_start_only() {
    let folder = Folder::new();
    let path = folder.write("a.txt", "\u{feff}one \u{feff}");
    assert_eq!(texts(&path), ["one \u{feff}"]);
    let path = folder.write("a.jsonl", "\u{feff}{\"text\": \"one\"}\n{\"text\": \"\u{feff}\"}");
    assert_eq!(texts(&path), ["one", "\u{feff}"]);
}

#[test]
fn json_lines_give_the_named_field() {
    let folder = Folder::new();
    let lines = concat!(
        "{\"id\": [1, {\"text\": \"inner\"}], \"text\": \"one\\n\\u00e9\", \"x\": null}\r\n",
        "\n",
        "  {\"te\\u0078t\": \"two\"}\n",
        "{\"text\": \"no final newline\"}",
    );
    let path = folder.write("a.jsonl", lines);
    let documents: Vec<Document> = open(&path).map(Result::unwrap).collect();
    let names: Vec<_> = documents.iter().map(|document| document.name.as_str()).collect();
    assert_eq!(names, ["a.jsonl:1", "a.jsonl:3", "a.jsonl:4"]);
    assert_eq!(documents[0].text, "one\n\u{e9}");
    assert_eq!(documents[1].text, "two");

    let options = SourceOptions { field: "story".to_owned(), ..SourceOptions::default() };
    let path = folder.write("b.jsonl", "{\"text\": 1, \"story\": \"told\"}");
    let mut sources = Sources::open(&[path], options).unwrap();
    assert_eq!(sources.next().unwrap().unwrap().text, "told");
}

#[test]
fn compressed_files_are_like_plain_ones() {
    let folder = Folder::new();
    let (first, second) = ("{\"text\": \"one\"}\n", "{\"text\": \"two\"}\n");
    let members = [gzip(first.as_bytes()), gzip(second.as_bytes())].concat();
    let path = folder.write("a.jsonl.gz", members);
    assert_eq!(texts(&path), ["one", "two"]);

    let frames = [first, second].map(|text| zstd_with_window(text.as_bytes(), 27)).concat();
    let path = folder.write("a.jsonl.zst", frames);
    assert_eq!(texts(&path), ["one", "two"], "a window of 128 MiB is accepted");

    assert_eq!(texts(&folder.write("a.txt.gz", gzip(b"plain"))), ["plain"]);
    assert_eq!(texts(&folder.write("a.md.zst", zstd_with_window(b"plain", 20))), ["plain"]);
}

#[test]
fn damaged_compression_is_named() {
    let folder = Folder::new();
    let lines = "{\"text\": \"words and more words\"}\n".repeat(50);
    let advice = ["cannot decompress", "damaged or cut short", "--long=27"];

    let mut bytes = gzip(lines.as_bytes());
    bytes.truncate(bytes.len() - 12);
    check_message(&refused(&folder.write("a.jsonl.gz", bytes)), &advice);

    let mut bytes = zstd_with_window(lines.as_bytes(), 20);
    bytes.truncate(bytes.len() - 3);
    check_message(&refused(&folder.write("a.jsonl.zst", bytes)), &advice);

    let bytes = zstd_with_window(lines.as_bytes(), 28);
    check_message(&refused(&folder.write("b.jsonl.zst", bytes)), &advice);
    check_message(&refused(&folder.write("c.jsonl.zst", b"no zstd")), &advice);
    check_message(&refused(&folder.write("d.txt.gz", b"no gzip")), &advice);
}

#[test]
fn folders_are_walked_in_the_order_of_names() {
    let folder = Folder::new();
    for name in ["b.txt", "a/z.md", "a/b/c.txt", "c.jsonl", ".hidden/x.txt", ".y.txt", "d.pdf"] {
        folder.write(&format!("corpus/{name}"), format!("{{\"text\": \"{name}\"}}"));
    }
    let path = folder.path().join("corpus");
    let names: Vec<_> = open(&path).map(|document| document.unwrap().name).collect();
    assert_eq!(names, ["corpus/a/b/c.txt", "corpus/a/z.md", "corpus/b.txt", "corpus/c.jsonl:1"]);

    let mut sources = open(&path.join("."));
    assert_eq!(sources.next().unwrap().unwrap().name, "corpus/a/b/c.txt");
}

#[test]
fn records_have_the_hash_of_the_stored_bytes() {
    let folder = Folder::new();
    let stored = gzip(b"{\"text\": \"one\"}\n");
    let (first, second) = (folder.write("a.jsonl.gz", &stored), folder.write("b.txt", "text"));
    let mut sources = Sources::open(&[second, first], SourceOptions::default()).unwrap();
    assert_eq!(sources.progress().bytes_total, Some(4 + stored.len() as u64));
    assert_eq!(sources.progress().bytes_read, 0);
    assert_eq!(sources.by_ref().count(), 2);
    assert_eq!(Some(sources.progress().bytes_read), sources.progress().bytes_total);

    let records = sources.records();
    assert_eq!((records[0].name.as_str(), records[1].name.as_str()), ("b.txt", "a.jsonl.gz"));
    assert_eq!((records[0].bytes, records[0].sha256), (4, Checksum::of(b"text")));
    assert_eq!(records[1].bytes, stored.len() as u64);
    assert_eq!(records[1].sha256, Checksum::of(&stored));
}

#[test]
fn texts_in_memory_are_documents_with_a_record() {
    let mut documents = InMemory::new("rhymes", ["one", "", "two"]);
    let texts: Vec<_> = documents.by_ref().map(|document| document.unwrap().text).collect();
    assert_eq!(texts, ["one", "", "two"]);
    let record = documents.records().remove(0);
    assert_eq!((record.name.as_str(), record.bytes), ("rhymes", 6));
    assert_eq!(record.sha256, Checksum::of(b"one\xFF\xFFtwo\xFF"));
    assert_eq!(documents.progress().bytes_total, None);
}

#[test]
fn long_texts_are_cut_at_blank_lines() {
    let folder = Folder::new();
    let paragraph = "A sentence of a few words. ".repeat(20);
    let text = format!("{paragraph}\n\n").repeat(40);
    let path = folder.write("book.txt", format!("\u{feff}{text}"));
    let options = SourceOptions { text_bytes_max: Some(2000), ..SourceOptions::default() };
    let sources = Sources::open(&[&path], options).unwrap();
    let pieces: Vec<Document> = sources.map(Result::unwrap).collect();
    assert!(
        pieces.iter().all(|piece| piece.text.len() <= 2000 && piece.text.ends_with(".\u{20}\n\n"))
    );
    assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
    assert_eq!(pieces[0].name, "book.txt");
    assert_eq!(pieces[1].name, format!("book.txt+{}", pieces[0].text.len() + 3));

    let whole = SourceOptions { text_bytes_max: None, ..SourceOptions::default() };
    assert_eq!(Sources::open(&[&path], whole).unwrap().count(), 1);
    assert!(open(&path).count() > 1 || text.len() <= 32 << 10);
}

#[test]
fn wrong_paths_are_named() {
    let folder = Folder::new();
    let none: &[&Path] = &[];
    let error = Sources::open(none, SourceOptions::default()).unwrap_err();
    check_message(&error, &["no input", "name at least one"]);
    let missing = folder.path().join("missing.txt");
    check_message(&refused(&missing), &["cannot read", "missing.txt", "check the path"]);
    check_message(&refused(&folder.write("a.pdf", "x")), &["a.pdf", "no known kind", ".jsonl"]);
    check_message(&refused(folder.path()), &["folder", "holds no text", ".jsonl"]);
}

#[test]
fn files_without_text_are_named() {
    let folder = Folder::new();
    for (name, bytes) in
        [("a.txt", ""), ("b.txt", "\u{feff}"), ("c.jsonl", ""), ("d.jsonl", " \n\n")]
    {
        check_message(&refused(&folder.write(name, bytes)), &[name, "is empty", "leave it out"]);
    }
    let path = folder.write("e.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n");
    check_message(&refused(&path), &["e.jsonl, line 2", "document is empty", "remove"]);
}

#[test]
fn text_that_is_not_utf8_is_named_with_its_place() {
    let folder = Folder::new();
    let path = folder.write("a.txt", b"caf\xE9 au lait");
    check_message(&refused(&path), &["a.txt is not UTF-8 at byte 3", "iconv"]);

    let long = [b"word ".repeat(20_000), b"\xFF".to_vec()].concat();
    check_message(&refused(&folder.write("b.txt", long)), &["not UTF-8 at byte 100000"]);
    check_message(
        &refused(&folder.write("c.txt", &"\u{e9}".repeat(9).as_bytes()[..17])),
        &["not UTF-8 at byte 16"],
    );

    let path = folder.write("d.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"b\xFF\"}\n");
    check_message(&refused(&path), &["d.jsonl is not UTF-8 at byte 25"]);
}

#[test]
fn wrong_lines_are_named_with_their_number() {
    let folder = Folder::new();
    let check = |line: &str, problem: &str| {
        let path = folder.write("a.jsonl", format!("{{\"text\": \"fine\"}}\n{line}\n"));
        let place = ["a.jsonl, line 2: expected a JSON object", "\"text\"", problem, "column"];
        check_message(&refused(&path), &place);
    };
    check("{\"title\": \"x\"}", "the field is missing");
    check("{\"text\": \"x\", \"text\": \"y\"}", "the field is there twice");
    check("{\"text\": 5}", "invalid type: integer `5`, expected a string");
    check("{\"text\": null}", "invalid type: null");
    check("{\"text\": \"x\"", "EOF");
    check("{\"text\": \"x\"} {}", "trailing characters");
    check("{\"text\": \"\\ud800\"}", "hex escape");
    check("[\"text\"]", "invalid type: sequence");
    check("text", "expected");
    check(&format!("{{\"x\": {}", "[".repeat(100_000)), "EOF");
}

proptest! {
    #[test]
    fn pieces_put_together_are_the_text(text in "(?s).{0,400}", bytes_max in 0_usize..60) {
        prop_assume!(!text.is_empty() && !text.starts_with('\u{feff}'));
        let folder = Folder::new();
        let path = folder.write("a.txt", &text);
        let text_bytes_max = Some(bytes_max);
        let options = SourceOptions { text_bytes_max, ..SourceOptions::default() };
        let pieces: Vec<_> =
            Sources::open(&[path], options).unwrap().map(|piece| piece.unwrap().text).collect();
        prop_assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= bytes_max.max(4)));
        prop_assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn no_file_makes_a_panic(bytes: Vec<u8>, name in "a\\.(txt|md|jsonl)(\\.gz|\\.zst)?") {
        let folder = Folder::new();
        let path = folder.write(&name, bytes);
        let sources = Sources::open(&[path], SourceOptions::default()).unwrap();
        for document in sources {
            let _ = document;
        }
    }

    #[test]
    fn no_line_makes_a_panic(line in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,60}|\\{\"text\": \"[^\n]{0,20}\"\\}") {
        let folder = Folder::new();
        let path = folder.write("a.jsonl", format!("{line}\n"));
        let _ = open(&path).collect::<Vec<_>>();
    }
}
