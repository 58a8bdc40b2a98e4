//! The list of state formats: names, options, arrays of one tensor, exact byte accounting.
//!
//! A new format is a line in each `match` here, and a file with its codec. What
//! memory the arrays live in is the optimizer's affair.
//!
//! A format is written as its name, followed by the options that are not at their default:
//! `ustate1q`, `ustate1q:v_bits=3,block=256`. Options are part of the format, so a checkpoint of other
//! options is one of another format.

use core::fmt;
use core::str::FromStr;

use crate::Error;
use crate::bit_stream;
use crate::block8::Block8;
use crate::lane::{Lane, Moment, NumberFormat};
use crate::n4l4::N4l4;
use crate::one_q::FRESH_ENDPOINT;
use crate::ustate::{CODE_BITS, FIRST_SCALE, UState1Q};

/// How the moments of a tensor persist between updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `m` and `v` as f32: ordinary AdamW.
    Fp32,
    /// `m` and `r` as binary16 in one word.
    Fp16,
    /// `m` as E4M11 and `r` as E4M12 in one word: the canonical format.
    E4,
    /// The layout of `e4`, with both moments rounded stochastically.
    E4s,
    /// 8-bit codes of dynamic maps, an absmax per block.
    Block8(Block8),
    /// 2-bit codes of the normalised update, a few bits of `v` on a grid of logarithms.
    UState1Q(UState1Q),
    /// 4-bit codes of the normalised first moment, 4 bits of `r` on a grid of logarithms.
    N4l4(N4l4),
}

/// Whether a format that others published is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rules {
    /// Mended where it breaks.
    Repaired,
    /// As published.
    Published,
}

/// The element type of a stored array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Bytes.
    U8,
    /// IEEE 754 binary16, little-endian.
    F16,
    /// The upper halves of f32, little-endian.
    Bf16,
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
    /// The bytes of a fresh array, which repeat until it is full.
    pub fresh: &'static [u8],
}

const ZERO: &[u8] = &[0];
const ENDPOINT: &[u8] = &FRESH_ENDPOINT.to_le_bytes();
/// The scale of the last encode, that of the next one, and zero.
const SCALES: &[u8] = &{
    let first = FIRST_SCALE.to_le_bytes();
    [0, 0, 0, 0, first[0], first[1], first[2], first[3], 0, 0, 0, 0]
};

impl Format {
    /// Every format with its default options, in the order of tables.
    pub const ALL: [Format; 9] = [
        Format::Fp32,
        Format::Fp16,
        Format::E4,
        Format::E4s,
        Format::Block8(Block8::DEFAULT),
        Format::Block8(Block8::ORIGINAL),
        Format::UState1Q(UState1Q::DEFAULT),
        Format::UState1Q(UState1Q::ORIGINAL),
        Format::N4l4(N4l4::DEFAULT),
    ];

