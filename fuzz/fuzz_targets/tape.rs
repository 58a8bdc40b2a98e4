//! Files of tokens and byte lengths, without and with a sidecar that belongs to others.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tape::layout::TapeFiles;
use tape::reader::{Tape, TapeSource, Verify};

fuzz_target!(|parts: (Vec<u8>, Vec<u8>, Vec<u8>, bool, u32)| {
    let (tokens, lengths, sidecar, is_short, vocabulary) = parts;
    let name = if is_short { "a.tokens.u16" } else { "a.tokens.u32" };
    let tokens = fuzz::file(name, &tokens);
    let byte_lengths = Some(fuzz::file("a.byte-lengths.u16", &lengths));
    let sidecar = Some(fuzz::file("a.tape.json", &sidecar));
    for sidecar in [None, sidecar] {
        let files =
            TapeFiles { tokens: tokens.clone(), byte_lengths: byte_lengths.clone(), sidecar };
        for verify in [Verify::Now, Verify::WhenRead] {
            let source = TapeSource::Files(files.clone());
            if let Ok(tape) = Tape::open_with(&source, Some(vocabulary), verify) {
                let mut ids = Vec::new();
                if tape.read(0..tape.len(), &mut ids).is_ok() && verify == Verify::Now {
                    assert!(ids.iter().all(|&id| id < vocabulary));
                }
                let _ = tape.tokens_for_source_bytes(7);
            }
        }
    }
});
