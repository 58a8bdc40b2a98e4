//! Settings: every configuration key, its default, and where each value came from.
//!
//! A setting has one dotted name (`run.batch`) and one value, laid down in layers: the default, then
//! the configuration file, then `--set KEY=VALUE`, then a flag of its own. The last layer wins and
//! every value remembers its origin, so that an error can point at the line that caused it and a run
//! folder can record what was in force and why. Nothing here knows what a value means: turning
//! settings into a checked configuration is `config.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use toml::Value;
use toml::de::{DeTable, DeValue};

use crate::error::Error;

/// The configuration of the first run: `configs/quickstart.toml`.
pub const QUICKSTART: &str = include_str!("../../../configs/quickstart.toml");

/// One configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Dotted name, `section.key`.
    pub name: &'static str,
    /// Default as TOML text; `None` for a key that has no value until one is given.
    pub default: Option<&'static str>,
    /// What it means, with units, in one line.
    pub meaning: &'static str,
}

const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default: Some(default), meaning }
}

const fn optional(name: &'static str, meaning: &'static str) -> Key {
    Key { name, default: None, meaning }
}

/// Every key there is, section by section, in the order in which they are written out.
pub const KEYS: &[Key] = &[
    optional("model.vocabulary", "V; taken from the tokenizer when absent"),
    key("model.context", "256", "T, tokens a sequence"),
    key("model.channels", "128", "C, width of the residual stream"),
    key("model.layers", "4", "L, transformer blocks"),
    key("model.heads", "4", "H, attention heads; C must be divisible by it"),
    key(
        "optimizer.state",
        "\"e4\"",
        "state format of the two moments, with options such as \"ustate1q:v_bits=3\"; `inspect-formats` lists them",
    ),
    key(
        "optimizer.bias",
        "16",
        "exponent bias of e4 and e4s, 0 to 40, or \"auto\" for one per tensor",
    ),
    key("optimizer.lr", "1e-3", "peak learning rate"),
    key("optimizer.betas", "[0.9, 0.999]", "decay rates of the two moments"),
    key("optimizer.eps", "1e-8", "added to the denominator"),
    key("optimizer.weight_decay", "0.01", "decoupled decay of matrices; vectors are not decayed"),
    key(
        "optimizer.clip_norm",
        "0.0",
        "global gradient norm above which gradients are scaled down; 0 is off",
    ),
    key(
        "optimizer.on_nonfinite",
        "\"stop\"",
        "a non-finite update: \"stop\" the run or \"skip\" the update",
    ),
    key("schedule.kind", "\"linear\"", "linear, cosine, constant or warmup-stable-decay"),
    key("schedule.unit", "\"updates\"", "what warmup and decay are counted in: updates or tokens"),
    key("schedule.warmup", "0", "length of the linear rise to the peak"),
    optional("schedule.decay", "length of the final fall (warmup-stable-decay only)"),
    key("schedule.final_fraction", "0.0", "learning rate at the end, as a fraction of the peak"),
    key("data.source", "\"tapes\"", "tapes, or stories made by the program itself"),
    optional(
        "data.train_tokens",
        "training tape (*.tokens.u32 or .u16) or set (*.tape-set.json); a list of them is a mixture",
    ),
    optional("data.train_byte_lengths", "its byte lengths; found beside the tape when absent"),
    optional("data.validation_tokens", "validation tape or set"),
    optional("data.validation_byte_lengths", "its byte lengths; found beside the tape when absent"),
    optional("data.tokenizer", "tokenizer file; the bundled one when absent"),
    key("data.order", "\"sequential\"", "sequential: the tape once, in order; or shuffled windows"),
    key("data.shuffle_seed", "1", "seed of the shuffled order"),
    optional(
        "data.weights",
        "share of each tape of a mixture, such as [0.7, 0.3]; equal when absent",
    ),
    key("data.range_tokens", "16777216", "tokens of a range (64 MiB), read and shuffled together"),
    key("data.epochs", "1", "how often a shuffled run may go through a tape"),
    optional("data.epoch_tokens", "length of a virtual epoch; the whole of the tapes when absent"),
    key("data.prefetch", "true", "read the next range ahead on a thread; never changes the order"),
    key(
        "data.verify",
        "\"opening\"",
        "hold tapes against their hashes at opening, or block by block when reading",
    ),
    key("data.stories_bytes", "4000000", "bytes of story text to train on (source = stories)"),
    key("data.stories_vocabulary", "1024", "entries of the tokenizer trained on the stories"),
    key("data.stories_seed", "1", "seed of the story generator"),
    optional("run.updates", "length of the run in updates; give one of updates, tokens, rdq"),
    optional(
        "run.tokens",
        "length of the run in training tokens, or \"tape\" for all of the tape once",
    ),
    optional("run.rdq", "length of the run in reference data quanta of 1,000,000,000 source bytes"),
    key("run.batch", "8", "B, sequences in a micro-batch"),
    key("run.accumulation", "1", "micro-batches in an update, those of all ranks together"),
    key(
        "run.reduction",
        "\"fast\"",
        "order in which gradients of micro-batches are added: fast, or fixed for the same bytes with any number of ranks",
    ),
    key(
        "run.sharded",
        "false",
        "ranks divide the optimizer's state among them; changes no byte of a fixed reduction",
    ),
    key(
        "run.recompute",
        "\"none\"",
        "activations of the backward pass: \"none\" keeps all, \"block\" computes those of a block once more",
    ),
    key("run.seed", "1", "seed of initial weights, stochastic rounding and sampling"),
    key("run.device", "\"auto\"", "auto, cpu, cuda or cuda:N"),
    key(
        "run.precision",
        "\"auto\"",
        "precision of matrix products: fp32, tf32 or bf16; auto is bf16 on CUDA and fp32 on the CPU",
    ),
    key("run.threads", "0", "CPU threads; 0 takes all cores"),
    key("run.validate_every", "200", "updates between validations; 0 validates at the end only"),
    key("run.validation_windows", "0", "sequences in a validation; 0 takes the whole tape"),
    key("run.checkpoint_every", "500", "updates between checkpoints; 0 keeps the last only"),
    key("run.keep_last", "1", "checkpoints kept besides the best"),
    key("run.keep_best", "false", "also keep the checkpoint of the lowest validation loss"),
    key("run.log_every", "1", "updates between lines of metrics.jsonl"),
    key("run.sample_tokens", "0", "tokens of a sample to print at the end; 0 prints none"),
    key("run.sample_prompt", "\"\"", "text that the sample continues"),
    key("run.sample_temperature", "0.7", "temperature of the sample"),
    optional(
        "run.initial",
        "checkpoint or run folder whose parameters training starts from; drawn when absent",
    ),
    key(
        "run.shadow",
        "[]",
        "formats that are fed the gradients of the run beside it, such as [\"e4\", \"e4@18\", \"block8\"]",
    ),
    key("run.shadow_every", "1", "updates between gradients that shadows are fed"),
    key("run.shadow_measure_every", "50", "gradients between lines of shadow.jsonl"),
    key(
        "run.tensorboard",
        "false",
        "also write events for TensorBoard, in tensorboard/ of the run folder",
    ),
    key(
        "run.perturbation",
        "0.0",
        "relative size of a random change to the first parameters, such as 1e-6; shows the noise of a run",
    ),
    optional("run.output_dir", "run folder; runs/NAME-N with the first free N when absent"),
];

