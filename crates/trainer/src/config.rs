//! The checked configuration of a run.
//!
//! [`Config::new`] turns [`Settings`] into plain typed values once; nothing is checked again later.
//! What depends on the data (does the tape suffice, does the vocabulary fit) is checked where the data is
//! opened, in `corpus.rs`.

mod typed;

use std::path::PathBuf;

use formats::{Bias, Format};
use gpu_kernels::Precision;
use model::Purpose;
use optimizer::{BiasChoice, OnNonfinite};
use tape::reader::{TapeSource, Verify};
use toml::Value;

use crate::error::Error;
use crate::schedule::{Schedule, Shape, Unit};
use crate::settings::{KEYS, Settings};
use crate::shadow::ShadowFormat;
use typed::{Getter, as_number, missing};

/// Everything a run is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The shape of the network.
    pub model: ModelSection,
    /// How parameters are updated.
    pub optimizer: OptimizerSection,
    /// The learning rate over the run.
    pub schedule: Schedule,
    /// What is learned from.
    pub data: DataSection,
    /// Length, batches, device and what is written.
    pub run: RunSection,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSection {
    /// V; that of the tokenizer when absent.
    pub vocabulary: Option<usize>,
    /// T.
    pub context: usize,
    /// C.
    pub channels: usize,
    /// L.
    pub layers: usize,
    /// H.
    pub heads: usize,
}

/// `[optimizer]` without the learning rate, which the schedule has.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerSection {
    /// State format.
    pub format: Format,
    /// Exponent bias of the packed formats.
    pub bias: BiasChoice,
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled decay of matrices.
    pub weight_decay: f64,
    /// Global norm above which gradients are scaled down.
    pub clip_norm: Option<f64>,
    /// What a non-finite update does.
    pub on_nonfinite: OnNonfinite,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq)]
pub struct DataSection {
    /// Where the text comes from.
    pub source: Source,
    /// Tokenizer file; the bundled one, or the one trained on the stories, when absent.
    pub tokenizer: Option<PathBuf>,
    /// In which order training reads it.
    pub order: DataOrder,
    /// Length of a virtual epoch, if it is not the whole of the tapes.
    pub epoch_tokens: Option<u64>,
    /// When tapes are held against their hashes.
    pub verify: Verify,
}

/// In which order training reads its tapes.
#[derive(Clone, Debug, PartialEq)]
pub enum DataOrder {
    /// One tape, once, from its start on.
    Sequential,
    /// Windows in a seeded order.
    Shuffled(ShuffledOrder),
}

/// A seeded order of windows.
#[derive(Clone, Debug, PartialEq)]
pub struct ShuffledOrder {
    /// Its seed.
    pub seed: u64,
    /// The share of each tape; equal when empty.
    pub weights: Vec<f64>,
    /// Tokens of a range.
    pub range_tokens: u64,
    /// How often a tape may be gone through.
    pub epochs: u64,
    /// Whether the next range is read ahead.
    pub prefetch: bool,
}

/// Where the text comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Tapes that were prepared before.
    Tapes {
        /// What is trained on: one tape, or several of a mixture.
        train: Vec<TapeSource>,
        /// What is validated on.
        validation: TapeSource,
    },
    /// Stories that the program makes.
    Stories {
        /// Bytes of training text.
        bytes: u64,
        /// Entries of the tokenizer trained on them.
        vocabulary: usize,
        /// Seed of the generator.
        seed: u64,
    },
}

/// What ends a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// A number of updates.
    Updates(u64),
    /// A number of training tokens.
    Tokens(u64),
    /// A number of reference data quanta of source bytes.
    Rdq(f64),
    /// Every token of the tape, once.
    WholeTape,
}

/// In which order the gradients of micro-batches are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Those of a rank one after the other, then those of ranks: bits depend on the number of ranks.
    Fast,
    /// As one tree of micro-batches, with the same bits for any number of ranks.
    Fixed,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq)]
