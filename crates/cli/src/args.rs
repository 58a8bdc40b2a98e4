//! The command line, as clap reads it. What each command does lives in the file of its name.

mod studies;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use studies::{BenchTrain, Campaign, Compare, Fleet, Report, Watch};

/// Version, commit and features, as `--version` and `doctor` say them.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("PACKED_ADAMW_COMMIT"),
    ", features cuda)"
);

/// Trains GPT-style models with AdamW whose two moments persist packed.
#[derive(Debug, Parser)]
#[command(name = "packed-adamw", version = VERSION, propagate_version = true, term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; without arguments, a small one on stories that the program makes
    Train(Train),
    /// Run a command in several processes of this host that share its work
    Launch(Launch),
    /// Make one update on made-up tokens, to see that everything works
    Smoke(Smoke),
    /// Score a checkpoint on a tape
    Eval(Eval),
    /// Continue a text with a trained model
    Generate(Generate),
    /// Turn text into tapes
    Prepare(Prepare),
    /// Train, apply or look at a tokenizer
    #[command(subcommand)]
    Tokenizer(Tokenizer),
    /// Show what each state format can hold
    InspectFormats(InspectFormats),
    /// Show what a tape, a checkpoint or a run folder holds
    Inspect(Inspect),
    /// Compare values of a setting in matched pairs of runs, with intervals and a floor of noise
    Compare(Compare),
    /// Run a file of models and settings, promote the best, write results and reports
    Campaign(Campaign),
    /// Write pages on a set of runs: curves, results, settings, environment
    Report(Report),
    /// Watch a run or a study: curves, rates, time left
    Watch(Watch),
    /// Make one update of a run again and show the norms of every tensor
    Replay(Replay),
    /// Show what this machine can do
    Doctor(Doctor),
    /// Compare the optimizers of this machine's devices with the authority, bit for bit
    Check(Check),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
    /// Write a model for other programs
    Export(Export),
    /// Take a model from another program
    Import(Import),
    /// Move the optimizer state of a run to another format, or take over another optimizer's
    Convert(Convert),
    /// Print a script that completes this command line
    Completions(Completions),
    /// Write manual pages
    Manual(Manual),
    /// Write CUDA kernels for machines without NVRTC
    Kernels(Kernels),
}

