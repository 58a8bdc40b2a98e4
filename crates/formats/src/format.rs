//! The list of state formats: names, arrays of one tensor, exact byte accounting.
//!
//! A new format is a line in each `match` here, and a file with its codec. What
//! memory the arrays live in is the optimizer's affair.

use core::fmt;
use core::str::FromStr;

use crate::Error;
use crate::lane::{Lane, Moment, NumberFormat};

/// How the moments of a tensor persist between updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `m` and `v` as f32: ordinary AdamW.
    Fp32,
    /// `m` and `r` as binary16 in one word.
    Fp16,
    /// `m` as E4M11 and `r` as E4M12 in one word: the canonical format.
    E4,
    /// The layout of `e4`, with `r` rounded stochastically.
    E4s,
}

/// The element type of a stored array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Unsigned 32-bit words, little-endian.
    U32,
    /// IEEE 754 binary32, little-endian.
    F32,
}

/// One named array of a tensor's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// What follows the tensor's name in a checkpoint, after a dot.
    pub name: &'static str,
    /// What the array holds.
    pub element: ElementType,
    /// How many elements it holds.
    pub count: u64,
}

impl Format {
    /// Every format, in the order of tables.
    pub const ALL: [Format; 4] = [Format::Fp32, Format::Fp16, Format::E4, Format::E4s];

    /// The name in configurations and checkpoints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Fp32 => "fp32",
            Format::Fp16 => "fp16",
            Format::E4 => "e4",
            Format::E4s => "e4s",
        }
    }

    /// What the format is, in one line.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Format::Fp32 => "both moments as f32: ordinary AdamW",
            Format::Fp16 => "binary16 first moment and RMS in one word, for comparison",
            Format::E4 => "E4M11 first moment and E4M12 RMS in one word, one bias per tensor",
            Format::E4s => "the layout of e4, its RMS rounded stochastically",
        }
    }

    /// The lanes of the first and of the second moment.
    #[must_use]
    pub const fn lanes(self) -> [Lane; 2] {
        use Moment::{First, Second, SecondRms};
        use NumberFormat::{Binary16, E4M11, E4M12, F32};
        let [(moment, number), (second_moment, second_number)] = match self {
            Format::Fp32 => [(First, F32), (Second, F32)],
            Format::Fp16 => [(First, Binary16), (SecondRms, Binary16)],
            Format::E4 | Format::E4s => [(First, E4M11), (SecondRms, E4M12)],
        };
        [Lane { moment, number }, Lane { moment: second_moment, number: second_number }]
    }

    /// Whether a tensor's bias changes what its state means. The others ignore it.
    #[must_use]
    pub const fn has_bias(self) -> bool {
        matches!(self, Format::E4 | Format::E4s)
    }

    /// Whether an encode draws random words, so that the seed changes the state.
    #[must_use]
    pub const fn is_stochastic(self) -> bool {
        matches!(self, Format::E4s)
    }

    /// The arrays that hold the state of a tensor of `elements` parameters.
    pub fn sections(self, elements: u64) -> impl Iterator<Item = Section> + Clone {
        let arrays: &'static [(&'static str, ElementType)] = match self {
            Format::Fp32 => &[("m", ElementType::F32), ("v", ElementType::F32)],
            Format::Fp16 | Format::E4 | Format::E4s => &[("word", ElementType::U32)],
        };
        arrays.iter().map(move |&(name, element)| Section { name, element, count: elements })
    }

    /// The bytes that the state of a tensor of `elements` parameters takes: the
    /// sum over its [`sections`](Self::sections), exact.
    #[must_use]
    pub fn state_bytes(self, elements: u64) -> u64 {
        self.sections(elements).map(|section| section.count * section.element.bytes()).sum()
    }

    /// Bits of state per parameter, in the limit of large tensors.
    #[must_use]
    pub fn bits_per_parameter(self) -> f64 {
        const PARAMETERS: u64 = 1 << 20;
        self.state_bytes(PARAMETERS) as f64 * 8.0 / PARAMETERS as f64
    }
}

impl ElementType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            ElementType::U32 | ElementType::F32 => 4,
        }
    }

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::U32 => "u32",
            ElementType::F32 => "f32",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Format, Error> {
        let known = Format::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| Error::UnknownFormat { found: name.into() })
    }
}
