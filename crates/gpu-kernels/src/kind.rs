//! The kind of a tensor: what its parameters, gradients and moments are in memory. A kernel is
//! compiled for the kinds that a model has.

use formats::Format;

/// How parameters lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParameterType {
    /// As f32.
    #[default]
    F32,
    /// As a bf16 and 16 remainder bits in an array of their own; together an f32, see
    /// [`formats::split`].
    Split,
}

/// How gradients lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradientType {
    /// As f32.
    #[default]
    F32,
    /// As bf16.
    Bf16,
}

/// What a tensor's arrays hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// How its moments persist.
    pub format: Format,
    /// How its parameters lie in memory.
    pub parameters: ParameterType,
    /// How its gradients lie in memory.
    pub gradients: GradientType,
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Kinds(u32);

impl ParameterType {
    /// Both.
    pub const ALL: [ParameterType; 2] = [ParameterType::F32, ParameterType::Split];

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ParameterType::F32 => "f32",
            ParameterType::Split => "bf16+16",
        }
    }

    /// Bytes of an element of the main array.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            ParameterType::F32 => 4,
            ParameterType::Split => 2,
        }
    }
}

impl GradientType {
    /// Both.
    pub const ALL: [GradientType; 2] = [GradientType::F32, GradientType::Bf16];

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GradientType::F32 => "f32",
            GradientType::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            GradientType::F32 => 4,
            GradientType::Bf16 => 2,
        }
    }
}

impl Kind {
    /// f32 parameters and gradients, moments in `format`.
    #[must_use]
    pub const fn plain(format: Format) -> Kind {
        Kind { format, parameters: ParameterType::F32, gradients: GradientType::F32 }
    }

    /// Every kind, in the order of their codes.
    pub fn all() -> impl Iterator<Item = Kind> {
        Format::ALL.into_iter().flat_map(|format| {
            ParameterType::ALL.into_iter().flat_map(move |parameters| {
                let kind = move |gradients| Kind { format, parameters, gradients };
                GradientType::ALL.into_iter().map(kind)
            })
        })
    }

    /// The number of a format in kernels.
    pub(crate) const fn format_code(format: Format) -> u32 {
        match format {
            Format::Fp32 => 0,
            Format::Fp16 => 1,
            Format::E4 => 2,
            Format::E4s => 3,
        }
    }

    /// The number of the kind in kernels.
    pub(crate) fn code(self) -> u32 {
        let split = u32::from(self.parameters == ParameterType::Split);
        let bf16 = u32::from(self.gradients == GradientType::Bf16);
        Kind::format_code(self.format) * 4 + split * 2 + bf16
    }
}

impl Kinds {
    /// All of them.
    pub(crate) const ALL: Kinds = Kinds((1 << (Format::ALL.len() * 4)) - 1);

    /// With one more.
    pub(crate) fn with(self, kind: Kind) -> Kinds {
        Kinds(self.0 | 1 << kind.code())
    }

    /// A bit for each code.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
