//! Facts of the workspace that a release tells of, read from the files that are released.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::archive::Files;

/// The model that results refer to.
const REFERENCE_MODEL: &str = "configs/reference-12m.toml";

/// Name and shape of the reference model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceModel {
    /// The file's stem.
    pub name: &'static str,
    /// V, T, C, L and H.
    pub shape: [u64; 5],
    /// N, of a GPT-2 with a tied head.
    pub parameters: u64,
}

/// The version that all packages share.
pub fn version(files: &Files) -> Result<String> {
    text_value(files, "Cargo.toml", "[workspace.package]", "version")
}

/// The oldest compiler that builds the workspace.
pub fn rust_version(files: &Files) -> Result<String> {
    text_value(files, "Cargo.toml", "[workspace.package]", "rust-version")
}

/// The reference model, from its configuration.
pub fn reference_model(files: &Files) -> Result<ReferenceModel> {
    let number = |key: &str| -> Result<u64> {
        let text = value(files, REFERENCE_MODEL, "[model]", key)?;
        text.replace('_', "").parse().with_context(|| format!("{REFERENCE_MODEL}: {key} = {text}"))
    };
    let shape = [
        number("vocabulary")?,
        number("context")?,
        number("channels")?,
        number("layers")?,
        number("heads")?,
    ];
    let [vocabulary, context, channels, layers, _] = shape;
    let parameters = (vocabulary + context) * channels
        + layers * (12 * channels * channels + 13 * channels)
        + 2 * channels;
    Ok(ReferenceModel { name: "reference-12m", shape, parameters })
}

/// The contract that results obey, as names and values.
pub fn contract(files: &Files) -> Result<Vec<(String, String)>> {
    let value: Value = serde_json::from_str(text(files, "corpus-contract.json")?)?;
    let mut rows = Vec::new();
    flatten("", &value, &mut rows);
    Ok(rows)
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, rows);
            }
        }
        Value::String(text) => rows.push((name.to_owned(), text.clone())),
        other => rows.push((name.to_owned(), other.to_string())),
    }
}

/// A text value, without its quotes.
fn text_value(files: &Files, file: &str, section: &str, key: &str) -> Result<String> {
    Ok(value(files, file, section, key)?.trim_matches('"').to_owned())
}

/// What stands behind `key = ` in a section of a file that keeps one key a line.
fn value<'a>(files: &'a Files, file: &str, section: &str, key: &str) -> Result<&'a str> {
    let lines = text(files, file)?.lines().map(str::trim);
    let mut inside = lines.skip_while(|line| *line != section).skip(1);
    let found = inside.by_ref().take_while(|line| !line.starts_with('[')).find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim())
    });
    found.with_context(|| format!("{file}: no {key} in {section}"))
}

fn text<'a>(files: &'a Files, file: &str) -> Result<&'a str> {
    let found = files.get(file).with_context(|| format!("{file}: not there"))?;
    std::str::from_utf8(&found.bytes).with_context(|| file.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::archive::{File, Files};

    fn files(paths: &[&str]) -> Files {
        let file = |path: &str| File {
            executable: false,
            bytes: std::fs::read(crate::root().join(path)).unwrap(),
        };
        paths.iter().map(|&path| (path.to_owned(), file(path))).collect()
    }

    /// All tests run with the oldest compiler that is promised, so the promise is tested.
    #[test]
    fn the_pinned_compiler_is_the_oldest_that_is_supported() {
        let files = files(&["Cargo.toml", "rust-toolchain.toml"]);
        let oldest = super::rust_version(&files).unwrap();
        let pinned = super::text_value(&files, "rust-toolchain.toml", "[toolchain]", "channel");
        assert_eq!(pinned.unwrap(), format!("{oldest}.0"));
    }

    #[test]
    fn the_facts_of_this_tree_are_found() {
        let files = files(&["Cargo.toml", "configs/reference-12m.toml", "corpus-contract.json"]);
        assert!(super::version(&files).unwrap().starts_with("0."));
        assert_eq!(super::reference_model(&files).unwrap().parameters, 11_637_760);
        let contract = super::contract(&files).unwrap();
        assert!(contract.contains(&("tokenizer.vocabulary".to_owned(), "12096".to_owned())));
    }
}