/// What a run may be long by; it has one of them.
pub(crate) const LENGTHS: [&str; 3] = ["run.updates", "run.tokens", "run.rdq"];

/// A value and the place that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Where it came from, such as `default` or `configs/quickstart.toml line 7`.
    pub origin: String,
}

/// Values of configuration keys, laid down in layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Setting>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    /// The defaults alone.
    ///
    /// # Panics
    ///
    /// When a default in [`KEYS`] is not a TOML value, which a test rules out.
    #[must_use]
    pub fn new() -> Self {
        let mut settings = Self { values: BTreeMap::new() };
        for key in KEYS {
            if let Some(text) = key.default {
                let value = parse_value(text).expect("defaults are TOML values");
                settings.values.insert(key.name, Setting { value, origin: "default".into() });
            }
        }
        settings
    }

    /// Lays the text of a configuration file over what is there.
    ///
    /// # Errors
    ///
    /// Text that is not TOML, a key outside its section, and an unknown section or key, each with the
    /// line and the nearest known name.
    pub fn add_file(&mut self, text: &str, file: &Path) -> Result<(), Error> {
        let at = |offset: usize| format!("{} line {}", file.display(), line_of(text, offset));
        let root = DeTable::parse(text).map_err(|error| Error::Syntax {
            place: at(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        for (section, entries) in root.get_ref() {
            let place = at(section.span().start);
            let DeValue::Table(entries) = entries.get_ref() else {
                return Err(unknown(section.get_ref(), place));
            };
            for (name, value) in entries {
                let place = at(name.span().start);
                let dotted = format!("{}.{}", section.get_ref(), name.get_ref());
                let value = own(value.get_ref()).ok_or_else(|| Error::WrongType {
                    key: dotted.clone(),
                    place: place.clone(),
                    expected: "a number, a text, true or false, or a list of them",
                    found: value.get_ref().type_str().to_owned(),
                })?;
                self.set(&dotted, value, place)?;
            }
        }
        Ok(())
    }

    /// Lays one `KEY=VALUE` over what is there. The value is TOML; a bare word counts as text.
    ///
    /// # Errors
    ///
    /// An argument without `=`, and an unknown key.
    pub fn add_assignment(&mut self, assignment: &str) -> Result<(), Error> {
        let place = format!("--set {assignment}");
        let Some((name, text)) = assignment.split_once('=') else {
            return Err(Error::Syntax { place, message: "expected KEY=VALUE".into() });
        };
        let value = parse_value(text).unwrap_or_else(|| Value::String(text.trim().to_owned()));
        self.set(name.trim(), value, place)
    }

    /// Lays a value over what is there; `place` says where it came from.
    fn set(&mut self, name: &str, value: Value, place: String) -> Result<(), Error> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(unknown(name, place));
        };
        if place.starts_with("--") && LENGTHS.contains(&name) {
            self.make_way_for_length();
        }
        self.values.insert(key.name, Setting { value, origin: place });
        Ok(())
    }

    /// A run has one length. One that is given on the command line replaces that of the configuration file.
    fn make_way_for_length(&mut self) {
        self.values
            .retain(|name, setting| !LENGTHS.contains(name) || setting.origin.starts_with("--"));
    }

    /// Lays a text over what is there.
    ///
    /// # Errors
    ///
    /// An unknown key.
    pub fn set_text(&mut self, name: &str, text: &str, place: &str) -> Result<(), Error> {
        self.set(name, Value::String(text.to_owned()), place.to_owned())
    }

    /// Lays a value over what is there, as [`Settings::add_assignment`] does with text.
    ///
    /// # Errors
    ///
    /// An unknown key.
    pub fn assign(&mut self, name: &str, value: Value, place: &str) -> Result<(), Error> {
        self.set(name, value, place.to_owned())
    }

    /// Lays a list of texts over what is there.
    ///
    /// # Errors
    ///
    /// An unknown key.
    pub fn set_texts(&mut self, name: &str, texts: &[String], place: &str) -> Result<(), Error> {
        let items = texts.iter().cloned().map(Value::String).collect();
        self.set(name, Value::Array(items), place.to_owned())
    }

    /// The value of a key as TOML text; `none` where it has no value.
    ///
    /// # Panics
    ///
    /// As for [`Settings::get`].
    #[must_use]
    pub fn shown(&self, name: &str) -> String {
        self.get(name).map_or_else(|| "none".to_owned(), |setting| setting.value.to_string())
    }

    /// The keys whose values differ from those of `other`, in the order of [`KEYS`].
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        KEYS.iter().map(|key| key.name).filter(|name| !self.has_same(other, name)).collect()
    }

    /// Whether a key has the same value there, however it is spelled.
    #[must_use]
    pub fn has_same(&self, other: &Self, name: &str) -> bool {
        match (self.values.get(name), other.values.get(name)) {
            (Some(one), Some(other)) => are_equal(&one.value, &other.value),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Takes the value of a key away, its default included.
    pub fn remove(&mut self, name: &str) {
        self.values.remove(name);
    }

    /// The setting of a key, if it has a value.
    ///
    /// # Panics
    ///
    /// When `name` is not in [`KEYS`]: that is a mistake of the caller, not of a user.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        assert!(KEYS.iter().any(|key| key.name == name), "no such key: {name}");
        self.values.get(name)
    }

    /// The text of a key, if it has one.
    ///
    /// # Panics
    ///
    /// As for [`Settings::get`].
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|setting| setting.value.as_str())
    }

    /// The settings as TOML, each with a comment that says where it came from.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text =
            String::from("# Effective configuration; each line says where its value came from.\n");
        let mut section = "";
        for key in KEYS {
            let Some(setting) = self.values.get(key.name) else { continue };
            let (this, name) = key.name.split_once('.').expect("every key has a section");
            if this != section {
                let _ = write!(text, "\n[{this}]\n");
                section = this;
            }
            let _ = writeln!(
                text,
                "{:<50} # {}",
                format!("{name} = {}", setting.value),
                setting.origin
            );
        }
        text
    }
}

