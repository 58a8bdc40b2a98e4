//! The sidecar of a tape.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tape::layout::Sidecar;

fuzz_target!(|bytes: &[u8]| {
    let _ = Sidecar::parse(Path::new("fuzz.tape.json"), bytes);
});
