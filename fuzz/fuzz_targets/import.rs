//! A model of another program. The first byte says which of its files is spoilt.

#![no_main]

use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = br#"{"model_type":"gpt2","vocab_size":257,"n_positions":2,"n_embd":1,"n_layer":1,"n_head":1}"#;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let config = fuzz::file("config.json", if which % 2 == 0 { bytes } else { CONFIG });
    fuzz::file("model.safetensors", bytes);
    fuzz::file("tokenizer.json", fuzz::TOKENIZER.json());
    let folder = config.parent().expect("a file lies in a folder");
    let output = folder.join("out");
    if trainer::import(folder, &output).is_ok() {
        std::fs::remove_dir_all(&output).expect("it was written just now");
    }
});
