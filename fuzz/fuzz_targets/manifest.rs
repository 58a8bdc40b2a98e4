//! The manifest of a checkpoint.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trainer::manifest::Manifest;

fuzz_target!(|bytes: &[u8]| {
    let path = fuzz::file("manifest.json", bytes);
    let _ = Manifest::read(path.parent().expect("a file lies in a folder"));
});
