//! What is done with each command that documents show.
//!
//! Calls of the program are parsed by it, all of them, so that a flag that is gone is found. Those in [`RUN`] are
//! also run, in this order and in one folder, with texts of this tree as their input. The others are slow, need a
//! GPU, or need files that are not here. What other programs do is checked elsewhere, and here it says where.

/// Arguments of the program that are run.
pub const RUN: [&str; 18] = [
    "inspect-formats",
    "doctor",
    "check",
    "train",
    "generate --checkpoint runs/quickstart-1",
    "generate --checkpoint runs/quickstart-1 --prompt \"A fox named\"",
    "inspect runs/quickstart-1",
    "convert runs/quickstart-1 --state block8",
    "export --checkpoint runs/quickstart-1 --format gpt2-safetensors --output exported",
    "import --format gpt2-safetensors --input exported --output imported",
    "generate --checkpoint imported",
    "completions bash",
    "manual --output man",
    "tokenizer train --input notes/ --vocabulary 8000 --output mine-tokenizer.json",
    "prepare --input notes/ --output-dir data/mine --tokenizer mine-tokenizer.json",
    "prepare --input train.jsonl --validation-input valid.jsonl --output-dir data/prose",
    "train --config configs/prose-cpu.toml --dry-run",
    "campaign configs/campaign-smoke.toml --output-dir runs/smoke",
];

/// Beginnings of commands that are no calls of the program, and what checks them.
const ELSEWHERE: [(&str, &str); 10] = [
    ("cargo test", "CI runs the tests"),
    ("cargo run -p optimizer --example regression", "a test runs it outside of the workspace"),
    ("docker ", "tidy holds rules against the Dockerfile"),
    ("cargo run --manifest-path candle-adamw/Cargo.toml", "its tests, where candle is built"),
    ("pip install ./python", "CI builds the package where PyTorch is wanted"),
    ("cargo xtask ", "tests of xtask call its tasks"),
    ("cargo build --release", "CI builds in release mode"),
    ("unzip -q packed-adamw-", "tests read archives by another implementation"),
    ("sha256sum --quiet -c MANIFEST.sha256", "tests compare the list with the files"),
    ("git ", "not ours"),
];

/// What a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// A call of the program with these arguments.
    Call(&'a str),
    /// The form of a call, with parts to fill in or to leave out.
    Form(&'a str),
    /// Something else, and what checks it.
    Elsewhere(&'static str),
}

/// The arguments of a call of the program.
pub fn arguments(command: &str) -> Option<&str> {
    let starts = ["packed-adamw ", "cargo run --release -p cli -- "];
    starts.iter().find_map(|start| command.strip_prefix(start))
}

/// What a command is; none if nobody knows.
pub fn shown(command: &str) -> Option<Shown<'_>> {
    if let Some(arguments) = arguments(command) {
        let is_form =
            arguments.contains("...") || arguments.contains(" [") || arguments.contains(" | ");
        return Some(if is_form { Shown::Form(arguments) } else { Shown::Call(arguments) });
    }
    let found = ELSEWHERE.iter().find(|(start, _)| command.starts_with(start));
    found.map(|&(_, what)| Shown::Elsewhere(what))
}
