//! Tokenizer files of other programs: the end of document named as a special token, as GPT-2's files have it.
//!
//! Our own files do not name it, for no text encodes to it. Other programs need a name, and theirs have one.

use std::path::Path;

use serde_json::Value;

use super::{Tokenizer, file};
use crate::Error;

impl Tokenizer {
    /// The tokenizer's file with `name` as the special token for the end of document. In programs that read
    /// it, a text with that name in it encodes to the end of document.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if `name` is an entry already.
    pub fn with_named_end(&self, name: &str) -> Result<Vec<u8>, Error> {
        let special = serde_json::json!({
            "id": self.end_of_document(),
            "content": name,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        });
        file::with_added(&self.json, special, name)
    }

    /// Reads a tokenizer file of another program whose only special token, if it has one, is the last id: that
    /// becomes the end of document, and its name is a text like any other from then on. Merges may be
    /// pairs or joined by a space. `path` names the file in errors.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] for anything else that is no byte-level BPE of GPT-2's kind.
    pub fn from_foreign(json: &[u8], path: &Path) -> Result<Self, Error> {
        let wrong =
            |expected, found: String| Error::Tokenizer { path: path.to_owned(), expected, found };
        let mut value: Value = serde_json::from_slice(json)
            .map_err(|error| wrong("a tokenizer in JSON", error.to_string()))?;
        let added = value["added_tokens"].as_array().cloned().unwrap_or_default();
        let model = value
            .get_mut("model")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| wrong("a tokenizer with a model", "none".to_owned()))?;
        for (name, default) in [
            ("type", Value::from("BPE")),
            ("byte_fallback", false.into()),
            ("fuse_unk", false.into()),
        ] {
            model.entry(name).or_insert(default);
        }
        for merge in model.get_mut("merges").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some((left, right)) = merge.as_str().and_then(|text| text.split_once(' ')) {
                *merge = serde_json::json!([left, right]);
            }
        }
        if adds_nothing(&value["post_processor"]) {
            value["post_processor"] = Value::Null;
        }
        let model = value["model"].as_object_mut().expect("it was one above");
        if let [special] = &added[..] {
            let vocabulary = model.get_mut("vocab").and_then(Value::as_object_mut);
            let vocabulary = vocabulary.ok_or_else(|| wrong("a vocabulary", "none".to_owned()))?;
            if let Some(name) = special["content"].as_str() {
                vocabulary.remove(name);
            }
            let last = Value::from(vocabulary.len());
            if special["id"] != last {
                let found = format!("id {} for {}", special["id"], special["content"]);
                return Err(wrong("a special token that is the last id", found));
            }
            value["added_tokens"] = Value::Array(Vec::new());
        }
        let json = file::rewritten(value, path)?;
        Self::from_json(json, path)
    }
}

/// Whether a post-processor is a template that gives a text back as it is.
fn adds_nothing(processor: &Value) -> bool {
    let is_empty = |value: &Value| value.as_object().is_none_or(serde_json::Map::is_empty);
    let single = processor["single"].as_array().map(Vec::as_slice);
    processor["type"] == "TemplateProcessing"
        && is_empty(&processor["special_tokens"])
        && matches!(single, Some([part]) if part["Sequence"]["id"] == "A")
}
