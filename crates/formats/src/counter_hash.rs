//! Random words made from counters, for stochastic rounding.
//!
//! A word is a function of (seed, update, tensor, element) and of nothing else:
//! there is no generator state to save, and any order, thread count or sharding
//! of the elements draws the same words.
//!
//! `mix` is the well-known 32-bit finaliser of two multiplications and three
//! shifts, a bijection in which every input bit flips every output bit with
//! probability near one half. All numbers are taken modulo 2^32:
//!
//! ```text
//! absorb(h, w) = mix(h ^ w) + 0x9E3779B9
//! key(h)       = absorb seed_low, seed_high, update_low, update_high, tensor, index_high, in this order, into h
//! word         = mix(mix(index_low ^ key(1)) + key(2))
//! ```
//!
//! Two keyed rounds rather than one: with one, the streams of two tensors would
//! be the same words in another order.
//!
//! # Words of four
//!
//! Formats that round both moments of an element draw two words for four neighbours. They need twice as
//! many numbers in a time in which nothing else waits for memory, so their words come from fewer
//! operations: products of 64 bits, of which `fold` adds the halves without carry. `f` counts the
//! fours:
//!
//! ```text
//! s    = f * 0x9E3779B9 + key(1)                      a sequence that meets every number once
//! w0   = fold(fold(s * (s ^ key(2))) * 0x846CA68B)
//! w1   = fold(w0 * 0x7FEB352D)
//! ```
//!
//! Each word begins two numbers: its 23 upper bits one, and those of the word turned by a half the other. The
//! second moment of an element takes its own number, the first moment that of the element beside it, 1
//! for 0 and 0 for 1: the 16 bits that decide of both have nothing in common.

/// The two multipliers of [`mix`].
pub const MIX_MULTIPLIERS: [u32; 2] = [0x7FEB_352D, 0x846C_A68B];

/// What every absorbed counter adds.
pub const MIX_INCREMENT: u32 = 0x9E37_79B9;

/// What the streams of one update have in common: its keys after seed and update
/// number. A device that makes the streams of many tensors goes on from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateKeys {
    /// `key(1)` so far.
    pub inner: u32,
    /// `key(2)` so far.
    pub outer: u32,
}

/// The words of one tensor at one update, for the 2^32 elements that share the
/// upper half of their index.
#[derive(Clone, Copy, Debug)]
pub struct RandomStream {
    inner_key: u32,
    outer_key: u32,
}

impl RandomStream {
    /// The stream of `tensor` (its position among all tensors) at `update`, for
    /// the elements whose index has `index_high` as its upper 32 bits.
    #[must_use]
    pub const fn new(seed: u64, update: u64, tensor: u32, index_high: u32) -> RandomStream {
        UpdateKeys::new(seed, update).stream(tensor, index_high)
    }

    /// The word of the element whose index has `index_low` as its lower 32 bits.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, index_low: u32) -> u32 {
        mix(mix(index_low ^ self.inner_key).wrapping_add(self.outer_key))
    }

    /// `key(1)` and `key(2)`, for whoever draws many words at once.
    #[inline(always)]
    #[must_use]
    pub const fn keys(self) -> [u32; 2] {
        [self.inner_key, self.outer_key]
    }

    /// Two words for four neighbouring elements, whose indices are `4 four_low` and the three after
    /// it, see the file head.
    #[inline(always)]
    #[must_use]
    pub const fn words_of_four(self, four_low: u32) -> [u32; 2] {
        let s = four_low.wrapping_mul(MIX_INCREMENT).wrapping_add(self.inner_key);
        let word = folded(folded(s, s ^ self.outer_key), MIX_MULTIPLIERS[1]);
        [word, folded(word, MIX_MULTIPLIERS[0])]
    }
}

impl UpdateKeys {
    /// The keys of `update`.
    #[must_use]
    pub const fn new(seed: u64, update: u64) -> UpdateKeys {
        let counters = [seed as u32, (seed >> 32) as u32, update as u32, (update >> 32) as u32];
        UpdateKeys { inner: absorb(1, &counters), outer: absorb(2, &counters) }
    }

    /// The stream of a tensor, see [`RandomStream::new`].
    #[must_use]
    pub const fn stream(self, tensor: u32, index_high: u32) -> RandomStream {
        let counters = [tensor, index_high];
        RandomStream {
            inner_key: absorb(self.inner, &counters),
            outer_key: absorb(self.outer, &counters),
        }
    }
}

/// Four numbers strictly between 0 and 1, two from each word.
#[inline(always)]
#[must_use]
pub const fn uniforms([first, second]: [u32; 2]) -> [f32; 4] {
    [
        uniform(first),
        uniform(first.rotate_left(16)),
        uniform(second),
        uniform(second.rotate_left(16)),
    ]
}

/// A number from the upper 23 bits of a word, h: `(h + 1/2) / 2^23`, exactly.
#[inline(always)]
#[must_use]
pub const fn uniform(word: u32) -> f32 {
    const HALF_BELOW_ONE: f32 = 1.0 - 1.0 / 16_777_216.0;
    f32::from_bits(word >> 9 | 0x3F80_0000) - HALF_BELOW_ONE
}

/// The halves of a product of 64 bits, added without carry.
#[inline(always)]
const fn folded(x: u32, y: u32) -> u32 {
    let product = x as u64 * y as u64;
    product as u32 ^ (product >> 32) as u32
}

/// The 32-bit finaliser of the file head.
#[inline(always)]
#[must_use]
pub const fn mix(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(MIX_MULTIPLIERS[0]);
    let word = (word ^ (word >> 15)).wrapping_mul(MIX_MULTIPLIERS[1]);
    word ^ (word >> 16)
}

const fn absorb(start: u32, counters: &[u32]) -> u32 {
    let mut hash = start;
    let mut next = 0;
    while next < counters.len() {
        hash = mix(hash ^ counters[next]).wrapping_add(MIX_INCREMENT);
        next += 1;
    }
    hash
}
