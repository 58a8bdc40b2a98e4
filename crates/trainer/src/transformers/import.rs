//! A folder of `transformers` becomes a checkpoint at update 0, to sample, score, or train from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use model::Layout;
use optimizer::SavedState;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use tape::aside::write_file;
use tape::tokenizer::Tokenizer;

use super::{CONFIG, NORM_EPSILON, PREFIX, TOKENIZER, WEIGHTS};
use crate::checkpoint::{Checkpoints, Keep, Snapshot};
use crate::error::Error;
use crate::manifest::{FORMAT_VERSION, Manifest, Progress, Shape};
use crate::read;

/// The name of the settings that training from an imported model needs.
const SETTINGS: &str = "start.toml";

/// What [`import`] wrote.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// The tokenizer's file, for `prepare` and for training.
    pub tokenizer: PathBuf,
    /// Settings with the shape, the tokenizer and the initial parameters of a run that goes on from here.
    pub settings: PathBuf,
    /// The shape of the network.
    pub shape: Shape,
}

/// Takes the GPT-2 in `input` and writes it as a checkpoint at update 0 into `output`, which must be new or hold no
/// run, with the settings that training from it needs.
///
/// Element types f32, f16 and bf16 are taken; names may have the prefix `transformer.` or, as in the published
/// files of GPT-2, none. Masks among the tensors are left out, and an output head of its own must equal
/// the token table.
///
/// # Errors
///
/// [`Error::Foreign`] for anything that our network would compute differently or that is missing, spoilt or
/// too much, by name; and what the file system refuses.
pub fn import(input: &Path, output: &Path) -> Result<Imported, Error> {
    let shape = shape(&input.join(CONFIG))?;
    let layout = Layout::new(shape.network()?);
    let parameters = parameters(&input.join(WEIGHTS), &layout)?;
    let file = input.join(TOKENIZER);
    let json = read::bytes(&file).map_err(Error::io("read", &file))?;
    let tokenizer = Tokenizer::from_foreign(&json, &file)?;
    if tokenizer.vocabulary() as usize > shape.vocabulary {
        return Err(Error::Foreign {
            file,
            expected: format!("a vocabulary of at most {}, the model's", shape.vocabulary),
            found: tokenizer.vocabulary().to_string(),
        });
    }
    let folder = output.join("checkpoints");
    if folder.exists() {
        return Err(Error::FolderTaken { folder: output.to_owned() });
    }
    let identity = BTreeMap::from([("imported".to_owned(), "gpt2-safetensors".to_owned())]);
    let snapshot = Snapshot {
        manifest: Manifest {
            format_version: FORMAT_VERSION,
            model: shape,
            progress: Progress::default(),
            identity,
            optimizer: BTreeMap::new(),
            files: BTreeMap::new(),
            checksum: String::new(),
        },
        layout: &layout,
        parameters: &parameters,
        optimizer: &SavedState { arrays: Vec::new(), metadata: BTreeMap::new() },
        tokenizer: tokenizer.json(),
    };
    let checkpoint = Checkpoints::open(&folder)?.write(snapshot, Keep { last: 1, best: false })?;
    let imported = Imported {
        tokenizer: checkpoint.join(TOKENIZER),
        settings: output.join(SETTINGS),
        checkpoint,
        shape,
    };
    write_file(&imported.settings, imported.start().as_bytes())?;
    Ok(imported)
}

impl Imported {
    fn start(&self) -> String {
        let Shape { vocabulary, context, channels, layers, heads } = self.shape;
        let text = |path: &Path| toml::Value::String(path.to_string_lossy().into_owned());
        format!(
            "# Training that starts from an imported model; tapes and the length of the run are still to be given.\n\n\
             [model]\nvocabulary = {vocabulary}\ncontext = {context}\nchannels = {channels}\nlayers = {layers}\n\
             heads = {heads}\n\n[data]\ntokenizer = {}\n\n[run]\ninitial = {}\n",
            text(&self.tokenizer),
            text(&self.checkpoint)
        )
    }
}

