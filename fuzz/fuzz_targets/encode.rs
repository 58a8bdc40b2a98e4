//! Text to ids: those of the library, and back to the text.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tape::tokenizer::Tokenizer;

static OURS: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::bundled);
static LIBRARY: LazyLock<tokenizers::Tokenizer> =
    LazyLock::new(|| tokenizers::Tokenizer::from_bytes(OURS.json()).expect("the same file"));

fuzz_target!(|text: &str| {
    let ids = OURS.encode(text);
    assert_eq!(OURS.decode(&ids).expect("ids of its own"), text);
    assert_eq!(ids, LIBRARY.encode_fast(text, false).expect("any text").get_ids());
});
