//! The list of a set of tapes.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tape::layout::set::TapeSet;

fuzz_target!(|bytes: &[u8]| {
    let list = Path::new("folder/fuzz.tape-set.json");
    if let Ok(set) = TapeSet::parse(list, bytes) {
        for files in set.files(list) {
            assert_eq!(files.tokens.parent(), list.parent(), "files lie beside the list");
        }
    }
});
