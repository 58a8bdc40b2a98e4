//! AdamW whose moments persist packed.
//!
//! `CpuAdamW` and, with the feature `cuda`, `CudaAdamW` update any number of named tensors, in groups with their own
//! hyperparameters and state formats, in one parallel pass over memory. Their
//! results have the same bits as the slow authority in crate `reference`, for every
//! format, length, thread count, vector width and launch.
//!
//! ```
//! use optimizer::{AdamW, CpuAdamW, Group, Options, TensorSpec};
//!
//! let tensors = [TensorSpec::new("weight", 3, 0)];
//! let groups = [Group { learning_rate: 0.1, ..Group::default() }];
//! let mut optimizer = CpuAdamW::new(&tensors, &groups, Options::default())?;
//!
//! let mut parameters = vec![1.0, 2.0, 3.0];
//! optimizer.set_update(1, &[0.1])?;
//! optimizer.step(&mut parameters, &vec![0.5, 0.0, -0.5])?;
//! assert_eq!(parameters[1], 2.0);
//! assert_eq!(optimizer.report()?.nonfinite, 0);
//! assert_eq!(optimizer.state_bytes(), 12);
//! # Ok::<(), optimizer::Error>(())
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `groups` | tensors, groups, options, checked once |
//! | `parts` | parts of tensors, which others have the rest of |
//! | `contract` | the [`AdamW`] trait that a trainer uses, and [`Report`] |
//! | `queued` | updates that are queued several at a time |
//! | `scalars` | the scalars of an update, rounded once |
//! | `saved` | named arrays and metadata; what must match when they are loaded |
//! | `joined` | saved states of parts of tensors, joined |
//! | `cpu` | the CPU |
//! | `quantized` | block-wise 8-bit AdamW as one function over bf16 |
//! | `cuda` | a CUDA device, with the same bits |
//! | `simd` | which vector instructions its loops are compiled for; the only unsafe code |
//! | `check` | whether a device really has the same bits |
//! | [`mod@measure`] | what a format keeps of moments, for tables |
//! | [`mod@bench`] | how long an update takes beside a copy of memory |
//!
//! `cuda` and `check` are there with the feature `cuda`, which brings the bindings of the driver.
//!
//! What the crate does not do: it knows no network, reads and writes no file, and
//! follows no schedule.

mod groups;
mod parts;

mod contract;
mod queued;

mod joined;
mod saved;
mod scalars;

mod cpu;
mod simd;

mod quantized;

#[cfg(feature = "cuda")]
mod cuda;

pub mod bench;
#[cfg(feature = "cuda")]
pub mod check;
pub mod measure;

mod error;

pub use contract::{AdamW, Location, Report, SharedAdamW};
pub use cpu::{CpuAdamW, DecodedMoments};
#[cfg(feature = "cuda")]
pub use cuda::{CudaAdamW, CudaQuantizedAdamW, CudaQuantizedMoment, CudaSettings, TensorTypes};
pub use error::Error;
pub use groups::{BiasChoice, Group, OnNonfinite, Options, TensorSpec};
pub use parts::Part;
pub use quantized::{QuantizedMoment, quantized_adamw_step};
pub use queued::{QueuedAdamW, SavedLater};
pub use saved::{SavedArray, SavedState};
pub use simd::Instructions;

/// Holds the code in the README true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
