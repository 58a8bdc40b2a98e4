//! Configuration files.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use trainer::{Settings, config::Config};

fuzz_target!(|text: &str| {
    let mut settings = Settings::new();
    if settings.add_file(text, Path::new("fuzz.toml")).is_ok() {
        let _ = Config::new(&settings);
        let _ = settings.to_toml();
    }
    let _ = Settings::new().add_assignment(text);
});
