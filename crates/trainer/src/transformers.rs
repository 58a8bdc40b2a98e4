//! Weights out to, and in from, Hugging Face `transformers`: a folder that it loads as GPT-2.
//!
//! | file | what it holds |
//! |---|---|
//! | `config.json` | the shape |
//! | `model.safetensors` | parameters by GPT-2's names behind `transformer.`, f32 |
//! | `tokenizer.json`, `tokenizer_config.json` | the tokenizer, the end of document named `<|endoftext|>` |
//!
//! Our network is GPT-2's and so are its names and shapes, so nothing is transposed or renamed but for the prefix.

mod import;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use model::Layout;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tape::aside::{sync_folder, write_file};

use crate::checkpoint::write_tensors;
use crate::error::Error;
use crate::restored::Restored;

pub use import::{Imported, import};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// What their names of parameters begin with.
const PREFIX: &str = "transformer.";

/// GPT-2's name of the end of document.
const END_OF_DOCUMENT: &str = "<|endoftext|>";

/// The epsilon of GPT-2's and our LayerNorm.
const NORM_EPSILON: f64 = 1e-5;

/// Writes a model into `folder`, which must be new or empty, so that `transformers` loads it as GPT-2 with its
/// tokenizer. The files depend on the model alone.
///
/// # Errors
///
/// A folder that holds something, and what the file system refuses.
pub fn export(model: &Restored, folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    if fs::read_dir(folder).map_err(Error::io("list", folder))?.next().is_some() {
        return Err(Error::FolderTaken { folder: folder.to_owned() });
    }
    let layout = Layout::new(model.network());
    let named: Vec<String> =
        layout.slots().iter().map(|slot| format!("{PREFIX}{}", slot.name)).collect();
    let tensors = layout.slots().iter().zip(&named).map(|(slot, name)| {
        let bytes = bytemuck::cast_slice(&model.parameters()[slot.range()]);
        (name.as_str(), Dtype::F32, slot.shape.as_slice(), bytes)
    });
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write_tensors(&folder.join(WEIGHTS), Some(about), tensors)?;
    let tokenizer = model.tokenizer.with_named_end(END_OF_DOCUMENT)?;
    write_file(&folder.join(TOKENIZER), &tokenizer)?;
    write_json(&folder.join(TOKENIZER_CONFIG), &tokenizer_config(model))?;
    write_json(&folder.join(CONFIG), &config(model))?;
    Ok(sync_folder(folder)?)
}

fn config(model: &Restored) -> Value {
    let network = model.network();
    let end = model.tokenizer.end_of_document();
    json!({
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": network.vocabulary(),
        "n_positions": network.context(),
        "n_embd": network.channels(),
        "n_layer": network.layers(),
        "n_head": network.heads(),
        "n_inner": null,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPSILON,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    })
}

fn tokenizer_config(model: &Restored) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_DOCUMENT,
        "eos_token": END_OF_DOCUMENT,
        "model_max_length": model.network().context(),
        "clean_up_tokenization_spaces": false,
    })
}

fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    Ok(write_file(path, format!("{value:#}\n").as_bytes())?)
}
