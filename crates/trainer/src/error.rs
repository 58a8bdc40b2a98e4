//! What can go wrong in a run, each variant saying where, what was found and what was expected.

use std::io;
use std::path::{Path, PathBuf};

/// An error of the trainer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text that is not a configuration.
    #[error("{place}: {message}")]
    Syntax {
        /// File and line, or the argument.
        place: String,
        /// What the parser expected.
        message: String,
    },
    /// A section or key that does not exist.
    #[error("{place}: unknown key `{key}`; the nearest known one is `{nearest}`")]
    UnknownKey {
        /// The name given.
        key: String,
        /// File and line, or the argument.
        place: String,
        /// The known name that looks most like it.
        nearest: String,
    },
    /// A value of the wrong type.
    #[error("{place}: `{key}` takes {expected}, found {found}")]
    WrongType {
        /// Dotted name of the key.
        key: String,
        /// File and line, or the argument.
        place: String,
        /// What the key takes.
        expected: &'static str,
        /// What was there.
        found: String,
    },
    /// A value of the right type that makes no sense.
    #[error("{place}: `{key}` must be {expected}, found {found}")]
    WrongValue {
        /// Dotted name of the key.
        key: String,
        /// File and line, or the argument.
        place: String,
        /// What the key takes.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A key that this run needs and that has no value.
    #[error("`{key}` has no value: {needed}")]
    Missing {
        /// Dotted name of the key.
        key: String,
        /// Why it is needed and how to give it.
        needed: String,
    },
    /// A tape that holds fewer tokens than the run asks for.
    #[error(
        "{}: the run needs {needed} training tokens and the tape holds {held}, {} too few; shorten the run \
         (`run.tokens = \"tape\"` takes all there is) or prepare more text",
        tape.display(), needed - held
    )]
    TapeTooShort {
        /// The tokens file.
        tape: PathBuf,
        /// Training tokens that the run asks for.
        needed: u64,
        /// Training tokens that the tape has.
        held: u64,
    },
    /// A shuffled run that goes through a tape more often than it may.
    #[error(
        "{}: the run goes through this tape {needed} times and may {allowed}; shorten the run, raise \
         data.epochs or prepare more text",
        tape.display()
    )]
    TooFewEpochs {
        /// The tape.
        tape: PathBuf,
        /// Passes that the run takes, the last one begun.
        needed: u64,
        /// Passes that `data.epochs` allows.
        allowed: u64,
    },
    /// A tape without the byte lengths that the run needs.
    #[error("{}: {needed}", tape.display())]
    NoByteLengths {
        /// The tokens file.
        tape: PathBuf,
        /// What needs them and how to get them.
        needed: &'static str,
    },
    /// A tape made with another tokenizer than the run's.
    #[error(
        "{}: made with the tokenizer {}, but this run uses {}; prepare the text again or set data.tokenizer",
        tape.display(), short(found), short(expected)
    )]
    OtherTokenizer {
        /// The tokens file.
        tape: PathBuf,
        /// SHA-256 of the run's tokenizer.
        expected: String,
        /// SHA-256 named by the tape's sidecar.
        found: String,
    },
    /// An operation of the file system that failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A run folder that another process is using.
    #[error(
        "{}: in use by another process; wait for it to end or choose another --output-dir", folder.display()
    )]
    FolderInUse {
        /// The run folder.
        folder: PathBuf,
    },
    /// A run folder that holds a run already.
    #[error(
        "{}: holds a run already; go on with it by --resume, or choose another --output-dir", folder.display()
    )]
    FolderTaken {
        /// The run folder.
        folder: PathBuf,
    },
    /// A folder that holds no run, or none that serves the purpose.
    #[error("{}: {reason}", folder.display())]
    NoRun {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// Runs that cannot be compared, because they differ in more than what is compared.
    #[error("{} and {} cannot be compared: {difference}", one.display(), other.display())]
    Unmatched {
        /// A run.
        one: PathBuf,
        /// Another.
        other: PathBuf,
        /// The key that differs, with both values.
        difference: String,
    },
    /// A set of runs that makes no sense.
    #[error("{place}: {message}")]
    Study {
        /// The file or folder, or the argument.
        place: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// No checkpoint to resume from or to read.
    #[error("{}: no checkpoint here; {hint}", folder.display())]
    NoCheckpoint {
        /// Where one was looked for.
        folder: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// A checkpoint whose bytes are not those that were written.
    #[error(
        "{}: damaged: expected {expected}, found {found}; use another checkpoint, or remove the folder of this one and \
         go on by --resume from the one before it",
        file.display()
    )]
    CheckpointDamaged {
        /// The damaged file.
        file: PathBuf,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A checkpoint of a run that differs from this one.
    #[error(
        "{}: belongs to another run: `{key}` is {found} there and {expected} here; resume with the same \
         configuration or start a new run",
        checkpoint.display()
    )]
    CheckpointMismatch {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What differs.
        key: String,
        /// The value of this run.
        expected: String,
        /// The value of the checkpoint.
        found: String,
    },
    /// A value that is not finite, found before anything was overwritten on disk.
    #[error(
        "update {update}: {count} elements are not finite, the first in `{tensor}` at index {index}, tokens from \
         {cursor} of the tape; the last checkpoint is whole. See it from inside with \
         `packed-adamw replay RUN --update {update}`; lower optimizer.lr, set optimizer.clip_norm, or set \
         optimizer.on_nonfinite = \"skip\""
    )]
    NonFinite {
        /// The update, counted from 1.
        update: u64,
        /// How many elements.
        count: u64,
        /// Name of the first such tensor.
        tensor: String,
        /// Index of the first such element in it.
        index: u64,
        /// Tape position of the update's first token.
        cursor: u64,
    },
    /// A run that its device has no memory for.
    #[error(
        "expected {needed_bytes} bytes of device memory to be free, found {free_bytes}: {missing_bytes} too few; \
         run.batch = {batch} could be {largest_batch}, with a larger run.accumulation for the same update; \
         run.recompute = \"block\" takes less"
    )]
    DoesNotFit {
        /// What the run takes.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
        /// By how much it is too little.
        missing_bytes: u64,
        /// Sequences of a micro-batch.
        batch: usize,
        /// How many would fit.
        largest_batch: u64,
    },
    /// A loss that is not finite.
    #[error(
        "update {update}: the loss is {nats}, tokens from {cursor} of the tape; the last checkpoint is whole. See it \
         from inside with `packed-adamw replay RUN --update {update}`"
    )]
    NonFiniteLoss {
        /// The update, counted from 1.
        update: u64,
        /// The loss in nats a token.
        nats: f64,
        /// Tape position of the update's first token.
        cursor: u64,
    },
    /// A model of another program that cannot be taken.
    #[error("{}: expected {expected}, found {found}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What can be taken.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A prompt that leaves no room for what shall continue it.
    #[error(
        "the prompt has {tokens} tokens, and the model's context holds {context}, of which one begins the document and \
         one must be free; give a shorter prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the model sees.
        context: usize,
    },
    /// A device that the machine does not have.
    #[error("device `{device}`: {reason}")]
    DeviceMissing {
        /// The device asked for.
        device: String,
        /// Why it cannot be used and what can.
        reason: String,
    },
    /// A file of a run or study, or a line of one, that cannot be read.
    #[error("{} line {line}: {message}; the file is damaged: {remedy}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What the parser said.
        message: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A picture that could not be drawn.
    #[error("cannot draw {}: {message}", file.display())]
    Picture {
        /// The picture.
        file: PathBuf,
        /// What the drawing library said.
        message: String,
    },
    /// Ranks of one run that were asked for different things.
    #[error(
        "rank {rank} differs from rank 0: `{key}` is {found} there and {expected} on rank 0; start all ranks alike"
    )]
    RanksDiffer {
        /// The first rank that differs.
        rank: usize,
        /// What differs.
        key: String,
        /// What rank 0 has.
        expected: String,
        /// What the rank has.
        found: String,
    },
    /// An error between ranks.
    #[error(transparent)]
    Ranks(#[from] ranks::Error),
    /// An error of the network.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// What a CUDA device says.
    #[error(transparent)]
    Gpu(#[from] gpu_kernels::Error),
    /// An error of the optimizer.
    #[error(transparent)]
    Optimizer(#[from] optimizer::Error),
    /// An error of tapes, text or tokenizers.
    #[error(transparent)]
    Tape(#[from] tape::Error),
}

/// Which exit code an error asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The user asked for something that makes no sense.
    Usage,
    /// A device is not there.
    DeviceMissing,
    /// Anything else.
    Failed,
}

impl Error {
    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Syntax { .. }
            | Self::UnknownKey { .. }
            | Self::WrongType { .. }
            | Self::WrongValue { .. }
            | Self::Missing { .. }
            | Self::Study { .. }
            | Self::Unmatched { .. }
            | Self::RanksDiffer { .. }
            | Self::PromptTooLong { .. }
            | Self::FolderTaken { .. } => Kind::Usage,
            Self::Ranks(error) if error.is_usage() => Kind::Usage,
            Self::Model(
                model::Error::ZeroDimension { .. }
                | model::Error::UnevenHeads { .. }
                | model::Error::VocabularyTooLarge { .. }
                | model::Error::TooLarge { .. },
            ) => Kind::Usage,
            Self::DeviceMissing { .. } => Kind::DeviceMissing,
            _ => Kind::Failed,
        }
    }

    /// Turns an error of the file system into one that names the action and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// The first twelve digits of a hash, enough to tell two apart.
fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
