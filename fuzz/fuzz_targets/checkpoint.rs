//! The tensors of a checkpoint whose manifest vouches for them, as it does for a file that somebody made on purpose.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use tape::checksum::Checksum;
use trainer::Restored;
use trainer::manifest::{FORMAT_VERSION, FileRecord, Manifest, Progress, Shape};

fuzz_target!(|bytes: &[u8]| {
    let parameters = fuzz::file("parameters.safetensors", bytes);
    let folder = parameters.parent().expect("a file lies in a folder");
    let mut files = BTreeMap::new();
    for (name, bytes) in [
        ("parameters.safetensors", bytes),
        ("optimizer.safetensors", bytes),
        ("tokenizer.json", fuzz::TOKENIZER.json()),
    ] {
        fuzz::file(name, bytes);
        let record = FileRecord { sha256: Checksum::of(bytes), bytes: bytes.len() as u64 };
        files.insert(name.to_owned(), record);
    }
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        model: Shape { vocabulary: 257, context: 2, channels: 1, layers: 1, heads: 1 },
        progress: Progress::default(),
        identity: BTreeMap::new(),
        optimizer: BTreeMap::new(),
        files,
        checksum: String::new(),
    };
    manifest.write(folder).expect("the folder can be written");
    let _ = Restored::open(folder);
});
