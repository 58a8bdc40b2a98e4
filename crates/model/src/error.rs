//! Everything that can go wrong in this crate: what was expected, what was found, and what to do.
//! Messages are lower case, without a full stop, so that they can stand inside a sentence.

/// An error of the network, its plan or its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dimension of the network is zero.
    #[error("{dimension} is 0; every dimension of the model must be at least 1")]
    ZeroDimension {
        /// Which dimension.
        dimension: &'static str,
    },

    /// The channels cannot be shared out among the heads.
    #[error(
        "{channels} channels cannot be divided among {heads} heads; choose heads that divide the channels"
    )]
    UnevenHeads {
        /// C as configured.
        channels: usize,
        /// H as configured.
        heads: usize,
    },

    /// Token ids are `u32` and one value is set apart for ignored targets.
    #[error("a vocabulary of {found} is too large; token ids are 32 bits wide, so at most {max}")]
    VocabularyTooLarge {
        /// V as configured.
        found: usize,
        /// The largest V.
        max: usize,
    },

    /// A size does not fit the address space.
    #[error("{what} would not fit this machine's address space; choose a smaller model or batch")]
    TooLarge {
        /// What was being sized.
        what: &'static str,
    },

    /// Memory for a planned buffer was refused.
    #[error(
        "out of memory for {bytes} bytes; choose a smaller batch or window (the memory plan lists every buffer)"
    )]
    OutOfMemory {
        /// Size of the buffer that was refused.
        bytes: u64,
    },

    /// A pass over no tokens.
    #[error("a batch of {rows} windows of {time} tokens is empty; both must be at least 1")]
    EmptyBatch {
        /// B as asked for.
        rows: usize,
        /// T as asked for.
        time: usize,
    },

    /// Windows longer than the learned positions.
    #[error(
        "windows of {time} tokens exceed the context of {context}; shorten them or train with a longer context"
    )]
    WindowTooLong {
        /// T as asked for.
        time: usize,
        /// Learned positions of the model.
        context: usize,
    },

    /// A buffer or slice of another length than the shapes demand.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements that the shapes demand.
        expected: usize,
        /// Elements that were given.
        found: usize,
    },

    /// A token id that the table has no row for.
    #[error(
        "{what} {position} is {found}, beyond the vocabulary of {vocabulary}; the text was encoded with another tokenizer"
    )]
    TokenOutOfRange {
        /// `token` or `target`.
        what: &'static str,
        /// Index into the uploaded slice.
        position: usize,
        /// The id found there.
        found: u32,
        /// V of the model.
        vocabulary: usize,
    },

    /// A backward pass on memory planned for evaluation.
    #[error("this model was planned for evaluation; plan it for training to run a backward pass")]
    EvaluationOnly,

    /// Rows of logits that the pass does not have.
    #[error("rows {start}..{end} of logits were asked for, but the pass has {rows}")]
    RowsOutOfRange {
        /// First row asked for.
        start: usize,
        /// One past the last row asked for.
        end: usize,
        /// Rows of the pass, B * T.
        rows: usize,
    },

    /// What a CUDA device refused.
    #[error(transparent)]
    Cuda(#[from] gpu_kernels::Error),

    /// Generation went past the learned positions.
    #[error("all {context} positions are used; reset the decoder and feed it a shorter text")]
    ContextFull {
        /// Learned positions of the model.
        context: usize,
    },
}
