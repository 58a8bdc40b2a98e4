//! The shape of a network, checked once. Which shapes have names, and the files they come from, is
//! the trainer's business.

use crate::Error;

/// The five numbers that shape a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// V: rows of the token table.
    pub vocabulary: usize,
    /// Learned positions, the longest T.
    pub context: usize,
    /// C: width of the residual stream.
    pub channels: usize,
    /// L: transformer blocks.
    pub layers: usize,
    /// H: attention heads; they divide C.
    pub heads: usize,
}

/// Dimensions that have been checked: all at least 1, C divisible by H, V within 32-bit ids, and N
/// within the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    dimensions: Dimensions,
}

impl Config {
    /// Checks the dimensions.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroDimension`], [`Error::UnevenHeads`], [`Error::VocabularyTooLarge`], or
    /// [`Error::TooLarge`] when the bytes of N parameters would overflow.
    pub fn new(dimensions: Dimensions) -> Result<Self, Error> {
        let Dimensions { vocabulary, context, channels, layers, heads } = dimensions;
        for (dimension, found) in [
            ("vocabulary", vocabulary),
            ("context", context),
            ("channels", channels),
            ("layers", layers),
            ("heads", heads),
        ] {
            if found == 0 {
                return Err(Error::ZeroDimension { dimension });
            }
        }
        if !channels.is_multiple_of(heads) {
            return Err(Error::UnevenHeads { channels, heads });
        }
        // The id u32::MAX marks ignored targets.
        let max = u32::MAX as usize;
        if vocabulary > max {
            return Err(Error::VocabularyTooLarge { found: vocabulary, max });
        }
        let config = Self { dimensions };
        match config.checked_parameters() {
            Some(parameters) if parameters <= isize::MAX as usize / size_of::<f64>() => Ok(config),
            _ => Err(Error::TooLarge { what: "the parameters" }),
        }
    }

    /// V: rows of the token table.
    pub fn vocabulary(self) -> usize {
        self.dimensions.vocabulary
    }

    /// Learned positions, the longest T.
    pub fn context(self) -> usize {
        self.dimensions.context
    }

    /// C: width of the residual stream.
    pub fn channels(self) -> usize {
        self.dimensions.channels
    }

    /// L: transformer blocks.
    pub fn layers(self) -> usize {
        self.dimensions.layers
    }

    /// H: attention heads.
    pub fn heads(self) -> usize {
        self.dimensions.heads
    }

    /// D = C / H.
    pub fn head_size(self) -> usize {
        self.channels() / self.heads()
    }

    /// N = V C + context C + L (12 C^2 + 13 C) + 2 C.
    ///
    /// # Panics
    ///
    /// Never: [`Config::new`] refused what would overflow.
    pub fn parameters(self) -> usize {
        self.checked_parameters().expect("`Config::new` checked the count")
    }

    /// Parameters that take part in a matrix product for every token: 12 L C^2 + V C. The token
    /// table counts once, for its work as output head; its rows are otherwise only looked up.
    pub fn product_parameters(self) -> usize {
        12 * self.layers() * self.channels() * self.channels() + self.vocabulary() * self.channels()
    }

    /// Model FLOPs of one training step per token, forward and backward, a multiply and an add
    /// counted as two:
    ///
    /// ```text
    /// 6 * product_parameters + 6 * L * C * (T + 1)
    /// ```
    ///
    /// The second term is attention: two products of 2 C (T + 1) / 2 FLOPs per layer going
    /// forward, since a token sees (T + 1) / 2 keys on average, and twice that going back.
    /// Recomputation is not counted.
    pub fn training_flops_per_token(self, time: usize) -> f64 {
        let attention = self.layers() * self.channels() * (time + 1);
        6.0 * (self.product_parameters() as f64 + attention as f64)
    }

    fn checked_parameters(self) -> Option<usize> {
        let channels = self.channels();
        let block = channels.checked_mul(12)?.checked_add(13)?.checked_mul(channels)?;
        let tables = self.vocabulary().checked_add(self.context())?.checked_mul(channels)?;
        self.layers().checked_mul(block)?.checked_add(tables)?.checked_add(2 * channels)
    }
}
