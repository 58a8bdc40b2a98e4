//! Everything that can go wrong between this program and a device.

use std::path::PathBuf;

/// What was expected, what was found, and during which operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A shared library that is nowhere to be found.
    #[error("expected the library {name}, found none in: {}; {install}", .tried.join(", "))]
    LibraryMissing {
        /// The file name.
        name: &'static str,
        /// Where it was looked for.
        tried: Vec<String>,
        /// What to install.
        install: &'static str,
    },
    /// A device number beyond the last.
    #[error("expected a CUDA device below {devices}, found {ordinal}")]
    NoDevice {
        /// How many devices there are.
        devices: usize,
        /// The number that was asked for.
        ordinal: usize,
    },
    /// A device that is too old for the kernels.
    #[error("device {ordinal}: expected compute capability 8.0 or later, found {found} ({name})")]
    TooOld {
        /// The number of the device.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// A call that the driver refused.
    #[error("{operation}: the driver answered {code}: {message}")]
    Driver {
        /// What was being done.
        operation: String,
        /// The driver's name for the error.
        code: String,
        /// The driver's words for it.
        message: String,
    },
    /// A call that NCCL refused, or work of NCCL that failed.
    #[error("{operation}: NCCL answered {code}: {message}")]
    Nccl {
        /// What was being done.
        operation: &'static str,
        /// Its number for the error.
        code: i32,
        /// Its words for it.
        message: String,
    },
    /// A device that failed and answers no more.
    #[error(
        "{operation}: the device is lost ({code}: {message}); what it held is gone, so start the \
         program again from the last checkpoint"
    )]
    DeviceLost {
        /// What was being done when it showed; the cause may lie before it.
        operation: String,
        /// The driver's name for the error.
        code: String,
        /// The driver's words for it.
        message: String,
    },
    /// More memory than the device has left.
    #[error(
        "{operation}: expected {needed_bytes} bytes of device memory, found {free_bytes} free of \
         {total_bytes}; make it at most {:.0}% as large, or free {} bytes",
        100.0 * *.free_bytes as f64 / (*.needed_bytes).max(1) as f64,
        .needed_bytes.saturating_sub(*.free_bytes)
    )]
    OutOfMemory {
        /// What was being allocated.
        operation: String,
        /// Its size.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// Kernel source that the compiler refused.
    #[error("{place}: the compiler refused it for {architecture}: {message}")]
    Compile {
        /// The file and the line, where the compiler names one.
        place: String,
        /// What it was compiled for.
        architecture: String,
        /// The compiler's first complaint.
        message: String,
    },
    /// An architecture that the compiler library is too old for.
    #[error(
        "expected NVRTC to know the architecture {architecture}, found that it does not; {install}"
    )]
    UnknownArchitecture {
        /// The architecture.
        architecture: String,
        /// What to install.
        install: &'static str,
    },
    /// A call that the compiler library refused.
    #[error("{operation}: the compiler library answered {code}")]
    Compiler {
        /// What was being done.
        operation: &'static str,
        /// The library's name for the error.
        code: String,
    },
    /// A matrix product that cuBLASLt refused.
    #[error("{operation}: cuBLASLt answered {code}")]
    Blas {
        /// The product, with its shape.
        operation: String,
        /// The library's name for the error.
        code: String,
    },
    /// No compiler, and no kernels built before either.
    #[error(
        "expected a compiler or prebuilt kernels of {file} for {architecture}, found neither: \
         {compiler}; no {key} in: {}", .tried.join(", ")
    )]
    KernelsMissing {
        /// The kernel source.
        file: &'static str,
        /// The device's architecture.
        architecture: String,
        /// The name, without ending, that a prebuilt file would have.
        key: String,
        /// Why there is no compiler.
        compiler: String,
        /// The folders that were searched for prebuilt kernels.
        tried: Vec<String>,
    },
    /// A file that cannot be written.
    #[error("{}: expected to write it: {message}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// A buffer of another length.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Which buffer.
        what: String,
        /// The length that it must have.
        expected: usize,
        /// The length that it has.
        found: usize,
    },
    /// A buffer of another device.
    #[error("{what}: expected memory of device {expected}, found memory of device {found}")]
    OtherDevice {
        /// Which buffer.
        what: &'static str,
        /// The device that it must be on.
        expected: usize,
        /// The device that it is on.
        found: usize,
    },
    /// Memory that two names would share.
    #[error("expected memory of their own for {first} and {second}, found them to overlap")]
    Overlap {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// An address that its elements cannot lie at.
    #[error("{what}: expected an address divisible by {bytes}, found {address:#x}")]
    Misaligned {
        /// Which array.
        what: String,
        /// The bytes of an element.
        bytes: u64,
        /// The address.
        address: u64,
    },
    /// Parameters or gradients of another type.
    #[error("{what}: expected {expected}, found {found}")]
    OtherType {
        /// Which buffer.
        what: &'static str,
        /// The type that the table of tensors was made for.
        expected: &'static str,
        /// The type that was given.
        found: &'static str,
    },
    /// One format with two sets of options in a model.
    #[error(
        "expected one set of options for a format in a model on CUDA, found {expected} and {found}; \
         give all groups the same"
    )]
    MixedOptions {
        /// The format with the options of the first tensor.
        expected: String,
        /// The format with those of another.
        found: String,
    },
    /// More than can be addressed.
    #[error("expected {what} to fit {limit}, found more")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// What it must fit.
        limit: &'static str,
    },
    /// Something that cannot be recorded into a graph.
    #[error("{operation}: expected it outside of a recording, found one under way")]
    Recording {
        /// What was asked for.
        operation: &'static str,
    },
    /// A recording without any work in it.
    #[error("expected work on the device in a recording, found none")]
    EmptyRecording,
}
