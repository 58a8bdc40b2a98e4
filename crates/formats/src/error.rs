//! What can be wrong with a name or a number handed to this crate.
//!
//! Written by hand: the crate has no dependencies.

use alloc::string::String;
use core::fmt;

use crate::{Bias, Format};

/// A value that is no bias, or a name that is no format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// An exponent bias outside 0..=40.
    BiasOutOfRange {
        /// The number that was given.
        found: u32,
    },
    /// A name that is no state format.
    UnknownFormat {
        /// The name that was given.
        found: String,
    },
    /// An option that the format does not have.
    UnknownOption {
        /// The format.
        format: &'static str,
        /// The option that was given.
        found: String,
    },
    /// A value that an option cannot have.
    OptionValue {
        /// The option.
        option: String,
        /// What its values are.
        expected: &'static str,
        /// The value that was given.
        found: String,
    },
    /// A block of the first moment that is larger than its block of the second.
    MeanBlock {
        /// The block of the second moment.
        block: u32,
        /// The block of the first moment.
        found: u32,
    },
    /// A map of another number of entries.
    MapEntries {
        /// How many it has.
        found: usize,
    },
    /// A map whose entries are not finite and strictly ascending.
    MapOrder {
        /// The position of the first entry that is not.
        index: usize,
        /// The bits of the entry before it.
        before: u32,
        /// Its bits.
        found: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BiasOutOfRange { found } => {
                let (min, max) = (Bias::MIN, Bias::MAX);
                write!(f, "expected an exponent bias from {min} to {max}, found {found}")
            }
            Error::UnknownFormat { found } => {
                write!(f, "expected a state format, one of ")?;
                for (position, format) in Format::ALL.into_iter().enumerate() {
                    let comma = if position == 0 { "" } else { ", " };
                    write!(f, "{comma}{format}")?;
                }
                write!(f, "; found {found:?}")
            }
            Error::UnknownOption { format, found } => {
                let options = match *format {
                    "block8" | "block8-original" => "block, min",
                    "ustate1q" | "ustate1q-original" => {
                        "block, mean_block, v_bits, halves, min, min_m, min_v"
                    }
                    "n4l4" => "m_block, v_block, m_rounding, min",
                    _ => "none",
                };
                write!(f, "expected an option of {format} ({options}), found {found:?}")
            }
            Error::OptionValue { option, expected, found } => {
                write!(f, "expected {option} to be {expected}, found {found:?}")
            }
            Error::MeanBlock { block, found } => write!(
                f,
                "expected a block of the first moment of at most {block} elements, that of the \
                 second moment; found {found}"
            ),
            Error::MapEntries { found } => {
                write!(f, "expected a map of 256 entries, found {found}")
            }
            Error::MapOrder { index, before, found } => write!(
                f,
                "expected finite map entries in strictly ascending order, found {:e} after {:e} at \
                 entry {index}",
                f32::from_bits(*found),
                f32::from_bits(*before)
            ),
        }
    }
}

impl core::error::Error for Error {}
