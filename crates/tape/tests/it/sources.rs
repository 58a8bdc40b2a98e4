//! Files to documents: what they become, and the message for everything that is wrong.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use tape::Error;
use tape::checksum::Checksum;
use tape::sources::{
    Boundary, Document, DocumentSource, InMemory, Kind, OnError, SourceOptions, Sources,
};

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
    let ahead = sources.records_ahead().unwrap().unwrap();
    assert_eq!(sources.by_ref().count(), 2);
    assert_eq!(Some(sources.progress().bytes_read), sources.progress().bytes_total);
    assert_eq!(ahead, sources.records());

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

fn names(paths: &[&str], folder: &Folder) -> Result<Vec<String>, Error> {
    let paths: Vec<_> = paths.iter().map(|path| folder.path().join(path)).collect();
    let sources = Sources::open(&paths, SourceOptions::default())?;
    sources.map(|document| document.map(|document| document.name)).collect()
}

#[test]
fn patterns_match_files_in_the_order_of_names() {
    let folder = Folder::new();
    for name in
        ["b/2.txt", "b/1.txt", "a/1.txt", "a/deep/3.md", "x.jsonl.gz", ".hidden.txt", "d.pdf"]
    {
        folder.write(
            name,
            if name.ends_with("gz") { gzip(b"{\"text\": \"x\"}") } else { b"x".to_vec() },
        );
    }
    assert_eq!(names(&["*/*.txt"], &folder).unwrap(), ["a/1.txt", "b/1.txt", "b/2.txt"]);
    assert_eq!(names(&["b/[2-9].*"], &folder).unwrap(), ["2.txt"]);
    assert_eq!(
        names(&["**/*.md", "?.jsonl.gz"], &folder).unwrap(),
        ["a/deep/3.md", "x.jsonl.gz:1"]
    );
    assert_eq!(
        names(&["*"], &folder).unwrap().len(),
        5,
        "folders are walked, other files left out"
    );
    let none = names(&["*.md"], &folder).unwrap_err();
    check_message(&none, &["*.md", "matches no file", "correct it"]);
    check_message(&names(&["a[*.txt"], &folder).unwrap_err(), &["a[*.txt", "cannot be used"]);
    // A file whose name looks like a pattern is a file.
    folder.write("e[1].txt", "x");
    assert_eq!(names(&["e[1].txt"], &folder).unwrap(), ["e[1].txt"]);
}

#[test]
fn equal_names_are_fine_and_equal_files_are_not() {
    let folder = Folder::new();
    folder.write("a/x.txt", "one");
    folder.write("b/x.txt", "two");
    assert_eq!(names(&["a/x.txt", "b/x.txt"], &folder).unwrap(), ["x.txt", "x.txt"]);
    let twice = names(&["a", "a/../a/x.txt"], &folder).unwrap_err();
    check_message(&twice, &["x.txt is named twice", "leave one out"]);
}

#[test]
fn json_lines_have_several_endings() {
    let folder = Folder::new();
    for name in ["a.json", "a.ndjson", "a.json.gz"] {
        let line = b"{\"text\": \"one\"}\n".to_vec();
        let path = folder.write(name, if name.ends_with("gz") { gzip(&line) } else { line });
        assert_eq!(texts(&path), ["one"]);
    }
}

#[test]
fn bad_documents_are_skipped_counted_and_named() {
    let folder = Folder::new();
    let lines = b"{\"text\": \"one\"}\n{\"title\": 1}\nno json\n{\"text\": \"\"}\n{\"text\": \"\xFF\"}\n{\"text\": \"six\"}";
    let mut cut = gzip("{\"text\": \"words\"}\n".repeat(5000).as_bytes());
    cut.truncate(cut.len() / 2);
    let mut piece = b"good piece\n\n".to_vec();
    piece.resize(40_000, b'x');
    piece[39_000] = 0xFF;
    let paths = [
        folder.write("a.jsonl", lines),
        folder.write("b.jsonl.gz", &cut),
        folder.write("c.txt", ""),
        folder.write("d.txt", piece),
        folder.path().join("e.txt"),
        folder.write("f.txt", "last"),
    ];
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", &paths[4]).unwrap();
    let options = SourceOptions { on_error: OnError::Skip, ..SourceOptions::default() };
    let mut sources = Sources::open(&[folder.path()], options).unwrap();
    let documents: Vec<Document> = sources.by_ref().map(Result::unwrap).collect();
    let words = documents.iter().filter(|document| document.text == "words").count();
    assert!((1..5000).contains(&words), "what could be decompressed is kept: {words}");
    let others: Vec<_> = documents.iter().filter(|document| document.text != "words").collect();
    let starts: Vec<_> = others.iter().map(|document| &document.text[..3]).collect();
    assert_eq!(starts, ["one", "six", "goo", "las"]);
    let messages = sources.skipped().first.join("\n");
    let parts = [
        "a.jsonl, line 2",
        "a.jsonl, line 3",
        "a.jsonl, line 4: the document is empty",
        "a.jsonl is not UTF-8",
        "cannot decompress",
        "c.txt is empty",
        "d.txt is not UTF-8 at byte 39000",
        "cannot read",
        "e.txt",
    ];
    let mut rest = messages.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in {messages}"));
        rest = &rest[at + part.len()..];
    }
    assert_eq!(sources.skipped().count, 8);
    // Hashes of what was read in part are those of the whole file.
    let record =
        |name: &str| sources.records().into_iter().find(|r| r.name.ends_with(name)).unwrap();
    assert_eq!(record("b.jsonl.gz").sha256, Checksum::of(&cut));
    assert_eq!(sources.records().len(), 5);
}

