//! Text to finite token tapes, and tapes to windows.
//!
//! The way of the data, one module a station:
//!
//! ```text
//! files, folders        sources    documents, one by one, in bounded memory
//! or generated text  ->            (stories: the seeded generator)
//! documents          -> prepare    tokens, an end-of-document id after each document,
//!                       tokenizer  a train and a validation part, written aside, then renamed
//!                       dedup      equal texts once, by choice
//! tokens             -> writer     *.tokens.u32, *.byte-lengths.u16, *.tape.json (layout)
//! a tape             -> reader     checked, read by position, verified block by block (blocks)
//!                    -> windows    B rows of T tokens, read once in order, never wrapped
//!                    -> loader     windows in a seeded order (order), out of ranges read ahead
//! ```
//!
//! This crate knows nothing of models, optimizers or devices: it imports no other crate of the
//! workspace, and it never prints. Letters in the documentation: B batch, T time (context
//! length), V vocabulary.
//!
//! # Example
//!
//! From text in memory to the windows of a training run:
//!
//! ```
//! use std::ops::ControlFlow;
//! use tape::layout::{Part, TapeFiles};
//! use tape::prepare::{PrepareOptions, Split, prepare};
//! use tape::reader::Tape;
//! use tape::sources::InMemory;
//! use tape::tokenizer::Tokenizer;
//! use tape::windows::{WindowShape, Windows};
//!
//! # let folder = std::env::temp_dir().join(format!("tape-example-{}", std::process::id()));
//! let tokenizer = Tokenizer::bundled();
//! let mut documents = InMemory::new("greetings", ["Good morning.", "Good evening."]);
//! let options = PrepareOptions::new(&folder, Split::Whole(Part::Train));
//! prepare(&mut documents, &tokenizer, &options, &mut |_| ControlFlow::Continue(()))?;
//!
//! let tape = Tape::open(&TapeFiles::in_folder(&folder, Part::Train), Some(tokenizer.vocabulary()))?;
//! let windows = Windows::new(&tape, WindowShape { batch: 1, context: 4 });
//! let window = windows.at(0)?.expect("the tape holds more than one token");
//! assert_eq!(window.inputs()[1..], window.targets()[..3]);
//! # std::fs::remove_dir_all(&folder).expect("the folder was just made");
//! # Ok::<(), tape::Error>(())
//! ```

pub mod aside;
mod blocks;
pub mod checksum;
pub mod contract;
mod dedup;
pub mod disk;
pub mod layout;
pub mod loader;
pub mod order;
pub mod prepare;
pub mod reader;
pub mod sources;
pub mod stories;
pub mod tokenizer;
pub mod windows;
pub mod writer;

mod error;

pub use error::Error;
