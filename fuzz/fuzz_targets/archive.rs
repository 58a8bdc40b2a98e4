//! Archives of releases: one that is accepted is what its files are written as.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../xtask/src/archive/mod.rs"]
mod archive;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(files) = archive::verified(bytes) {
        assert_eq!(archive::write(&files), bytes);
    }
});