/// Where a run's settings come from.
#[derive(Debug, Args)]
pub struct Configuration {
    /// Configuration file; configs/quickstart.toml when absent
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override one key, such as optimizer.state=e4; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub assignments: Vec<String>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    pub configuration: Configuration,
    /// Run folder; runs/NAME-N with the first free N when absent
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Go on with the run in the run folder from its latest checkpoint
    #[arg(long)]
    pub resume: bool,
    /// Feed the gradients to other state formats too and record how their steps differ:
    /// FORMAT or FORMAT@BIAS,...
    #[arg(long, value_name = "LIST")]
    pub shadow: Option<String>,
    /// Stop with a checkpoint when the process that started this one is gone
    #[arg(long, hide = true)]
    pub stop_with_parent: bool,
    /// Show what would run (parameters, bytes, updates, time) and write nothing
    #[arg(long, conflicts_with = "resume")]
    pub dry_run: bool,
    /// Training tape, over data.train_tokens
    #[arg(long, value_name = "FILE")]
    pub train_tokens: Option<PathBuf>,
    /// Its byte lengths, over data.train_byte_lengths
    #[arg(long, value_name = "FILE")]
    pub train_byte_lengths: Option<PathBuf>,
    /// Validation tape, over data.validation_tokens
    #[arg(long, value_name = "FILE")]
    pub validation_tokens: Option<PathBuf>,
    /// Its byte lengths, over data.validation_byte_lengths
    #[arg(long, value_name = "FILE")]
    pub validation_byte_lengths: Option<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Launch {
    /// Processes, one for each device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub devices: u16,
    /// End when the process that started this one is gone
    #[arg(long, hide = true)]
    pub stop_with_parent: bool,
    /// The command of every process, such as: -- train --config FILE
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Smoke {
    #[command(flatten)]
    pub configuration: Configuration,
    /// Also write the result into this folder, as smoke.json
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Eval {
    /// A checkpoint, or a run folder for its latest one
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// The tape, *.tokens.u32
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// Its byte lengths; found beside the tape when absent
    #[arg(long, value_name = "FILE")]
    pub byte_lengths: Option<PathBuf>,
    /// Sequences in a batch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: u16,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Precision of matrix products: fp32, tf32 or bf16; auto is bf16 on CUDA and fp32 on the CPU
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub precision: String,
    /// CPU threads; 0 takes all cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print the scores as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// A checkpoint, or a run folder for its latest one
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Text to continue; a new document when absent
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// Tokens at most, without the prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token
    #[arg(long, value_name = "X", default_value_t = 0.7)]
    pub temperature: f64,
    /// Draw from the K likeliest tokens only; 0 draws from all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Precision of matrix products: fp32, tf32 or bf16; auto is bf16 on CUDA and fp32 on the CPU
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub precision: String,
    /// Print text and figures as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// How files become documents.
#[derive(Debug, Args)]
pub struct Reading {
    /// Field of JSON lines, or column of Parquet files, that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub field: String,
    /// A document begins at each line or row that matches this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "document_end")]
    pub document_start: Option<String>,
    /// A document ends at each line or row that is exactly this, such as <|endoftext|>
    #[arg(long, value_name = "LINE")]
    pub document_end: Option<String>,
    /// What standard input (`-`) holds
    #[arg(long, value_name = "KIND", default_value = "text")]
    pub stdin: StandardInput,
    /// What happens to documents that cannot be read
    #[arg(long, value_name = "CHOICE", default_value = "stop")]
    pub on_error: OnError,
}

/// What standard input holds.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum StandardInput {
    /// Plain text
    Text,
    /// One JSON object a line
    Jsonl,
}

/// How a token id is stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TokenType {
    /// Two bytes
    U16,
    /// Four bytes
    U32,
}

/// What happens to documents that cannot be read.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnError {
    /// End with the error
    Stop,
    /// Leave them out, count and name them
    Skip,
}

#[derive(Debug, Args)]
pub struct Prepare {
    /// Files (.txt, .md, .jsonl, .json, also .gz or .zst; .parquet), folders, patterns, or - for
    /// standard input
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub input: Vec<PathBuf>,
    /// Where train.* and validation.* go
    #[arg(long, value_name = "DIR")]
    pub output_dir: PathBuf,
    /// Tokenizer file; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Text for the validation tape, of the same kinds
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "validation_fraction")]
    pub validation_input: Vec<PathBuf>,
    /// Share of the documents kept for validation, chosen by hash; 0 keeps none
    #[arg(long, value_name = "F", default_value_t = 0.05)]
    pub validation_fraction: f64,
    #[command(flatten)]
    pub reading: Reading,
    /// How a token id is stored; u16 holds vocabularies of up to 65,536
    #[arg(long, value_name = "TYPE", default_value = "u32")]
    pub token_type: TokenType,
    /// Write sets of files of this many tokens each, such as 100000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub shard_tokens: Option<u64>,
    /// Leave out documents that are equal to an earlier one
    #[arg(long)]
    pub deduplicate: bool,
    /// Replace tapes that are there already
    #[arg(long)]
    pub overwrite: bool,
    /// Estimate tokens, bytes per token and disk from a sample; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// CPU threads; 0 takes all cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print the report as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Tokenizer {
    /// Train a byte-level BPE tokenizer on text
    Train(TokenizerTrain),
    /// Print the token ids of a text
    Encode(TokenizerEncode),
    /// Print the text of token ids
    Decode(TokenizerDecode),
    /// Show what a tokenizer is
    Info(TokenizerInfo),
}