/// One value of TOML, such as `3` or `"e4"`; `None` when the text is not one.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    DeValue::parse(text.trim()).ok().and_then(|value| own(value.get_ref()))
}

/// Whether two texts spell one value, as [`Settings::add_assignment`] reads them: `1e-3` is `0.001`, and `"e4"` is `e4`.
pub(crate) fn is_same_value(one: &str, other: &str) -> bool {
    let value =
        |text: &str| parse_value(text).unwrap_or_else(|| Value::String(text.trim().to_owned()));
    one == other || are_equal(&value(one), &value(other))
}

/// Whether values are equal, whole numbers and others alike.
fn are_equal(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    match (one, other) {
        (Value::Integer(one), Value::Integer(other)) => one == other,
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| are_equal(a, b))
        }
        _ => match (number(one), number(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        },
    }
}

/// The value without its link to the text; `None` for dates and tables, which no key takes.
pub(crate) fn own(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()?)
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().ok()?),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|item| own(item.get_ref())).collect::<Option<_>>()?)
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}

/// The line, counted from 1, that an offset lies in.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The error for a name that is no key, with the known name that is nearest to it.
fn unknown(name: &str, place: String) -> Error {
    let sections =
        KEYS.iter().filter_map(|key| key.name.split_once('.')).map(|(section, _)| section);
    let nearest = KEYS
        .iter()
        .map(|key| key.name)
        .chain(sections)
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)))
        .expect("there are keys");
    Error::UnknownKey { key: name.to_owned(), place, nearest: nearest.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::is_same_value;

    #[test]
    fn values_are_compared_not_their_texts() {
        for (one, other) in [
            ("1e-3", "0.001"),
            ("1", "1.0"),
            ("[0.9, 95e-2]", "[0.90,0.95]"),
            ("\"e4\"", "e4"),
            ("block8:block=256", "\"block8:block=256\""),
        ] {
            assert!(is_same_value(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("1e-3", "0.0010001"),
            ("9007199254740993", "9007199254740992"),
            ("[0.9, 0.95]", "[0.9]"),
            ("e4", "e4s"),
            ("true", "1"),
            ("none", "0"),
        ] {
            assert!(!is_same_value(one, other), "{one} {other}");
        }
    }
}
