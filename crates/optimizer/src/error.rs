//! Everything that can be wrong with what an optimizer is given.

use formats::ElementType;

/// What was expected, what was found, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A hyperparameter outside its range.
    #[error("group {group}: expected {name} to be {expected}, found {found}")]
    Hyperparameter {
        /// The position of the group.
        group: usize,
        /// The name of the hyperparameter.
        name: &'static str,
        /// The range.
        expected: &'static str,
        /// The value that was given.
        found: f64,
    },
    /// A clip norm that is not a positive number.
    #[error("expected clip_norm to be finite and above 0, found {found}; leave it out to not clip")]
    ClipNorm {
        /// The value that was given.
        found: f64,
    },
    /// Betas with which the normalised update of `ustate1q` has no bound.
    #[error(
        "group {group}: expected beta1^2 below beta2, which bounds the normalised update that ustate1q \
         stores; found beta1 {beta1} and beta2 {beta2}"
    )]
    UnboundedUpdate {
        /// The position of the group.
        group: usize,
        /// The first beta that was given.
        beta1: f64,
        /// The second.
        beta2: f64,
    },
    /// A block of a size that there is not.
    #[error("expected blocks of a power of two from 64 to 4096 elements, found {found}")]
    Block {
        /// The elements that were asked for.
        found: usize,
    },
    /// A map that is none, or another name that `formats` refuses.
    #[error(transparent)]
    Format(#[from] formats::Error),
    /// A tensor that names a group beyond the last.
    #[error("tensor {tensor:?}: expected a group below {groups}, found {found}")]
    GroupOutOfRange {
        /// The name of the tensor.
        tensor: String,
        /// How many groups there are.
        groups: usize,
        /// The group that it names.
        found: usize,
    },
    /// A tensor without a name.
    #[error("tensor {tensor}: expected a name, found none; checkpoints need one")]
    NoName {
        /// The position of the tensor.
        tensor: usize,
    },
    /// Two tensors of one name.
    #[error("expected distinct tensor names, found {name:?} twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// More tensors, or more elements, than can be addressed.
    #[error("expected {what} to fit {limit}, found more")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// What it must fit.
        limit: &'static str,
    },
    /// A buffer whose length is not that of the tensors together.
    #[error("{buffer}: expected {expected} elements, found {found}")]
    BufferLength {
        /// Which buffer, or which tensor's.
        buffer: String,
        /// The length that it must have.
        expected: usize,
        /// The length that it has.
        found: usize,
    },
    /// A number of slices that is not the number of tensors.
    #[error("{buffer}: expected {expected} slices, one per tensor, found {found}")]
    SliceCount {
        /// Which list.
        buffer: &'static str,
        /// How many tensors there are.
        expected: usize,
        /// How many slices were given.
        found: usize,
    },
    /// A tensor position beyond the last.
    #[error("expected a tensor position below {tensors}, found {found}")]
    TensorOutOfRange {
        /// How many tensors there are.
        tensors: usize,
        /// The position that was given.
        found: usize,
    },
    /// A group beyond the last.
    #[error("expected a group position below {groups}, found {found}")]
    NoSuchGroup {
        /// How many groups there are.
        groups: usize,
        /// The position that was given.
        found: usize,
    },
    /// A group that is given another format than its tensors' moments have.
    #[error(
        "group {group}: expected the format {expected}, found {found}; a state moves to another format by \
         saving its moments and setting them anew"
    )]
    FormatChanged {
        /// The position of the group.
        group: usize,
        /// The format of its moments.
        expected: String,
        /// The format that was given.
        found: String,
    },
    /// Two parts of one tensor.
    #[error(
        "tensor {tensor:?}: expected one part of every whole tensor, found another of tensor {found}"
    )]
    PartTwice {
        /// The name of the second.
        tensor: String,
        /// The position of the whole tensor.
        found: u32,
    },
    /// A part that reaches beyond its tensor.
    #[error(
        "tensor {tensor:?}: expected a part of {whole} elements, found {length} elements from {start} on"
    )]
    PartBeyond {
        /// The name of the part.
        tensor: String,
        /// Where it begins.
        start: u64,
        /// Its elements.
        length: usize,
        /// The elements of the whole tensor.
        whole: u64,
    },
    /// A tensor that is cut where it cannot be.
    #[error(
        "tensor {tensor:?}: expected a part to begin and end at multiples of {border} elements, {why}; found a \
         border at {found}"
    )]
    PartBorder {
        /// The name of the part.
        tensor: String,
        /// What borders are multiples of.
        border: u64,
        /// Why.
        why: &'static str,
        /// The border that was given.
        found: u64,
    },
    /// A part where updates are dropped after a look for what is not finite.
    #[error(
        "tensor {tensor:?} is a part: expected on_nonfinite stop or hold, found skip, which would wait for a \
         look at all parts"
    )]
    PartSkips {
        /// The name of the part.
        tensor: String,
    },
    /// A step without the others' parts of a tensor, where they are needed.
    #[error("tensor {tensor:?} is a part, and {reason}; expected a shared step, found one alone")]
    PartAlone {
        /// The name of the part.
        tensor: String,
        /// What the others are needed for.
        reason: &'static str,
    },
    /// A shared step of tensors that are no parts.
    #[error("expected tensors that are parts of others in a shared step, found only whole ones")]
    NoParts,
    /// Saved states that are not all parts of a tensor.
    #[error(
        "saved state: array {name:?}: expected the parts of {whole} elements once each, found none that begins at \
         {found}"
    )]
    PartsMissing {
        /// The name of the array.
        name: String,
        /// Where a part should begin.
        found: u64,
        /// The elements of the whole tensor.
        whole: u64,
    },
    /// The stages of a shared step in another order.
    #[error(
        "expected the stages of a shared step in the order measure, update, finish; found {found}"
    )]
    StageOrder {
        /// The stage that was asked for.
        found: &'static str,
    },
    /// A number of learning rates that is not the number of groups.
    #[error("expected {expected} learning rates, one per group, found {found}")]
    LearningRateCount {
        /// How many groups there are.
        expected: usize,
        /// How many rates were given.
        found: usize,
    },
    /// An update number of 0.
    #[error("expected an update number from 1, found 0")]
    UpdateZero,
    /// A step before the first `set_update`, or before the one that must follow a load.
    #[error("expected set_update before step, found no update set since the start or the load")]
    NoUpdateSet,
    /// A report before the first step.
    #[error("expected a step before its report, found none")]
    NoStepTaken,
    /// Saved state without a metadata entry.
    #[error("saved state: expected metadata {key:?} to be {expected:?}, found none")]
    MetadataMissing {
        /// The key.
        key: String,
        /// What this optimizer has there.
        expected: String,
    },
    /// Saved state of another run: format, bias, length, hyperparameter or version.
    #[error(
        "saved state: expected {key} {expected:?}, found {found:?}; resume with the settings \
         it was saved with, or start afresh"
    )]
    MetadataDiffers {
        /// The key.
        key: String,
        /// What this optimizer has there.
        expected: String,
        /// What was saved.
        found: String,
    },
    /// Saved state without an array.
    #[error("saved state: expected an array {name:?} of {count} {element}, found none")]
    SectionMissing {
        /// The name of the array.
        name: String,
        /// The element type.
        element: ElementType,
        /// The number of elements.
        count: usize,
    },
    /// Saved state with an array that belongs to no tensor here, or to one twice.
    #[error("saved state: expected the arrays of these tensors once each, found {name:?} besides")]
    SectionUnexpected {
        /// The name of the array.
        name: String,
    },
    /// A saved array of another type or shape.
    #[error(
        "saved state: array {name:?}: expected {expected_element} of shape [{expected_count}], \
         found {found_element} of shape {found_shape:?}"
    )]
    SectionShape {
        /// The name of the array.
        name: String,
        /// The element type that it must have.
        expected_element: ElementType,
        /// The number of elements that it must have.
        expected_count: usize,
        /// The element type that it has.
        found_element: ElementType,
        /// The shape that it has.
        found_shape: Vec<usize>,
    },
    /// A saved array whose bytes do not fill its shape.
    #[error(
        "saved state: array {name:?}: expected {expected} bytes, found {found}; it is cut off or damaged"
    )]
    SectionBytes {
        /// The name of the array.
        name: String,
        /// The bytes that its shape takes.
        expected: usize,
        /// The bytes that it has.
        found: usize,
    },
    /// A saved array with an element that no update can have stored.
    #[error(
        "saved state: array {name:?} element {index}: expected {expected}, found {found}; \
         it is damaged"
    )]
    SectionContent {
        /// The name of the array.
        name: String,
        /// The position of the element.
        index: usize,
        /// What stored elements are.
        expected: &'static str,
        /// The element, as a person reads it.
        found: String,
    },
    /// A benchmark size that is no size.
    #[error(
        "expected a size such as 100m, 1gi or 16x64mi (a count of tensors, x, elements of each; \
         k m g are powers of 1000, ki mi gi of 1024), found {found:?}"
    )]
    BenchSize {
        /// What was given.
        found: String,
    },
    /// A benchmark that this machine's memory cannot hold.
    #[error(
        "size {size}: expected at least {needed_bytes} bytes of free memory, found \
         {available_bytes}; choose a smaller size"
    )]
    NotEnoughMemory {
        /// The name of the size.
        size: String,
        /// What the benchmark needs.
        needed_bytes: u64,
        /// What is free.
        available_bytes: u64,
    },
    #[cfg(feature = "cuda")]
    /// What a CUDA device, or a library that it needs, refused.
    #[error(transparent)]
    Device(#[from] gpu_kernels::Error),
}
