//! State formats of packed AdamW: how the two moments of a parameter persist
//! between updates.
//!
//! AdamW keeps a first moment `m` and a second moment `v` for every parameter.
//! During an update both are f32; a *state format* says what is carried over
//! from one update to the next. This crate holds the formats as pure functions
//! of numbers and bits:
//!
//! | file | what it holds |
//! |---|---|
//! | [`bias`] | the exponent bias of a tensor, checked, and the rule that chooses it |
//! | [`minifloat`] | E4M11, E4M12 and binary16: decode, encode |
//! | [`word`] | one 32-bit state word, both lanes together |
//! | [`exp_log`], [`fused`] | exp2 and ln with the same bits on every device, by fused multiply-adds |
//! | [`half_floats`], [`bit_stream`] | the 16-bit scales and the packed codes of block formats |
//! | [`dynamic_map`], [`map_cells`], [`block8`] | 8-bit maps; codes with an absmax per block |
//! | [`one_q`] | the second moment on a grid of logarithms |
//! | [`ustate`], [`published_random`] | the 2-bit normalised update, and the published random numbers |
//! | [`n4l4`] | 4 bits for each moment, and its own grid |
//! | [`counter_hash`] | random words made from counters, for stochastic rounding |
//! | [`split`] | an f32 parameter as a bf16 and 16 remainder bits |
//! | [`lane`] | the facts of one lane: range, step, landmark codes |
//! | [`format`](mod@format) | the list of formats: names, sections, exact byte accounting |
//!
//! Every code of every lane stands for a finite number: stored state has no NaN
//! and no infinity.
//!
//! ```
//! use formats::{Bias, E4Word, Format, Moments, WordCodec as _};
//!
//! let codec = E4Word::new(Bias::DEFAULT);
//! let packed = codec.encode(Moments { m: -0.5, r: 0.25 }, 0);
//! let after = codec.decode(packed.word);
//! assert_eq!((after.m, after.r), (-0.5, 0.25));
//! assert_eq!(Format::E4.state_bytes(1000), 4000);
//! ```
//!
//! What this crate does not do: it owns no memory, knows no tensors and applies
//! no update. The arithmetic between decode and encode lives in `reference`
//! (slow, obvious) and in `optimizer` (fast), and both call the codecs here, so
//! there is one text for what a code means. The codecs are written without
//! data-dependent branches, so that a loop around them vectorises.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod bias;
pub mod minifloat;
pub mod word;

pub mod bit_stream;
pub mod exp_log;
pub mod fused;
pub mod half_floats;

pub mod dynamic_map;
pub mod map_cells;
pub mod map_lines;

pub mod block8;

pub mod one_q;

pub mod ustate;

pub mod n4l4;

pub mod counter_hash;
pub mod published_random;
pub mod split;

pub mod format;
pub mod lane;

mod options;

mod error;

pub use bias::Bias;
pub use block8::{Block8, Maps};
pub use counter_hash::RandomStream;
pub use error::Error;
pub use format::{ElementType, Format, Rules, Section};
pub use lane::{Lane, Moment, NumberFormat};
pub use minifloat::{Binary16, E4M11, E4M12, Minifloat, Rounded};
pub use n4l4::N4l4;
pub use ustate::UState1Q;
pub use word::{E4Word, E4sWord, Fp16Word, Moments, Packed, WordCodec};