/// The shape that a `config.json` tells of, when its network is ours.
fn shape(file: &Path) -> Result<Shape, Error> {
    let text = read::own_text(file).map_err(Error::io("read", file))?;
    let foreign = |expected: &str, found: String| Error::Foreign {
        file: file.to_owned(),
        expected: expected.to_owned(),
        found,
    };
    let config: Value =
        serde_json::from_str(&text).map_err(|error| foreign("JSON", error.to_string()))?;
    let number = |key: &str| {
        let found = config[key].as_u64().and_then(|number| usize::try_from(number).ok());
        found.ok_or_else(|| foreign(&format!("`{key}`, a whole number"), config[key].to_string()))
    };
    // A key that is absent has the value of GPT-2.
    let is = |key: &str, wanted: &Value| config[key].is_null() || config[key] == *wanted;
    let rules = [
        ("model_type", config["model_type"] == "gpt2", "\"gpt2\""),
        (
            "activation_function",
            is("activation_function", &"gelu_new".into())
                || config["activation_function"] == "gelu_pytorch_tanh",
            "\"gelu_new\", the tanh form",
        ),
        ("layer_norm_epsilon", is("layer_norm_epsilon", &NORM_EPSILON.into()), "1e-5"),
        ("scale_attn_weights", is("scale_attn_weights", &true.into()), "true"),
        (
            "scale_attn_by_inverse_layer_idx",
            is("scale_attn_by_inverse_layer_idx", &false.into()),
            "false",
        ),
        ("add_cross_attention", is("add_cross_attention", &false.into()), "false"),
        ("tie_word_embeddings", is("tie_word_embeddings", &true.into()), "true"),
    ];
    if let Some((key, _, expected)) = rules.into_iter().find(|(_, holds, _)| !holds) {
        return Err(foreign(&format!("`{key}` = {expected}"), config[key].to_string()));
    }
    let channels = number("n_embd")?;
    if !is("n_inner", &(4 * channels).into()) {
        return Err(foreign("`n_inner` = 4 `n_embd`", config["n_inner"].to_string()));
    }
    Ok(Shape {
        vocabulary: number("vocab_size")?,
        context: number("n_positions")?,
        channels,
        layers: number("n_layer")?,
        heads: number("n_head")?,
    })
}

fn parameters(file: &Path, layout: &Layout) -> Result<Vec<f32>, Error> {
    let foreign =
        |expected: String, found: String| Error::Foreign { file: file.to_owned(), expected, found };
    let bytes = read::bytes(file).map_err(Error::io("read", file))?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| foreign("a safetensors file".into(), error.to_string()))?;
    let mut found: BTreeMap<&str, TensorView<'_>> = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        if found.insert(name.strip_prefix(PREFIX).unwrap_or(name), tensor).is_some() {
            return Err(foreign("every tensor once".into(), format!("`{name}` twice")));
        }
    }
    let mut parameters = vec![0.0; layout.parameters()];
    for slot in layout.slots() {
        let tensor = found.remove(slot.name.as_str());
        let fitting = tensor.as_ref().filter(|tensor| tensor.shape() == slot.shape);
        let Some(values) = fitting.and_then(values) else {
            let expected = format!("`{}` of shape {:?} in F32, F16 or BF16", slot.name, slot.shape);
            let found = tensor.map_or("none".to_owned(), |tensor| {
                format!("shape {:?} in {:?}", tensor.shape(), tensor.dtype())
            });
            return Err(foreign(expected, found));
        };
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let expected = format!("`{}` with finite values", slot.name);
            return Err(foreign(expected, format!("{} at {index}", values[index])));
        }
        parameters[slot.range()].copy_from_slice(&values);
    }
    if let Some(head) = found.remove("lm_head.weight") {
        let table = &layout.slots()[0];
        if values(&head).is_none_or(|head| head[..] != parameters[table.range()]) {
            let expected = format!("an output head that equals `{}`", table.name);
            return Err(foreign(expected, "another `lm_head.weight`".into()));
        }
    }
    let is_mask =
        |name: &&&str| name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    match found.keys().find(|name| !is_mask(name)) {
        Some(name) => Err(foreign(
            format!("no tensors but GPT-2's {}", layout.slots().len()),
            format!("`{name}`"),
        )),
        None => Ok(parameters),
    }
}

/// The values of a tensor in f32, exactly; none for another element type.
fn values(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = tensor.data();
    let halves = || bytes.chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]));
    Some(match tensor.dtype() {
        Dtype::F32 => {
            let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
            words.map(f32::from_le_bytes).collect()
        }
        Dtype::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        _ => return None,
    })
}
