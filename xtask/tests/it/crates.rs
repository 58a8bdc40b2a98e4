//! Every library crate by itself: a package outside of the workspace depends on it by path, builds its example and
//! runs it; and what it brings along is what the documents show.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::clones::done;

/// Crates, and the example of each that needs no device.
const CRATES: [(&str, &str); 5] = [
    ("formats", "inspect_update"),
    ("reference", "textbook"),
    ("optimizer", "regression"),
    ("tape", "read_tape"),
    ("model", "overfit"),
];

/// What an optimizer for the processor has no use for.
const NOT_FOR_A_PROCESSOR: [&str; 8] =
    ["gpu-kernels", "cudarc", "libloading", "tokenizers", "parquet", "arrow", "zstd", "regex"];

fn root() -> PathBuf {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&package).parent().unwrap().to_owned()
}

/// A package of its own with this text as its program and one dependency.
fn package(dependency: &str, features: &str, main: &str, profile: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = root();
    let path = root.join("crates").join(dependency);
    let manifest = format!(
        "[package]\nname = \"elsewhere\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         {dependency} = {{ path = '{}', features = [{features}] }}\n\n\
         [profile.dev]\nopt-level = 3\nincremental = false\n{profile}\n\
         [profile.dev.package.\"*\"]\ndebug = false\ndebug-assertions = false\noverflow-checks = false\n\n\
         [workspace]\n",
        path.display()
    );
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    // The same versions and compiler as here, so that nothing must be fetched and little built again.
    for name in ["Cargo.lock", "rust-toolchain.toml"] {
        fs::copy(root.join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/main.rs"), main).unwrap();
    folder
}

fn cargo(folder: &Path, args: &[&str]) -> String {
    let mut cargo = Command::new("cargo");
    cargo.args(args).current_dir(folder);
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target folder");
    cargo.env("CARGO_TARGET_DIR", target);
    cargo.env("CARGO_NET_OFFLINE", "true");
    done(cargo)
}

fn example(name: &str, example: &str) -> String {
    fs::read_to_string(
        root().join("crates").join(name).join("examples").join(format!("{example}.rs")),
    )
    .unwrap()
}

/// The names of what a crate brings along, indented.
fn tree(name: &str) -> String {
    let package = package(name, "", "fn main() {}\n", "");
    let args = ["tree", "--edges", "normal", "--package", name, "--charset", "ascii"];
    let lines = cargo(package.path(), &args);
    let name_of = |line: &str| line.split(" v").next().unwrap_or(line).to_owned() + "\n";
    lines.lines().map(name_of).collect()
}

#[test]
fn every_crate_is_of_use_from_outside_by_itself() {
    for (name, program) in CRATES {
        let package = package(name, "", &example(name, program), "");
        let said = cargo(package.path(), &["run", "--quiet"]);
        assert!(!said.is_empty(), "{name} says nothing");
    }
}

#[test]
fn an_optimizer_for_the_processor_brings_nothing_else() {
    let tree = tree("optimizer");
    for name in NOT_FOR_A_PROCESSOR {
        assert!(!tree.split_whitespace().any(|word| word == name), "{name}\n{tree}");
    }
    let path = root().join("docs/depending.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- tree: begin -->\n", "<!-- tree: end -->\n");
    let (before, rest) = text.split_once(begin).expect("the tree has a begin mark");
    let (_, after) = rest.split_once(end).expect("the tree has an end mark");
    let expected = format!("{before}{begin}```text\n{tree}```\n{end}{after}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run the tests with UPDATE_GOLDEN=1 and read the difference");
    }
}

/// A program without the standard library has to bring what that would: were it linked all the same, both would
/// have a handler of panics, which the compiler refuses.
#[cfg(target_os = "linux")]
#[test]
fn formats_needs_no_standard_library() {
    let main = "//! No standard library.\n#![no_std]\n#![no_main]\nextern crate alloc;\n\
        struct Nothing;\n\
        unsafe impl core::alloc::GlobalAlloc for Nothing {\n\
            unsafe fn alloc(&self, _: core::alloc::Layout) -> *mut u8 { core::ptr::null_mut() }\n\
            unsafe fn dealloc(&self, _: *mut u8, _: core::alloc::Layout) {}\n\
        }\n\
        #[global_allocator]\nstatic NOTHING: Nothing = Nothing;\n\
        #[unsafe(no_mangle)]\nextern \"C\" fn rust_eh_personality() {}\n\
        #[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n\
        #[unsafe(no_mangle)]\npub extern \"C\" fn main() -> i32 {\n\
            use formats::{Bias, E4Word, Moments, WordCodec as _};\n\
            let packed = E4Word::new(Bias::DEFAULT).encode(Moments { m: 0.5, r: 0.25 }, 0);\n\
            if E4Word::new(Bias::DEFAULT).decode(packed.word).m == 0.5 { 0 } else { 1 }\n\
        }\n";
    let package = package("formats", "", main, "panic = \"abort\"\n");
    // The C library only starts the program.
    fs::write(
        package.path().join("build.rs"),
        "fn main() { println!(\"cargo::rustc-link-lib=c\"); }\n",
    )
    .unwrap();
    cargo(package.path(), &["run", "--quiet"]);
    assert_eq!(tree("formats").trim(), "formats");
}
