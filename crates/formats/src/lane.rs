//! The facts of one lane, for tables and for people: its bits, range, step and
//! landmark codes.
//!
//! Facts follow from the codecs; nothing here takes part in an update, and
//! nothing here prints.

use crate::bias::Bias;
use crate::minifloat::{Binary16, E4M11, E4M12, Rounded};

/// One lane of a state format: which moment it keeps, in which number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The moment.
    pub moment: Moment,
    /// How its values are coded.
    pub number: NumberFormat,
}

/// Which moment a lane keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The first moment `m`.
    First,
    /// The second moment as it is, `v`.
    Second,
    /// The second moment as its root, `r = sqrt(v)`.
    SecondRms,
}

/// The number formats of lanes. All are minifloats in the sense of
/// [`minifloat`](crate::minifloat), f32 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// IEEE 754 binary32; stored numbers are finite.
    F32,
    /// IEEE 754 binary16; stored numbers are finite.
    Binary16,
    /// Sign, 4 exponent bits, 11 fraction bits, a bias per tensor.
    E4M11,
    /// 4 exponent bits, 12 fraction bits, a bias per tensor.
    E4M12,
}

impl Moment {
    /// The moment's symbol: `m`, `v` or `r`.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Moment::First => "m",
            Moment::Second => "v",
            Moment::SecondRms => "r",
        }
    }
}

impl NumberFormat {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            NumberFormat::F32 => "f32",
            NumberFormat::Binary16 => "binary16",
            NumberFormat::E4M11 => "E4M11",
            NumberFormat::E4M12 => "E4M12",
        }
    }

    /// Whether the top bit of a code is a sign. A second moment in such a format
    /// leaves that bit zero.
    #[must_use]
    pub const fn has_sign(self) -> bool {
        !matches!(self, NumberFormat::E4M12)
    }

    /// Bits of the exponent field.
    #[must_use]
    pub const fn exponent_bits(self) -> u32 {
        match self {
            NumberFormat::F32 => 8,
            NumberFormat::Binary16 => 5,
            NumberFormat::E4M11 | NumberFormat::E4M12 => 4,
        }
    }

    /// Bits of the fraction, `M`.
    #[must_use]
    pub const fn fraction_bits(self) -> u32 {
        match self {
            NumberFormat::F32 => 23,
            NumberFormat::Binary16 => 10,
            NumberFormat::E4M11 => 11,
            NumberFormat::E4M12 => 12,
        }
    }

    /// Bits of a code.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.has_sign() as u32 + self.exponent_bits() + self.fraction_bits()
    }

    /// Whether the tensor's bias moves the range. The others ignore it.
    #[must_use]
    pub const fn has_bias(self) -> bool {
        matches!(self, NumberFormat::E4M11 | NumberFormat::E4M12)
    }

    /// The code of the largest finite magnitude.
    #[must_use]
    pub const fn code_max(self) -> u32 {
        match self {
            NumberFormat::F32 => f32::MAX.to_bits(),
            NumberFormat::Binary16 => 0x7BFF,
            NumberFormat::E4M11 => 0x7FFF,
            NumberFormat::E4M12 => 0xFFFF,
        }
    }

    /// The value of `code` at `bias`, exact.
    ///
    /// # Panics
    ///
    /// If `code` has more bits than the format.
    #[must_use]
    pub const fn decode(self, code: u32, bias: Bias) -> f32 {
        assert!(code <= u32::MAX >> (32 - self.bits()), "the code has more bits than the format");
        match self {
            NumberFormat::F32 => f32::from_bits(code),
            NumberFormat::Binary16 => Binary16::new(Bias::BINARY16).decode_signed(code),
            NumberFormat::E4M11 => E4M11::new(bias).decode_signed(code),
            NumberFormat::E4M12 => E4M12::new(bias).decode(code),
        }
    }

    /// The code nearest to `value` at `bias`, ties to the even code, saturating.
    /// Formats without a sign take the magnitude.
    #[must_use]
    pub const fn encode(self, value: f32, bias: Bias) -> Rounded {
        match self {
            NumberFormat::F32 => Rounded { code: value.to_bits(), saturated: false },
            NumberFormat::Binary16 => Binary16::new(Bias::BINARY16).encode_signed_nearest(value),
            NumberFormat::E4M11 => E4M11::new(bias).encode_signed_nearest(value),
            NumberFormat::E4M12 => E4M12::new(bias).encode_nearest(value.abs()),
        }
    }

    /// The largest finite magnitude.
    #[must_use]
    pub const fn largest(self, bias: Bias) -> f32 {
        self.decode(self.code_max(), bias)
    }

    /// The smallest normal magnitude: from here up, neighbouring codes lie at most
    /// `2^-M` of their value apart.
    #[must_use]
    pub const fn smallest_normal(self, bias: Bias) -> f32 {
        self.decode(1 << self.fraction_bits(), bias)
    }

    /// The distance between neighbouring subnormal codes, which is also the
    /// smallest magnitude above zero.
    #[must_use]
    pub const fn subnormal_step(self, bias: Bias) -> f32 {
        self.decode(1, bias)
    }

    /// Codes worth showing, from zero up, each with a name.
    #[must_use]
    pub const fn landmarks(self) -> [(&'static str, u32); 6] {
        let smallest_normal = 1 << self.fraction_bits();
        [
            ("zero", 0),
            ("smallest subnormal", 1),
            ("largest subnormal", smallest_normal - 1),
            ("smallest normal", smallest_normal),
            ("next normal", smallest_normal + 1),
            ("largest finite", self.code_max()),
        ]
    }
}