#[derive(Debug, Args)]
pub struct TokenizerTrain {
    /// Files (.txt, .md, .jsonl, .json, also .gz or .zst; .parquet), folders, patterns, or - for
    /// standard input
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub input: Vec<PathBuf>,
    /// Entries, without the end-of-document token
    #[arg(long, value_name = "N", default_value_t = 12_095)]
    pub vocabulary: usize,
    /// Where the tokenizer goes
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct TokenizerEncode {
    /// The text; standard input when absent
    pub text: Option<String>,
    /// Tokenizer file; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Print ids, pieces and byte lengths as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizerDecode {
    /// Token ids; read from standard input, apart by white space, when absent
    pub ids: Vec<u32>,
    /// Tokenizer file; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TokenizerInfo {
    /// Tokenizer file; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectFormats {
    /// Only this format
    #[arg(long, value_name = "NAME")]
    pub format: Option<String>,
    /// Exponent bias shown for the formats that have one
    #[arg(long, value_name = "B", default_value_t = 16)]
    pub bias: u8,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// A tape (*.tokens.u32 or .u16), a set (*.tape-set.json), a checkpoint or a run folder
    pub path: PathBuf,
    /// Hold everything about a tape against its sidecar and the tokenizer, and fail where something differs
    #[arg(long)]
    pub verify: bool,
    /// Tokenizer file for a tape's text; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Replay {
    /// The run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The update, counted from 1; it is reached from the last checkpoint before it
    #[arg(long, value_name = "N")]
    pub update: u64,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Print the norms as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
    /// Measure how fast the devices of all ranks add up, under launch
    #[arg(long)]
    pub nccl: bool,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Device: auto (the processor and every CUDA device), cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Parameters of the models compared on a CUDA device
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub elements: usize,
    /// Print rows as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Time of an optimizer update, by format, beside a plain copy of memory
    Optimizer(BenchOptimizer),
    /// Time of a training step, by part, beside a plain matrix product
    Train(BenchTrain),
    /// Speed and memory from text to batches, stage by stage
    Data(BenchData),
}

#[derive(Debug, Args)]
pub struct BenchData {
    /// Text to prepare, of the kinds that `prepare` takes; made-up stories when absent
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub input: Vec<PathBuf>,
    /// Tape or set to read; a made-up one when absent
    #[arg(long, value_name = "FILE")]
    pub tape: Option<PathBuf>,
    /// Tokens of the made-up tape, 6 bytes each on disk
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..))]
    pub tape_tokens: u64,
    /// Tokens of a range in shuffled reading
    #[arg(long, value_name = "N", default_value_t = 1 << 24, value_parser = clap::value_parser!(u64).range(1..))]
    pub range_tokens: u64,
    /// Where made-up text and tapes go, to be removed in the end
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub work_dir: PathBuf,
    /// Tokenizer file; the bundled one when absent
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Measured runs of each stage, of which the best is shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repeats: usize,
    /// CPU threads; 0 takes all cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print rows as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchOptimizer {
    /// Sizes: reference-12m, gpt2-124m, or COUNT or NxCOUNT with k, m, g, ki, mi or gi, such as 16x64mi
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values = ["100m", "reference-12m"])]
    pub sizes: Vec<String>,
    /// State formats; all when absent
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub formats: Vec<String>,
    /// Device: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Measured updates of each
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub repeats: usize,
    /// Measure instead block-wise 8-bit AdamW over bf16 parameters and gradients, in blocks of N (CUDA only)
    #[arg(long, value_name = "N", conflicts_with_all = ["formats", "variants"])]
    pub quantized: Option<usize>,
    /// Show instead what launch shapes, clipping and the like cost, in a graph (CUDA only)
    #[arg(long)]
    pub variants: bool,
    /// CPU threads; 0 takes all cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print rows as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Kernels {
    /// Folder for the files; PACKED_ADAMW_KERNELS names it to the program
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Machine code for these architectures too, such as sm_90; PTX is written beside it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub architectures: Vec<String>,
    /// Print what was written as JSON
    #[arg(long)]
    pub json: bool,
}

/// A form that models travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelFormat {
    /// A folder that Hugging Face transformers loads as GPT-2
    Gpt2Safetensors,
}

#[derive(Debug, Args)]
pub struct Export {
    /// A checkpoint, or a run folder for its latest one
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "gpt2-safetensors")]
    pub format: ModelFormat,
    /// A new or empty folder for it
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct Convert {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// State format to convert to; see inspect-formats
    #[arg(long, value_name = "FORMAT", group = "what")]
    pub state: Option<String>,
    /// Exponent bias of formats that have one: 0 to 40, or auto
    #[arg(long, value_name = "BIAS", group = "what")]
    pub bias: Option<String>,
    /// Moments of another optimizer for the same parameters, as export_moments.py writes them
    #[arg(long, value_name = "FILE", group = "what")]
    pub moments: Option<PathBuf>,
    /// New run folder, for train --resume; when absent nothing is written
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Print what was converted, and its error by role and tensor, as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Import {
    /// Folder of the model: config.json, model.safetensors, tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub input: PathBuf,
    /// What it is
    #[arg(long, value_name = "FORMAT", default_value = "gpt2-safetensors")]
    pub format: ModelFormat,
    /// Folder for the checkpoint, and for settings to train on from it
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Print where everything is as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell it is for
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for packed-adamw.1 and a page for every command
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}
