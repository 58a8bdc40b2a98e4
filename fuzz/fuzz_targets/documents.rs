//! Files of text and lines, plain and compressed; the first byte picks the kind.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tape::sources::{Boundary, OnError, SourceOptions, Sources};

const NAMES: [&str; 6] = ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.json.zst"];

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let kind = usize::from(kind);
    let path = fuzz::file(NAMES[kind % NAMES.len()], bytes);
    let options = SourceOptions {
        text_bytes_max: Some(64),
        boundary: match kind / NAMES.len() % 3 {
            0 => Boundary::AsStored,
            1 => Boundary::StartsAt("^a".to_owned()),
            _ => Boundary::EndsAt("a".to_owned()),
        },
        on_error: if kind > 127 { OnError::Skip } else { OnError::Stop },
        ..SourceOptions::default()
    };
    let sources = Sources::open(&[path], options).expect("the file is there");
    for document in sources.take(10_000) {
        if let Ok(document) = document {
            assert!(!document.text.is_empty());
        }
    }
});
