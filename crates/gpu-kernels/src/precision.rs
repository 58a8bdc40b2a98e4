//! What matrix products compute with, and with it what flows between operations.

/// The precision of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 numbers and f32 arithmetic throughout.
    Fp32,
    /// f32 numbers, rounded to 10 fraction bits as they enter a product; sums are f32.
    Tf32,
    /// bf16 numbers between operations and in products; sums, statistics and losses are f32.
    Bf16,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Precision; 3] = [Precision::Fp32, Precision::Tf32, Precision::Bf16];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }

    /// The precision of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == name)
    }

    /// Bytes of an activation: 4, 4 and 2.
    #[must_use]
    pub const fn activation_bytes(self) -> usize {
        match self {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 => 2,
        }
    }

    /// Whether activations are bf16.
    #[must_use]
    pub const fn is_bf16(self) -> bool {
        matches!(self, Precision::Bf16)
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