    /// The name in configurations and checkpoints, without options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Fp32 => "fp32",
            Format::Fp16 => "fp16",
            Format::E4 => "e4",
            Format::E4s => "e4s",
            Format::Block8(Block8 { rules: Rules::Repaired, .. }) => "block8",
            Format::Block8(_) => "block8-original",
            Format::UState1Q(UState1Q { rules: Rules::Repaired, .. }) => "ustate1q",
            Format::UState1Q(_) => "ustate1q-original",
            Format::N4l4(_) => "n4l4",
        }
    }

    /// What the format is, in one line.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Format::Fp32 => "both moments as f32: ordinary AdamW",
            Format::Fp16 => "binary16 first moment and RMS in one word, for comparison",
            Format::E4 => "E4M11 first moment and E4M12 RMS in one word, one bias per tensor",
            Format::E4s => "the layout of e4, rounded stochastically",
            Format::Block8(Block8 { rules: Rules::Repaired, .. }) => {
                "both moments in 8-bit codes of dynamic maps, an f32 absmax per block"
            }
            Format::Block8(_) => {
                "the layout of block8 with the published roundings, for comparison"
            }
            Format::UState1Q(UState1Q { rules: Rules::Repaired, .. }) => {
                "2-bit normalised update, bf16 mean per block; v on a grid of logarithms"
            }
            Format::UState1Q(_) => {
                "the layout of ustate1q with the published roundings, for comparison"
            }
            Format::N4l4(_) => {
                "4-bit normalised first moment, a bf16 unit per 64; r on a 4-bit grid of logarithms"
            }
        }
    }

    /// The lanes of the first and of the second moment of a format whose elements stand alone.
    #[must_use]
    pub const fn lanes(self) -> Option<[Lane; 2]> {
        use Moment::{First, Second, SecondRms};
        use NumberFormat::{Binary16, E4M11, E4M12, F32};
        let [(moment, number), (second_moment, second_number)] = match self {
            Format::Fp32 => [(First, F32), (Second, F32)],
            Format::Fp16 => [(First, Binary16), (SecondRms, Binary16)],
            Format::E4 | Format::E4s => [(First, E4M11), (SecondRms, E4M12)],
            Format::Block8(_) | Format::UState1Q(_) | Format::N4l4(_) => return None,
        };
        Some([Lane { moment, number }, Lane { moment: second_moment, number: second_number }])
    }

    /// Elements that are stored together: 1 where every element stands alone. A tensor may be cut
    /// at multiples of it.
    #[must_use]
    pub const fn block_elements(self) -> u32 {
        match self {
            Format::Fp32 | Format::Fp16 | Format::E4 | Format::E4s => 1,
            Format::Block8(block8) => block8.block,
            Format::UState1Q(ustate) => ustate.block,
            Format::N4l4(n4l4) => n4l4.v_block,
        }
    }

    /// The format of a tensor of `elements` elements: small ones are f32, or a half of them is.
    #[must_use]
    pub const fn for_length(self, elements: u64) -> Format {
        match self {
            // Nothing has no blocks.
            Format::Block8(_) | Format::UState1Q(_) | Format::N4l4(_) if elements == 0 => {
                Format::Fp32
            }
            Format::Block8(Block8 { min_elements, .. })
            | Format::N4l4(N4l4 { min_elements, .. })
                if elements < min_elements as u64 =>
            {
                Format::Fp32
            }
            Format::UState1Q(ustate) => {
                let has_first = ustate.has_first && elements >= ustate.min_first as u64;
                let has_second = ustate.has_second && elements >= ustate.min_second as u64;
                if has_first || has_second {
                    Format::UState1Q(UState1Q { has_first, has_second, ..ustate })
                } else {
                    Format::Fp32
                }
            }
            _ => self,
        }
    }

    /// Whether a tensor's bias changes what its state means. The others ignore it.
    #[must_use]
    pub const fn has_bias(self) -> bool {
        matches!(self, Format::E4 | Format::E4s)
    }

    /// Whether an encode draws random words, so that the seed changes the state.
    #[must_use]
    pub const fn is_stochastic(self) -> bool {
        matches!(self, Format::E4s | Format::UState1Q(_) | Format::N4l4(_))
    }

    /// Whether a decode needs the number of the update that the state was written by.
    #[must_use]
    pub const fn is_bias_corrected(self) -> bool {
        matches!(self, Format::UState1Q(UState1Q { has_first: true, .. }))
    }

    /// The arrays that hold the state of a tensor of `elements` parameters.
    pub fn sections(self, elements: u64) -> impl Iterator<Item = Section> + Clone {
        self.for_length(elements).arrays(elements)
    }

    /// The arrays of `elements` parameters of a tensor that has this very format, as
    /// [`for_length`](Self::for_length) of the whole tensor says: a small part of a large tensor is no small
    /// tensor.
    pub fn arrays(self, elements: u64) -> impl Iterator<Item = Section> + Clone {
        use ElementType::{Bf16, F16, F32, U8, U32};
        const NONE: (&str, ElementType, u64, &[u8]) = ("", U8, u64::MAX, ZERO);
        let blocks = |block: u32| elements.div_ceil(u64::from(block));
        let arrays = match self {
            Format::Fp32 => {
                [("m", F32, elements, ZERO), ("v", F32, elements, ZERO), NONE, NONE, NONE]
            }
            Format::Fp16 | Format::E4 | Format::E4s => {
                [("word", U32, elements, ZERO), NONE, NONE, NONE, NONE]
            }
            Format::Block8(Block8 { block, .. }) => [
                ("m_codes", U8, elements, ZERO),
                ("v_codes", U8, elements, ZERO),
                ("m_absmax", F32, blocks(block), ZERO),
                ("v_absmax", F32, blocks(block), ZERO),
                NONE,
            ],
            Format::UState1Q(ustate) => {
                let padded = blocks(ustate.block) * u64::from(ustate.block);
                let codes = |bits| bit_stream::bytes(padded, bits);
                let first = if ustate.has_first {
                    [
                        ("m_codes", U8, codes(CODE_BITS), ZERO),
                        ("m_means", Bf16, blocks(ustate.mean_block), ZERO),
                        ("m_scales", F32, 3, SCALES),
                    ]
                } else {
                    [("m", F32, elements, ZERO), NONE, NONE]
                };
                let second = if ustate.has_second {
                    [
                        ("v_codes", U8, codes(ustate.v_bits), ZERO),
                        ("v_endpoints", F16, 2 * blocks(ustate.block), ENDPOINT),
                    ]
                } else {
                    [("v", F32, elements, ZERO), NONE]
                };
                [first[0], first[1], first[2], second[0], second[1]]
            }
            Format::N4l4(n4l4) => [
                ("codes", U8, elements, ZERO),
                ("m_units", Bf16, blocks(n4l4.m_block), ZERO),
                ("r_endpoints", Bf16, 2 * blocks(n4l4.v_block), ZERO),
                NONE,
                NONE,
            ],
        };
        arrays
            .into_iter()
            .filter(|&(name, ..)| !name.is_empty())
            .map(|(name, element, count, fresh)| Section { name, element, count, fresh })
    }

    /// The bytes that the state of a tensor of `elements` parameters takes: the
    /// sum over its [`sections`](Self::sections), exact.
    #[must_use]
    pub fn state_bytes(self, elements: u64) -> u64 {
        self.sections(elements).map(Section::bytes).sum()
    }

    /// Bits of state per parameter, in the limit of large tensors.
    #[must_use]
    pub fn bits_per_parameter(self) -> f64 {
        const PARAMETERS: u64 = 1 << 40;
        let bits = self.state_bytes(PARAMETERS) as f64 * 8.0 / PARAMETERS as f64;
        // A few numbers per tensor are nothing to a large one.
        (bits * 65_536.0) as u64 as f64 / 65_536.0
    }

    /// Sets the option `name` of the format.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match self {
            Format::Block8(block8) => block8.set(name, value),
            Format::UState1Q(ustate) => ustate.set(name, value),
            Format::N4l4(n4l4) => n4l4.set(name, value),
            Format::Fp32 | Format::Fp16 | Format::E4 | Format::E4s => Ok(false),
        }
    }

    /// The options, as they are set and as they are by default.
    fn write_options(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Block8(block8) => {
                write_changed(f, &block8.options(), &Block8::DEFAULT.options())
            }
            Format::UState1Q(ustate) => {
                write_changed(f, &ustate.options(), &UState1Q::DEFAULT.options())
            }
            Format::N4l4(n4l4) => write_changed(f, &n4l4.options(), &N4l4::DEFAULT.options()),
            Format::Fp32 | Format::Fp16 | Format::E4 | Format::E4s => Ok(()),
        }
    }
}

