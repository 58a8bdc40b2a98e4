//! Parquet files.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tape::sources::{OnError, SourceOptions, Sources};

fuzz_target!(init: {
    // Panics of the library are caught and become errors; the fuzzer must not take them for ours.
    std::panic::set_hook(Box::new(|_| {}));
}, |bytes: &[u8]| {
    let path = fuzz::file("a.parquet", bytes);
    let options = SourceOptions { on_error: OnError::Skip, ..SourceOptions::default() };
    let sources = Sources::open(&[path], options).expect("the file is there");
    for document in sources.take(10_000) {
        document.expect("errors are skipped");
    }
});