#[test]
fn an_unreadable_file_stops_the_reading_by_name() {
    let folder = Folder::new();
    folder.write("a.txt", "fine");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", folder.path().join("b.txt")).unwrap();
        check_message(&refused(folder.path()), &["cannot read", "b.txt", "check the path"]);
    }
}

#[test]
fn boundaries_join_lines_and_rows() {
    let folder = Folder::new();
    let with = |name: &str, bytes: &[u8], boundary: Boundary| {
        let path = folder.write(name, bytes);
        let options = SourceOptions { boundary, ..SourceOptions::default() };
        let documents = Sources::open(&[path], options).unwrap().map(Result::unwrap);
        documents.map(|document| (document.name, document.text)).unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let ends = || Boundary::EndsAt("<|endoftext|>".to_owned());
    let stories = "\u{feff}One.\r\nMore.\n<|endoftext|>\r\n\n<|endoftext|>\nTwo.\n<|endoftext|>";
    let (names, texts) = with("a.txt", stories.as_bytes(), ends());
    assert_eq!(texts, ["One.\r\nMore.\n", "\nTwo.\n"]);
    assert_eq!(names, ["a.txt+3", "a.txt+30"]);

    let starts = || Boundary::StartsAt("^ = [^=]".to_owned());
    let wiki = " \n = First = \n \n = = Part = = \n Text . \n = Second = \n Text . \n";
    let (names, texts) = with("b.txt", wiki.as_bytes(), starts());
    assert_eq!(
        texts,
        [" \n = First = \n \n = = Part = = \n Text . \n", " = Second = \n Text . \n"]
    );
    assert_eq!(names, ["b.txt", "b.txt+40"]);
    let rows: String = wiki
        .split_inclusive('\n')
        .map(|row| format!("{}\n", serde_json::json!({"text": row})))
        .collect();
    let (names, of_rows) = with("c.jsonl", rows.as_bytes(), starts());
    assert_eq!((names, of_rows), (vec!["c.jsonl:1".to_owned(), "c.jsonl:6".to_owned()], texts));
    let (_, texts) = with("d.jsonl", b"{\"text\": \"\"}\n{\"text\": \"x\"}\n", ends());
    assert_eq!(texts, ["x"], "rows without text join like others");

    let boundary = Boundary::StartsAt("(".to_owned());
    let options = SourceOptions { boundary, ..SourceOptions::default() };
    let error = Sources::open(&[folder.path()], options).unwrap_err();
    check_message(&error, &["pattern \"(\"", "correct it"]);
}

#[test]
fn standard_input_is_no_parquet_and_named_once() {
    let options = SourceOptions { standard_input: Kind::Rows, ..SourceOptions::default() };
    check_message(&Sources::open(&["-"], options).unwrap_err(), &["standard input", "index"]);
    let error = Sources::open(&["-", "-"], SourceOptions::default()).unwrap_err();
    check_message(&error, &["standard input is named twice"]);
    let sources = Sources::open(&["-"], SourceOptions::default()).unwrap();
    assert_eq!(sources.records_ahead().unwrap(), None);
    assert_eq!(sources.progress().bytes_total, None);
}

#[test]
fn documents_are_texts_with_any_line_end_and_without_a_last_one() {
    let folder = Folder::new();
    for i in 0..20 {
        folder.write(&format!("one/{i:02}.txt"), format!("Sentence {i}."));
    }
    assert_eq!(texts(&folder.path().join("one")).len(), 20, "a folder of one-sentence files");
    let path = folder.write("a.txt", "\u{feff}one\r\ntwo");
    assert_eq!(texts(&path), ["one\r\ntwo"]);
    let path = folder.write("a.jsonl", "\u{feff}{\"text\": \"one\"}\r\n{\"text\": \"two\"}");
    assert_eq!(texts(&path), ["one", "two"]);
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
    fn no_file_makes_a_panic(bytes: Vec<u8>, name in "a\\.((txt|md|jsonl|json)(\\.gz|\\.zst)?|parquet)") {
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
