//! One 32-bit state word: both moments of one parameter.
//!
//! ```text
//! word = m_code | (r_code << 16)          stored little-endian
//! ```
//!
//! The low half holds the first moment `m`, the high half the RMS `r = sqrt(v)`,
//! not bias-corrected. A fresh state is all zero bits. In every format the first
//! moment rounds to nearest, ties to even; `v > 0` never encodes to `r = 0`.

use crate::bias::Bias;
use crate::counter_hash::RandomStream;
use crate::minifloat::{Binary16, E4M11, E4M12, Rounded};

/// What a state word stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// The first moment.
    pub m: f32,
    /// The square root of the second moment; never negative.
    pub r: f32,
}

/// A state word just encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The word.
    pub word: u32,
    /// Whether `m` was clamped at the largest finite code.
    pub saturated_m: bool,
    /// Whether `r` was clamped at the largest finite code.
    pub saturated_r: bool,
}

/// A format that keeps both moments of a parameter in one 32-bit word.
pub trait WordCodec: Copy + Send + Sync {
    /// The moments that `word` stands for: exact.
    fn decode(self, word: u32) -> Moments;

    /// The word that carries `moments` to the next update.
    ///
    /// `index_low` is the lower half of the element's index in its tensor; only
    /// formats that round stochastically read it. Meant for finite moments with
    /// `r >= 0`; anything else saturates instead of failing.
    fn encode(self, moments: Moments, index_low: u32) -> Packed;
}

/// The `e4` format: signed E4M11 below, unsigned E4M12 above, one bias for both.
#[derive(Clone, Copy, Debug)]
pub struct E4Word {
    m: E4M11,
    r: E4M12,
}

/// The `e4s` format: the layout of `e4`, with both moments rounded stochastically.
///
/// One random word serves both: `r` is rounded by its upper bits first, `m` by its lower half first. To nearest, an `m`
/// of a few subnormal steps would never fade, and over an `r` that does it would move a parameter without gradients for
/// ever.
#[derive(Clone, Copy, Debug)]
pub struct E4sWord {
    e4: E4Word,
    stream: RandomStream,
}

/// The `fp16` format: binary16 in both halves, saturating at 65504, without bias.
#[derive(Clone, Copy, Debug)]
pub struct Fp16Word {
    lane: Binary16,
}

impl E4Word {
    /// The codec of a tensor with this bias.
    #[must_use]
    pub const fn new(bias: Bias) -> E4Word {
        E4Word { m: E4M11::new(bias), r: E4M12::new(bias) }
    }
}

impl E4sWord {
    /// The codec of a tensor with this bias, drawing from `stream`.
    #[must_use]
    pub const fn new(bias: Bias, stream: RandomStream) -> E4sWord {
        E4sWord { e4: E4Word::new(bias), stream }
    }
}

impl Fp16Word {
    /// The codec.
    #[must_use]
    pub const fn new() -> Fp16Word {
        Fp16Word { lane: Binary16::new(Bias::BINARY16) }
    }

    /// Whether both halves are codes that [`encode`](WordCodec::encode) can make:
    /// finite, and `r` without sign.
    #[must_use]
    pub const fn is_valid(word: u32) -> bool {
        const EXPONENT: u32 = 0x7C00;
        let (m_code, r_code) = halves(word);
        m_code & EXPONENT != EXPONENT && r_code < EXPONENT
    }
}

impl Default for Fp16Word {
    fn default() -> Fp16Word {
        Fp16Word::new()
    }
}

impl WordCodec for E4Word {
    #[inline(always)]
    fn decode(self, word: u32) -> Moments {
        let (m_code, r_code) = halves(word);
        Moments { m: self.m.decode_signed(m_code), r: self.r.decode(r_code) }
    }

    #[inline(always)]
    fn encode(self, moments: Moments, _index_low: u32) -> Packed {
        let m = self.m.encode_signed_nearest(moments.m);
        let r = self.r.encode_nearest(moments.r).never_zero_for(moments.r);
        join(m, r)
    }
}

impl WordCodec for E4sWord {
    #[inline(always)]
    fn decode(self, word: u32) -> Moments {
        self.e4.decode(word)
    }

    #[inline(always)]
    fn encode(self, moments: Moments, index_low: u32) -> Packed {
        let random = self.stream.word(index_low);
        let m = self.e4.m.encode_signed_stochastic(moments.m, random.rotate_left(16));
        let r = self.e4.r.encode_stochastic(moments.r, random);
        join(m, r.never_zero_for(moments.r))
    }
}

impl WordCodec for Fp16Word {
    #[inline(always)]
    fn decode(self, word: u32) -> Moments {
        let (m_code, r_code) = halves(word);
        Moments { m: self.lane.decode_signed(m_code), r: self.lane.decode(r_code) }
    }

    #[inline(always)]
    fn encode(self, moments: Moments, _index_low: u32) -> Packed {
        let m = self.lane.encode_signed_nearest(moments.m);
        let r = self.lane.encode_nearest(moments.r).never_zero_for(moments.r);
        join(m, r)
    }
}

#[inline(always)]
const fn halves(word: u32) -> (u32, u32) {
    (word & 0xFFFF, word >> 16)
}

#[inline(always)]
const fn join(m: Rounded, r: Rounded) -> Packed {
    Packed { word: m.code | r.code << 16, saturated_m: m.saturated, saturated_r: r.saturated }
}