pub struct RunSection {
    /// What ends it.
    pub length: Length,
    /// B, sequences in a micro-batch.
    pub batch: usize,
    /// Micro-batches in an update, those of all ranks together.
    pub accumulation: usize,
    /// In which order their gradients are added.
    pub reduction: Reduction,
    /// Whether ranks divide the optimizer's state among them.
    pub sharded: bool,
    /// What a pass keeps for its backward half.
    pub purpose: Purpose,
    /// Seed of everything random.
    pub seed: u64,
    /// The checkpoint or run folder that the first parameters come from; drawn when absent.
    pub initial: Option<PathBuf>,
    /// What is fed the gradients of the run beside it.
    pub shadow: ShadowSection,
    /// Whether events for TensorBoard are written too.
    pub tensorboard: bool,
    /// Relative size of a random change to the first parameters.
    pub perturbation: f64,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Precision of matrix products; the device's own choice when absent.
    pub precision: Option<Precision>,
    /// CPU threads; 0 takes all cores.
    pub threads: usize,
    /// Updates between validations, if any before the end.
    pub validate_every: Option<u64>,
    /// Sequences in a validation; the whole tape when absent.
    pub validation_windows: Option<u64>,
    /// Updates between checkpoints, if any before the end.
    pub checkpoint_every: Option<u64>,
    /// Checkpoints kept besides the best, at least one.
    pub keep_last: usize,
    /// Whether the best is kept too.
    pub keep_best: bool,
    /// Updates between lines of metrics.
    pub log_every: u64,
    /// The sample at the end, if one is wanted.
    pub sample: Option<SampleSection>,
}

/// Shadows of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowSection {
    /// Their formats; none for no shadows.
    pub formats: Vec<ShadowFormat>,
    /// Updates between gradients that they are fed.
    pub every: u64,
    /// Gradients between measurements.
    pub measure_every: u64,
}

/// The sample printed at the end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSection {
    /// Tokens at most.
    pub tokens: usize,
    /// What it continues.
    pub prompt: String,
    /// Temperature.
    pub temperature: f64,
}

impl Config {
    /// Checks all settings.
    ///
    /// # Errors
    ///
    /// The first setting that is missing, of the wrong type, or out of range, with the place that it
    /// came from.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let get = Getter { settings };
        Ok(Self {
            model: get.model()?,
            optimizer: get.optimizer()?,
            schedule: get.schedule()?,
            data: get.data()?,
            run: get.run()?,
        })
    }
}

/// Whether a setting decides the bits of a run. Folders, devices, threads and what is reported do not.
#[must_use]
pub fn decides_bits(settings: &Settings, name: &str) -> bool {
    let is_shuffled = settings.text("data.order") == Some("shuffled");
    match name.split_once('.') {
        Some(("model" | "optimizer" | "schedule", _)) => true,
        Some(("data", key)) => {
            let decides_order = ["order", "shuffle_seed", "weights", "range_tokens"].contains(&key);
            key == "source" || key.starts_with("stories") || decides_order && is_shuffled
        }
        // Runs of before this key added up the fast way.
        _ if name == "run.reduction" => settings.text(name) == Some("fixed"),
        _ => matches!(
            name,
            "run.updates"
                | "run.tokens"
                | "run.rdq"
                | "run.batch"
                | "run.accumulation"
                | "run.seed"
                | "run.perturbation"
                | "run.precision"
        ),
    }
}

/// The settings that a resumed run must share with the run that it continues: all that decides the bits.
/// Folders, devices, threads and what is reported may change.
#[must_use]
pub fn identity(settings: &Settings) -> Vec<(String, String)> {
    KEYS.iter()
        .filter(|key| decides_bits(settings, key.name))
        .map(|key| (key.name.to_owned(), settings.shown(key.name)))
        .collect()
}

