//! Compiled kernels on disk: kept, damaged, in the way of nothing.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use formats::Format;
use gpu_kernels::cache::Cache;
use gpu_kernels::compile::{Compiler, Image, Program, Source};
use gpu_kernels::{Error, FusedAdamW, Gpu, Kind, TensorPlan};

use crate::emulator::{HostCompiler, device};
use crate::pair::options;

const KEY: &str = "0123";

#[test]
fn an_image_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("deep/kernels"));
    assert_eq!(cache.load(KEY), None);
    cache.store(KEY, b"machine code");
    assert_eq!(cache.load(KEY).unwrap(), b"machine code");
    assert_eq!(cache.load("4567"), None);
    cache.store(KEY, b"");
    assert_eq!(cache.load(KEY).unwrap(), b"");
    let files = fs::read_dir(cache.folder().unwrap()).unwrap().count();
    assert_eq!(files, 1, "nothing is left aside");
}

#[test]
fn a_damaged_entry_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    cache.store(KEY, b"machine code");
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let sound = fs::read(&file).unwrap();
    for position in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[position] ^= 0x10;
        fs::write(&file, &damaged).unwrap();
        assert_eq!(cache.load(KEY), None, "byte {position}");
        fs::write(&file, &sound[..position]).unwrap();
        assert_eq!(cache.load(KEY), None, "cut at {position}");
    }
    cache.store(KEY, b"machine code");
    assert_eq!(cache.load(KEY).unwrap(), b"machine code");
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    fs::write(&file, b"").unwrap();
    // Below a file there can be no folder, whoever asks.
    let cache = Cache::at(file.join("kernels"));
    cache.store(KEY, b"machine code");
    assert_eq!(cache.load(KEY), None);
}

#[test]
fn keys_tell_everything_apart() {
    const HEADERS: [&[Source]; 2] =
        [&[Source { file: "h.cuh", text: "1" }], &[Source { file: "h.cuh", text: "2" }]];
    let program = |text, headers: usize, define: &str| Program {
        source: Source { file: "a.cu", text },
        headers: HEADERS[headers],
        kernels: &["a"],
        defines: vec![("D", define.to_owned())],
    };
    let keys = [
        program("x", 0, "1").key("sm_90"),
        program("x", 0, "1").key("sm_80"),
        program("y", 0, "1").key("sm_90"),
        program("x", 1, "1").key("sm_90"),
        program("x", 0, "2").key("sm_90"),
    ];
    for (position, key) in keys.iter().enumerate() {
        assert!(!keys[..position].contains(key), "{position}");
        assert_ne!(Cache::key(key, "nvrtc 13.0"), Cache::key(key, "nvrtc 13.1"));
    }
    assert_eq!(keys[0], program("x", 0, "1").key("sm_90"));
}

/// Counts what is compiled.
struct Counting {
    compiler: HostCompiler,
    compiled: Arc<AtomicUsize>,
}

impl Compiler for Counting {
    fn version(&self) -> Result<String, Error> {
        self.compiler.version()
    }

    fn compile(&self, program: &Program, architecture: &str) -> Result<Image, Error> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.compiler.compile(program, architecture)
    }
}

#[test]
fn a_device_compiles_once_and_again_after_damage() {
    let Some(device) = device().filter(|device| device.is_emulated) else { return };
    drop(device.gpu());
    let folder = tempfile::tempdir().unwrap();
    let compiled = Arc::new(AtomicUsize::new(0));
    let run = || {
        let compiler = HostCompiler::new().unwrap();
        let compiler = Counting { compiler, compiled: Arc::clone(&compiled) };
        let gpu = Gpu::open_with(0, Box::new(compiler), Cache::at(folder.path())).unwrap();
        let kind = Kind::plain(Format::E4);
        let plan =
            TensorPlan { length: 3, group: 0, kind, bias: Some(16), published: 0, part: None };
        let mut options = options();
        options.measures_norm = false;
        FusedAdamW::new(&gpu, &[plan], 1, options, false, None).unwrap();
        // The same handle again: loaded, not even read.
        FusedAdamW::new(&gpu, &[plan], 1, options, false, None).unwrap();
        compiled.load(Ordering::Relaxed)
    };
    assert_eq!((run(), run()), (1, 1));
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::write(entry.unwrap().path(), b"packed-adamw kernel 1\ndamaged").unwrap();
    }
    assert_eq!((run(), run()), (2, 2));
}
