//! Tokenizer files of other programs; one that is accepted gives texts back.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tape::tokenizer::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_foreign(bytes, Path::new("fuzz.json")) {
        let text = "It is what they have said: 42 caf\u{e9}s!";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text)).expect("ids of its own"), text);
    }
});