/// Writes the options that are not at their default.
fn write_changed(
    f: &mut fmt::Formatter<'_>,
    options: &[(&'static str, u32)],
    defaults: &[(&'static str, u32)],
) -> fmt::Result {
    let mut separator = ':';
    for (&(name, value), _) in options.iter().zip(defaults).filter(|(one, other)| one != other) {
        match name {
            "halves" => {
                write!(f, "{separator}{name}={}", ["none", "m", "v", "both"][value as usize])?;
            }
            "m_rounding" => {
                write!(f, "{separator}{name}={}", ["stochastic", "nearest"][value as usize])?;
            }
            _ => write!(f, "{separator}{name}={value}")?,
        }
        separator = ',';
    }
    Ok(())
}

impl Section {
    /// The bytes of the array.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.count * self.element.bytes()
    }
}

impl ElementType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::U32 | ElementType::F32 => 4,
        }
    }

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::U8 => "u8",
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::U32 => "u32",
            ElementType::F32 => "f32",
        }
    }
}

impl fmt::Display for Format {
    /// The name and the options that are not at their default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())?;
        self.write_options(f)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    /// Reads a name, or a name with options: `block8:block=2048`.
    fn from_str(text: &str) -> Result<Format, Error> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let known = Format::ALL.into_iter().find(|format| format.name() == name);
        let mut format = known.ok_or_else(|| Error::UnknownFormat { found: text.into() })?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !format.set(name.trim(), value.trim())? {
                let format = format.name();
                return Err(Error::UnknownOption { format, found: name.trim().into() });
            }
        }
        match format {
            Format::UState1Q(ustate) => ustate.check()?,
            Format::N4l4(n4l4) => n4l4.check()?,
            _ => {}
        }
        Ok(format)
    }
}
