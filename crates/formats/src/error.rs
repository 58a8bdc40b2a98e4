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
        }
    }
}

impl core::error::Error for Error {}
