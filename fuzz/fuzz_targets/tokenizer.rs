//! The file of a tokenizer; one that is accepted gives texts back.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tape::tokenizer::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes.to_vec(), Path::new("fuzz.json")) {
        let text = "It is what they have said: 42 caf\u{e9}s!";
        let ids = tokenizer.encode(text);
        assert_eq!(tokenizer.decode(&ids).expect("ids of its own"), text);
    }
});
