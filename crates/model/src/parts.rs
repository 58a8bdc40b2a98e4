//! The parts of a pass, and the time that each takes.

use std::ops::AddAssign;
use std::time::Duration;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embedding,
    LayerNorm,
    Linear,
    Attention,
    Gelu,
    Loss,
}

impl Part {
    /// How many there are.
    pub(crate) const COUNT: usize = 6;
}

/// Time by kind of operation, forward and backward together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartTimes {
    /// Token and position tables.
    pub embedding: Duration,
    /// LayerNorms, with the residual sums before them.
    pub layernorm: Duration,
    /// Linear layers inside the blocks.
    pub linear: Duration,
    /// Attention without its linear layers.
    pub attention: Duration,
    /// GELU.
    pub gelu: Duration,
    /// Output head and cross-entropy.
    pub loss: Duration,
}

impl PartTimes {
    /// The parts with their names, in the order of the forward pass.
    pub fn named(&self) -> [(&'static str, Duration); Part::COUNT] {
        [
            ("embedding", self.embedding),
            ("layernorm", self.layernorm),
            ("linear", self.linear),
            ("attention", self.attention),
            ("gelu", self.gelu),
            ("loss", self.loss),
        ]
    }

    /// All parts together.
    pub fn total(&self) -> Duration {
        self.named().into_iter().map(|(_, time)| time).sum()
    }

    /// The time of a part, to change.
    pub(crate) fn of(&mut self, part: Part) -> &mut Duration {
        match part {
            Part::Embedding => &mut self.embedding,
            Part::LayerNorm => &mut self.layernorm,
            Part::Linear => &mut self.linear,
            Part::Attention => &mut self.attention,
            Part::Gelu => &mut self.gelu,
            Part::Loss => &mut self.loss,
        }
    }
}

impl AddAssign for PartTimes {
    fn add_assign(&mut self, other: PartTimes) {
        self.embedding += other.embedding;
        self.layernorm += other.layernorm;
        self.linear += other.linear;
        self.attention += other.attention;
        self.gelu += other.gelu;
        self.loss += other.loss;
    }
}
