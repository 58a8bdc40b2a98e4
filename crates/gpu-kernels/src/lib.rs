//! CUDA kernels and the memory they work on.
//!
//! A program built here needs no CUDA toolkit. The driver and NVIDIA's run-time compiler are found
//! when they are wanted; kernels are compiled on first use for the device at hand and kept on
//! disk. Nothing panics where something is missing: every absence is an [`Error`] that says what
//! was looked for, where, and what to install.
//!
//! | file | what it holds |
//! |---|---|
//! | [`library`] | the shared libraries: where they are looked for, what they are |
//! | `gpu`, `event`, `graph` | a device with a stream, points in it, recorded work |
//! | `buffer`, `pinned`, `ring` | memory of a device, and host memory that it copies from and to |
//! | [`compile`], [`cache`], [`prebuilt`] | from kernel source to machine code, kept on disk |
//! | `module`, `launch` | loaded kernels, and the one place that launches them |
//! | `precision`, `activations` | what products compute with, and what flows between operations |
//! | `weights` | parameters as products read them |
//! | `embedding`, `layernorm`, `gelu`, `columns`, `loss`, `sum`, `decode` | operations of the network |
//! | `tiles`, `branch`, `depth_tiles` | products by kernels of our own, with what follows them; gradients of weights |
//! | `gather` | batches out of tapes on the device |
//! | `lanes` | a second stream, for work that nothing waits for soon |
//! | [`nccl`], `plus`, `stamp` | sums over the devices of several ranks, and in an order of choice; how long a device works |
//! | `product`, `blas`, `timing`, `linear`, `head` | matrix products, and the layers made of them |
//! | [`programs`] | the kernel sources that are built in, and their macros |
//! | `kind`, `shape` | what the arrays of a tensor hold; how an update is launched |
//! | `table`, `layout`, `placement` | the table of tensors, and where everything lies |
//! | `adamw`, `outcome`, `norm` | one update of packed AdamW over a whole model |
//! | `advance`, `placed` | updates begun on the device, and steps over tensors and streams of another library |
//! | `blocks`, `maps` | what formats of blocks have besides |
//! | `plan`, `attention` | causal attention, forward and backward |
//! | `split` | f32 parameters in two halves |
//! | [`bandwidth`] | how fast the device copies |
//!
//! ```
//! use gpu_kernels::Gpu;
//!
//! match Gpu::open(0) {
//!     Ok(gpu) => {
//!         let buffer = gpu.upload(&[1.0_f32, 2.0])?;
//!         assert_eq!(buffer.to_vec()?, [1.0, 2.0]);
//!     }
//!     // The message says what was looked for, where, and what to install.
//!     Err(missing) => println!("{missing}"),
//! }
//! # Ok::<(), gpu_kernels::Error>(())
//! ```
//!
//! The kernels are in `cuda/`; those whose bits matter are twins of code in `formats` and are
//! compared with `reference`, on a device and, built for the host, without one.
//!
//! Unsafe code is calls into libraries and launches of kernels; each says what it relies on.

pub mod library;
mod version;

mod event;
mod gpu;
mod graph;

mod buffer;
mod pinned;
mod ring;

pub mod cache;
pub mod compile;
pub mod prebuilt;

mod launch;
mod module;
pub mod programs;

mod activations;
mod precision;
mod weights;

mod columns;
mod decode;
mod embedding;
mod gather;
mod gelu;
mod layernorm;
mod loss;
mod sum;

mod blas;
mod head;
mod lanes;
mod linear;
pub mod nccl;
mod plus;
mod product;
mod stamp;
mod timing;

mod branch;
mod chain;
mod depth_tiles;
mod tiles;

mod attention;
mod plan;

mod kind;
mod maps;

mod advance;
mod later;
mod layout;
mod placed;
mod placement;
mod shape;
mod shared;
mod table;
mod tensor_plan;

mod adamw;
mod argument;
mod blocks;
mod copies;
mod load;
mod norm;
mod outcome;
mod quantized;
mod slots;
mod split;

pub mod bandwidth;

mod error;

pub use activations::{Activations, bf16};
pub use adamw::{FusedAdamW, Gradients, Options, ParametersMut};
pub use advance::{DeviceRate, LearningRate, Rule};
pub use attention::{Attention, AttentionStart, AttentionStartInputs};
pub use blocks::{WrittenUnits, published_key};
pub use branch::{BranchEnd, BranchEndInputs, BranchEndOutputs, BranchStart, BranchStartInputs};
pub use buffer::{Buffer, View, ViewMut};
pub use chain::{
    BackwardChain, BackwardChainInputs, BackwardChainOutputs, ForwardChain, ForwardChainInputs,
    ForwardChainOutputs, NextBlock, NormGradient, NormedSum,
};
pub use columns::{PendingSum, RunSums};
pub use decode::{Decode, DecodeShape};
pub use depth_tiles::{DepthProduct, DepthTiles};
pub use embedding::{Embedding, Windows};
pub use error::Error;
pub use event::Event;
pub use gather::{Gather, GatherShape};
pub use gelu::Gelu;
pub use gpu::{Facts, Gpu, Made};
pub use graph::Graph;
pub use head::{Head, HeadGradients, HeadInputs, HeadShape, Logits, TableGradient};
pub use kind::{GradientType, Kind, ParameterType};
pub use lanes::Lanes;
pub use later::LaterUpdate;
pub use layernorm::{LayerNorm, LayerNormInputs};
pub use library::{Library, LibraryReport};
pub use linear::{LayerGradient, Linear, LinearShape, LinearUse};
pub use module::KernelFacts;
pub use nccl::Nccl;
pub use outcome::Outcome;
pub use pinned::{Downloads, Pinned};
pub use placement::{Placement, TensorPlace};
pub use plan::AttentionShape;
pub use plus::Plus;
pub use precision::Precision;
pub use product::{Lane, Products};
pub use quantized::{QuantizedKernel, QuantizedMoment, QuantizedScalars};
pub use ring::{Ring, Uploads};
pub use shape::{Shape, TableIn};
pub use slots::UPDATES_AT_ONCE;
pub use split::SplitKernels;
pub use stamp::{Point, Stopwatch};
pub use sum::TreeSum;
pub use table::{BlockScalars, Group};
pub use tensor_plan::{TensorPart, TensorPlan};
pub use weights::{Shadows, Weights};
