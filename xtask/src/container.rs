//! What can be held against the `Dockerfile` without an engine to build it: its instructions are parsed, and each
//! rule below finds what would make a build fail, grow, or differ from the tree.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

const FILE: &str = "Dockerfile";

/// Libraries that the program looks for, by the packages that bring them.
const LIBRARIES: [&str; 2] = ["cuda-nvrtc-", "libcublas-"];

/// Instructions there are.
const INSTRUCTIONS: [&str; 12] = [
    "FROM",
    "RUN",
    "COPY",
    "ENV",
    "ARG",
    "USER",
    "WORKDIR",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
    "LABEL",
    "VOLUME",
];

/// An instruction, its continued lines joined.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instruction {
    line: usize,
    name: String,
    arguments: String,
}

/// What is wrong with the file.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(FILE)).context(FILE)?;
    let toolchain = fs::read_to_string(root.join("rust-toolchain.toml"))?;
    let rust = toolchain.lines().find_map(|line| line.strip_prefix("channel = "));
    let rust = rust.context("rust-toolchain.toml: no channel")?.trim_matches('"');
    Ok(check(&text, rust, &|path| root.join(path).exists()))
}

/// The instructions of a file.
fn parse(text: &str) -> Vec<Instruction> {
    let mut instructions = Vec::new();
    let mut begun: Option<Instruction> = None;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (part, goes_on) = match line.strip_suffix('\\') {
            Some(part) => (part.trim_end(), true),
            None => (line, false),
        };
        let instruction = match begun.take() {
            Some(one) => Instruction { arguments: format!("{} {part}", one.arguments), ..one },
            None => {
                let (name, arguments) = part.split_once(' ').unwrap_or((part, ""));
                Instruction {
                    line: index + 1,
                    name: name.to_uppercase(),
                    arguments: arguments.trim().to_owned(),
                }
            }
        };
        if goes_on { begun = Some(instruction) } else { instructions.push(instruction) }
    }
    instructions.extend(begun);
    instructions
}

fn check(text: &str, rust: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let instructions = parse(text);
    let mut faults = Vec::new();
    let mut stages: Vec<&str> = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("{FILE} line {line}: {what}"));
    if instructions.first().is_none_or(|first| first.name != "FROM" && first.name != "ARG") {
        fault(1, "begins with something else than FROM".into());
    }
    for Instruction { line, name, arguments } in &instructions {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        match name.as_str() {
            other if !INSTRUCTIONS.contains(&other) => {
                fault(*line, format!("{other}: no instruction"));
            }
            _ if words.is_empty() => fault(*line, format!("{name} without arguments")),
            "FROM" => {
                let version = words[0].split_once(':').map(|(_, version)| version);
                if version.is_none_or(|version| version == "latest") && !stages.contains(&words[0])
                {
                    fault(*line, format!("{}: name a version", words[0]));
                }
                if words[0].starts_with("rust:") && !words[0].starts_with(&format!("rust:{rust}-"))
                {
                    fault(*line, format!("{}: the pinned compiler is {rust}", words[0]));
                }
                stages.push(if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case("AS")) {
                    words.get(2).copied().unwrap_or_default()
                } else {
                    ""
                });
            }
            "RUN" if arguments.contains("apt-get install") => {
                for part in [
                    "apt-get update",
                    "--no-install-recommends",
                    "--yes",
                    "rm -rf /var/lib/apt/lists/*",
                ] {
                    if !arguments.contains(part) {
                        fault(*line, format!("apt-get install without {part}"));
                    }
                }
            }
            "COPY" => copy(&words, &stages, exists).into_iter().for_each(|what| fault(*line, what)),
            "ENTRYPOINT" | "CMD" if serde_json::from_str::<Vec<String>>(arguments).is_err() => {
                fault(*line, format!("{name}: give a list, so that signals reach the program"));
            }
            _ => {}
        }
    }
    faults.extend(last_stage(&instructions));
    faults
}

fn copy(words: &[&str], stages: &[&str], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let (flags, paths): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("--"));
    if let Some(stage) = flags.iter().find_map(|flag| flag.strip_prefix("--from=")) {
        let earlier = &stages[..stages.len().saturating_sub(1)];
        let is_known = earlier.contains(&stage);
        return if is_known { Vec::new() } else { vec![format!("{stage}: no earlier stage")] };
    }
    let sources = &paths[..paths.len().saturating_sub(1)];
    let missing = sources.iter().filter(|path| !exists(path));
    let mut faults: Vec<String> = missing.map(|path| format!("{path}: not in the tree")).collect();
    if sources.is_empty() {
        faults.push("COPY takes sources and a target".into());
    }
    faults
}

/// What the stage that becomes the image must have.
fn last_stage(instructions: &[Instruction]) -> Vec<String> {
    let start = instructions.iter().rposition(|one| one.name == "FROM").unwrap_or(0);
    let last = &instructions[start..];
    let all = |name: &'static str| {
        last.iter().filter(move |one| one.name == name).map(|one| one.arguments.as_str())
    };
    let mut faults = Vec::new();
    for library in LIBRARIES {
        if !all("RUN").any(|run| run.contains(library)) {
            faults.push(format!("{FILE}: the last stage does not install {library}*"));
        }
    }
    if all("USER").next_back().is_none_or(|user| ["root", "0"].contains(&user)) {
        faults.push(format!("{FILE}: the program would run as root"));
    }
    if !all("HEALTHCHECK").any(|check| check.contains("\"doctor\"")) {
        faults.push(format!("{FILE}: doctor is not its check"));
    }
    if all("ENTRYPOINT").count() != 1 {
        faults.push(format!("{FILE}: one ENTRYPOINT, the program"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_of_this_tree_has_no_faults() {
        let faults = faults(&crate::root()).unwrap();
        assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let text = fs::read_to_string(crate::root().join(FILE)).unwrap();
        let faults = |text: &str| check(text, "1.95.0", &|path| path != "absent").join("\n");
        assert_eq!(faults(&text), "");
        for (from, to, expected) in [
            ("rust:1.95.0-slim-bookworm", "rust:1.80.0-slim-bookworm", "the pinned compiler"),
            ("nvidia/cuda:13.0.1-base-ubuntu24.04", "nvidia/cuda:latest", "name a version"),
            ("--no-install-recommends", "", "without --no-install-recommends"),
            ("COPY . .", "COPY absent .", "absent: not in the tree"),
            ("--from=build", "--from=built", "built: no earlier stage"),
            ("USER trainer", "USER root", "run as root"),
            ("[\"packed-adamw\", \"doctor\"]", "true", "doctor is not its check"),
            ("ENTRYPOINT [\"packed-adamw\"]", "ENTRYPOINT packed-adamw", "give a list"),
            ("cuda-nvrtc-13-0 ", "", "does not install cuda-nvrtc-"),
            ("WORKDIR /source", "WORKDIRR /source", "WORKDIRR: no instruction"),
        ] {
            let broken = text.replace(from, to);
            assert!(
                broken != text && faults(&broken).contains(expected),
                "{expected}\n{}",
                faults(&broken)
            );
        }
    }

    #[test]
    fn lines_that_go_on_are_one_instruction() {
        let found = parse("# x\nRUN a \\\n    # remark\n    && b\nCMD [\"c\"]\n");
        let expected = [(2, "RUN", "a && b"), (5, "CMD", "[\"c\"]")];
        let expected = expected.map(|(line, name, arguments)| Instruction {
            line,
            name: name.into(),
            arguments: arguments.into(),
        });
        assert_eq!(found, expected);
    }
}