impl Getter<'_> {
    fn model(&self) -> Result<ModelSection, Error> {
        Ok(ModelSection {
            vocabulary: self.optional_whole("model.vocabulary", 1)?.map(|v| v as usize),
            context: self.whole("model.context", 1)? as usize,
            channels: self.whole("model.channels", 1)? as usize,
            layers: self.whole("model.layers", 1)? as usize,
            heads: self.whole("model.heads", 1)? as usize,
        })
    }

    fn optimizer(&self) -> Result<OptimizerSection, Error> {
        let clip_norm = self.number("optimizer.clip_norm", "0 or more", |x| x >= 0.0)?;
        Ok(OptimizerSection {
            format: self.format()?,
            bias: self.bias()?,
            betas: self.betas()?,
            eps: self.number("optimizer.eps", "more than 0", |x| x > 0.0)?,
            weight_decay: self.number("optimizer.weight_decay", "0 or more", |x| x >= 0.0)?,
            clip_norm: (clip_norm > 0.0).then_some(clip_norm),
            on_nonfinite: self.choice(
                "optimizer.on_nonfinite",
                &[("stop", OnNonfinite::Hold), ("skip", OnNonfinite::Skip)],
            )?,
        })
    }

    fn schedule(&self) -> Result<Schedule, Error> {
        let fraction = |x: f64| (0.0..=1.0).contains(&x);
        let kind = self.text("schedule.kind")?;
        let shape = match kind.as_str() {
            "linear" => Shape::Linear,
            "cosine" => Shape::Cosine,
            "constant" => Shape::Constant,
            "warmup-stable-decay" => {
                let needed = "schedule.kind = \"warmup-stable-decay\" needs the length of its fall";
                let decay = self.optional_whole("schedule.decay", 0)?;
                Shape::WarmupStableDecay {
                    decay: decay.ok_or_else(|| missing("schedule.decay", needed))?,
                }
            }
            _ => {
                let expected = "one of linear, cosine, constant, warmup-stable-decay";
                return Err(self.wrong("schedule.kind", expected));
            }
        };
        Ok(Schedule {
            peak: self.number("optimizer.lr", "more than 0", |x| x > 0.0)?,
            shape,
            unit: self
                .choice("schedule.unit", &[("updates", Unit::Updates), ("tokens", Unit::Tokens)])?,
            warmup: self.whole("schedule.warmup", 0)?,
            final_fraction: self.number("schedule.final_fraction", "from 0 to 1", fraction)?,
        })
    }

    fn data(&self) -> Result<DataSection, Error> {
        let source = match self.text("data.source")?.as_str() {
            "tapes" => {
                Source::Tapes { train: self.train_tapes()?, validation: self.validation_tape()? }
            }
            "stories" => Source::Stories {
                bytes: self.whole("data.stories_bytes", 10_000)?,
                vocabulary: self.whole("data.stories_vocabulary", 256)? as usize,
                seed: self.whole("data.stories_seed", 0)?,
            },
            _ => return Err(self.wrong("data.source", "tapes or stories")),
        };
        Ok(DataSection {
            order: self.order(&source)?,
            source,
            tokenizer: self.optional_text("data.tokenizer")?.map(PathBuf::from),
            epoch_tokens: self.optional_whole("data.epoch_tokens", 1)?,
            verify: self.choice(
                "data.verify",
                &[("opening", Verify::Now), ("reading", Verify::WhenRead)],
            )?,
        })
    }

    fn train_tapes(&self) -> Result<Vec<TapeSource>, Error> {
        let name = "data.train_tokens";
        let Some(setting) = self.settings.get(name) else { return Err(missing(name, GIVE_TAPE)) };
        let Value::Array(items) = &setting.value else {
            return Ok(vec![self.tape(name, "data.train_byte_lengths")?]);
        };
        let paths: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
        let paths = paths.filter(|paths| !paths.is_empty());
        let paths =
            paths.ok_or_else(|| self.wrong(name, "the path of a tape, or a list of paths"))?;
        Ok(paths.into_iter().map(TapeSource::at).collect())
    }

    fn validation_tape(&self) -> Result<TapeSource, Error> {
        self.tape("data.validation_tokens", "data.validation_byte_lengths")
    }

    fn tape(&self, tokens: &str, byte_lengths: &str) -> Result<TapeSource, Error> {
        let path = self.optional_text(tokens)?.ok_or_else(|| missing(tokens, GIVE_TAPE))?;
        match (TapeSource::at(path), self.optional_text(byte_lengths)?) {
            (source, None) => Ok(source),
            (TapeSource::Files(files), Some(lengths)) => {
                Ok(TapeSource::Files(files.with_byte_lengths(lengths)))
            }
            (TapeSource::Set(_), Some(_)) => {
                Err(self.wrong(byte_lengths, "absent: the files of a set have their own"))
            }
        }
    }

    fn order(&self, source: &Source) -> Result<DataOrder, Error> {
        let is_mixture = matches!(source, Source::Tapes { train, .. } if train.len() > 1);
        match self.text("data.order")?.as_str() {
            "sequential" if is_mixture => {
                Err(self.wrong("data.order", "shuffled, since there are several training tapes"))
            }
            "sequential" => Ok(DataOrder::Sequential),
            "shuffled" => Ok(DataOrder::Shuffled(ShuffledOrder {
                seed: self.whole("data.shuffle_seed", 0)?,
                weights: self.weights()?,
                range_tokens: self.whole("data.range_tokens", 1)?,
                epochs: self.whole("data.epochs", 1)?,
                prefetch: self.choice_bool("data.prefetch")?,
            })),
            _ => Err(self.wrong("data.order", "sequential or shuffled")),
        }
    }

    fn weights(&self) -> Result<Vec<f64>, Error> {
        let Some(setting) = self.settings.get("data.weights") else { return Ok(Vec::new()) };
        let wrong = || self.wrong("data.weights", "a list of positive numbers");
        let Value::Array(items) = &setting.value else { return Err(wrong()) };
        items.iter().map(as_number).collect::<Option<_>>().ok_or_else(wrong)
    }

    fn run(&self) -> Result<RunSection, Error> {
        let precision = match self.text("run.precision")?.as_str() {
            "auto" => None,
            name => Some(
                Precision::from_name(name)
                    .ok_or_else(|| self.wrong("run.precision", "auto, fp32, tf32 or bf16"))?,
            ),
        };
        let every = |name| Ok::<_, Error>(Some(self.whole(name, 0)?).filter(|&count| count > 0));
        let warm = |x: f64| x >= 0.0;
        let tokens = self.whole("run.sample_tokens", 0)? as usize;
        let sample = SampleSection {
            tokens,
            prompt: self.text("run.sample_prompt")?,
            temperature: self.number("run.sample_temperature", "0 or more", warm)?,
        };
        Ok(RunSection {
            length: self.length()?,
            batch: self.whole("run.batch", 1)? as usize,
            accumulation: self.whole("run.accumulation", 1)? as usize,
            reduction: self.choice(
                "run.reduction",
                &[("fast", Reduction::Fast), ("fixed", Reduction::Fixed)],
            )?,
            sharded: self.choice_bool("run.sharded")?,
            purpose: self.choice(
                "run.recompute",
                &[("none", Purpose::Training), ("block", Purpose::TrainingRecomputed)],
            )?,
            seed: self.whole("run.seed", 0)?,
            initial: self.optional_text("run.initial")?.map(PathBuf::from),
            shadow: ShadowSection {
                formats: self.shadows()?,
                every: self.whole("run.shadow_every", 1)?,
                measure_every: self.whole("run.shadow_measure_every", 1)?,
            },
            tensorboard: self.choice_bool("run.tensorboard")?,
            perturbation: self
                .number("run.perturbation", "from 0 to less than 1", |x| (0.0..1.0).contains(&x))?,
            device: self.text("run.device")?,
            precision,
            threads: self.whole("run.threads", 0)? as usize,
            validate_every: every("run.validate_every")?,
            validation_windows: every("run.validation_windows")?,
            checkpoint_every: every("run.checkpoint_every")?,
            keep_last: self.whole("run.keep_last", 1)? as usize,
            keep_best: self.choice_bool("run.keep_best")?,
            log_every: self.whole("run.log_every", 1)?,
            sample: (tokens > 0).then_some(sample),
        })
    }

    /// Exactly one of the three lengths must be given.
    fn length(&self) -> Result<Length, Error> {
        let names = ["run.updates", "run.tokens", "run.rdq"];
        let given: Vec<&str> =
            names.into_iter().filter(|name| self.settings.get(name).is_some()).collect();
        match given[..] {
            [] => Err(missing("run.updates", "give one of run.updates, run.tokens, run.rdq")),
            ["run.updates"] => Ok(Length::Updates(self.whole("run.updates", 1)?)),
            ["run.rdq"] => Ok(Length::Rdq(self.number("run.rdq", "more than 0", |x| x > 0.0)?)),
            [_] => match self.value("run.tokens")? {
                Value::String(text) if text == "tape" => Ok(Length::WholeTape),
                Value::Integer(_) => Ok(Length::Tokens(self.whole("run.tokens", 1)?)),
                _ => Err(self.wrong("run.tokens", "a whole number of tokens or \"tape\"")),
            },
            [first, second, ..] => Err(Error::WrongValue {
                key: second.to_owned(),
                place: self.place(second),
                expected: format!("absent, since `{first}` is given: a run has one length"),
                found: self.value(second)?.to_string(),
            }),
        }
    }

    fn format(&self) -> Result<Format, Error> {
        let text = self.text("optimizer.state")?;
        text.parse().map_err(|error| match error {
            formats::Error::UnknownFormat { .. } => {
                let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
                let expected = format!("one of {}, with options or without", names.join(", "));
                self.wrong("optimizer.state", &expected)
            }
            // Such an error begins with what it expected.
            other => {
                self.wrong("optimizer.state", other.to_string().trim_start_matches("expected "))
            }
        })
    }

    fn shadows(&self) -> Result<Vec<ShadowFormat>, Error> {
        let name = "run.shadow";
        let wrong = || self.wrong(name, "a list of formats, each FORMAT or FORMAT@BIAS");
        let Value::Array(items) = self.value(name)? else { return Err(wrong()) };
        let mut shadows: Vec<ShadowFormat> = Vec::new();
        for item in items {
            let text = item.as_str().ok_or_else(wrong)?;
            let shadow = ShadowFormat::parse(text)
                .map_err(|error| self.wrong(name, error.trim_start_matches("expected ")))?;
            if shadows.contains(&shadow) {
                return Err(self.wrong(name, "a list without anything twice"));
            }
            shadows.push(shadow);
        }
        Ok(shadows)
    }

    fn bias(&self) -> Result<BiasChoice, Error> {
        let wrong = || self.wrong("optimizer.bias", "a whole number from 0 to 40, or \"auto\"");
        match self.value("optimizer.bias")? {
            Value::String(text) if text == "auto" => Ok(BiasChoice::Auto),
            Value::Integer(number) => {
                let bias = u32::try_from(*number).ok().and_then(|number| Bias::new(number).ok());
                bias.map(BiasChoice::Fixed).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    fn betas(&self) -> Result<[f64; 2], Error> {
        let wrong =
            || self.wrong("optimizer.betas", "two numbers, each at least 0 and less than 1");
        let Value::Array(items) = self.value("optimizer.betas")? else { return Err(wrong()) };
        let betas: Option<Vec<f64>> = items.iter().map(as_number).collect();
        match betas.as_deref() {
            Some(&[first, second]) if [first, second].iter().all(|b| (0.0..1.0).contains(b)) => {
                Ok([first, second])
            }
            _ => Err(wrong()),
        }
    }
}

/// How to give a tape that is missing.
const GIVE_TAPE: &str =
    "give the tape (`prepare` makes one from text), or set data.source = \"stories\"";
