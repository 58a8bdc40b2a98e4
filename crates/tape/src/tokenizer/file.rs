//! `tokenizer.json`: reading it with suspicion, writing it always alike.
//!
//! The layout is the common one of the `tokenizers` library, so that other programs read our
//! files. We read only what we would write: a byte-level BPE with GPT-2's split, no normaliser, no
//! prefix space, no added tokens, no unknown token. Anything else would be encoded differently
//! from what its file says, and is refused.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use tokenizers::models::bpe::BPE;

use super::merges::Merges;
use super::{ENTRIES_MAX, alphabet};
use crate::Error;

/// The whole file. Fields that must be null are kept as found, for the message.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizerFile {
    version: String,
    truncation: Value,
    padding: Value,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    r#type: String,
    dropout: Value,
    unk_token: Value,
    continuing_subword_prefix: Value,
    end_of_word_suffix: Value,
    fuse_unk: bool,
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Names,
    merges: Vec<(String, String)>,
}

/// Token names in the order of their ids; in the file a map from name to id.
struct Names(Vec<String>);

/// A checked tokenizer file.
pub(super) struct Parsed {
    /// The merges, which know every byte.
    pub(super) merges: Merges,
    /// The bytes of every id.
    pub(super) tokens: Vec<Vec<u8>>,
}

/// The file of a trained model: one line of JSON.
pub(super) fn write(bpe: &BPE) -> Result<Vec<u8>, serde_json::Error> {
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    let file = TokenizerFile {
        version: "1.0".to_owned(),
        truncation: Value::Null,
        padding: Value::Null,
        added_tokens: Vec::new(),
        normalizer: Value::Null,
        pre_tokenizer: byte_level.clone(),
        post_processor: Value::Null,
        decoder: byte_level,
        model: serde_json::from_str(&serde_json::to_string(bpe)?)?,
    };
    let mut json = serde_json::to_vec(&file)?;
    json.push(b'\n');
    Ok(json)
}

/// Parses and checks the file `json`; `path` is for messages.
pub(super) fn parse(json: &[u8], path: &Path) -> Result<Parsed, Error> {
    let wrong = |expected, found| Error::Tokenizer { path: path.to_owned(), expected, found };
    let file: TokenizerFile = serde_json::from_slice(json).map_err(|error| {
        wrong("a byte-level BPE tokenizer in JSON", format!("something else: {error}"))
    })?;
    check_form(&file).map_err(|Unfit { expected, found }| wrong(expected, found))?;
    let Model { vocab: Names(names), merges, .. } = file.model;
    let tokens = check_names(&names).map_err(|found| wrong("names spelled in bytes", found))?;

    if names.len() > ENTRIES_MAX {
        let found = format!("{}", names.len());
        return Err(wrong("at most 1,048,576 entries", found));
    }
    let ids: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let mut bytes = [0; 256];
    for (byte, id) in (0..=u8::MAX).zip(&mut bytes) {
        let found = ids.get(alphabet::spell(&[byte]).as_str());
        *id = *found
            .ok_or_else(|| wrong("an entry for every byte", format!("none for byte {byte}")))?;
    }
    let id_merge = |(left, right): &(String, String)| {
        let joined = format!("{left}{right}");
        let id = |part: &str| {
            ids.get(part).copied().ok_or_else(|| {
                let found = format!("a merge of {left:?} and {right:?} without entry {part:?}");
                wrong("merges of entries into entries", found)
            })
        };
        Ok(([id(left)?, id(right)?], id(&joined)?))
    };
    let merges = merges.iter().map(id_merge).collect::<Result<Vec<_>, Error>>()?;
    Ok(Parsed { merges: Merges::new(bytes, &merges), tokens })
}

/// What in a file does not fit.
struct Unfit {
    expected: &'static str,
    found: String,
}

/// Everything about the file but its entries and merges.
fn check_form(file: &TokenizerFile) -> Result<(), Unfit> {
    let TokenizerFile { pre_tokenizer, post_processor, decoder, model, .. } = file;
    let is_absent = |value: &Value| value.is_null() || value == "";
    let is_byte_level = |value: &Value| value["type"] == "ByteLevel";
    let splits_like_gpt2 = is_byte_level(pre_tokenizer)
        && pre_tokenizer["add_prefix_space"] == false
        && pre_tokenizer["use_regex"] != false;
    let processes_nothing = is_absent(post_processor) || is_byte_level(post_processor);

    let version = Value::from(file.version.as_str());
    let added_tokens = Value::from(file.added_tokens.clone());
    let model_type = Value::from(model.r#type.as_str());
    let prefix = &model.continuing_subword_prefix;
    let suffix = &model.end_of_word_suffix;
    let rules = [
        ("version \"1.0\"", file.version == "1.0", &version),
        ("no truncation", is_absent(&file.truncation), &file.truncation),
        ("no padding", is_absent(&file.padding), &file.padding),
        ("no added tokens", file.added_tokens.is_empty(), &added_tokens),
        ("no normalizer", is_absent(&file.normalizer), &file.normalizer),
        ("the pre-tokenizer ByteLevel without prefix space", splits_like_gpt2, pre_tokenizer),
        ("no post-processor but ByteLevel", processes_nothing, post_processor),
        ("the decoder ByteLevel", is_byte_level(decoder), decoder),
        ("a model of type BPE", model.r#type == "BPE", &model_type),
        ("no dropout", is_absent(&model.dropout), &model.dropout),
        ("no unknown token", is_absent(&model.unk_token), &model.unk_token),
        ("no subword prefix", is_absent(prefix), prefix),
        ("no word suffix", is_absent(suffix), suffix),
        ("no byte fallback", !model.byte_fallback, &Value::Bool(true)),
        ("merges that are not ignored", !model.ignore_merges, &Value::Bool(true)),
    ];
    match rules.into_iter().find(|(_, holds, _)| !holds) {
        Some((expected, _, found)) => {
            Err(Unfit { expected, found: found.to_string().chars().take(120).collect() })
        }
        None => Ok(()),
    }
}

/// The bytes of all names, each of 1 to 65,535 bytes, or what is wrong with one.
fn check_names(names: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let bytes_of = |(id, name): (usize, &String)| {
        let shown: String = name.chars().take(40).collect();
        let bytes = alphabet::unspell(name)
            .ok_or_else(|| format!("entry {id}, {shown:?}, with a character outside"))?;
        if bytes.is_empty() || bytes.len() > usize::from(u16::MAX) {
            return Err(format!("entry {id}, {shown:?}, of {} bytes", bytes.len()));
        }
        Ok(bytes)
    };
    names.iter().enumerate().map(bytes_of).collect()
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().zip(0_u32..))
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from token names to ids 0, 1, 2 and so on")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut entries = Vec::new();
        while let Some((name, id)) = map.next_entry::<String, u32>()? {
            entries.push((id, name));
        }
        entries.sort_unstable();
        if let Some(gap) = entries.iter().zip(0..).position(|((id, _), expected)| *id != expected) {
            let problem = format!("id {gap} is missing from the vocabulary, or there twice");
            return Err(de::Error::custom(problem));
        }
        Ok(Names(entries.into_iter().map(|(_, name)| name).collect()))
    }
}
