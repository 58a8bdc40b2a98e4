//! The random numbers of the published `ustate1q` format, which `ustate1q-original` draws.
//!
//! ```text
//! s = mix(seed ^ (t * 0x9E3779B9) ^ ((group + 1) * 0x85EBCA6B) ^ ((parameter + 1) * 0xC2B2AE35) ^ (stream * 0x27D4EB2D))
//! x = mix((i >> 1) ^ s)              b = (x >> 8) * 2^-24
//! u = b for even i, min(1 - b, 1 - 2^-24) for odd i
//! ```
//!
//! All words are taken modulo 2^32; t is the update, `parameter` counts within the group, stream
//! 1 is the first moment's and 2 the second's.

use crate::counter_hash::mix;

/// The multipliers of update, group, parameter and stream.
pub const MULTIPLIERS: [u32; 4] = [0x9E37_79B9, 0x85EB_CA6B, 0xC2B2_AE35, 0x27D4_EB2D];

/// `2^-24`
const UNIT: f32 = f32::from_bits((127 - 24) << 23);

/// Where a tensor stands: its group, and its place within that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The position of the group.
    pub group: u32,
    /// The position in the group.
    pub parameter: u32,
}

/// The numbers of one moment of one tensor at one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedStream(pub u32);

impl PublishedStream {
    /// Those of the first and of the second moment.
    #[must_use]
    pub const fn both(seed: u32, update: u64, place: Place) -> [PublishedStream; 2] {
        let [by_update, by_group, by_parameter, by_stream] = MULTIPLIERS;
        let word = seed
            ^ (update as u32).wrapping_mul(by_update)
            ^ place.group.wrapping_add(1).wrapping_mul(by_group)
            ^ place.parameter.wrapping_add(1).wrapping_mul(by_parameter);
        [
            PublishedStream(mix(word ^ by_stream)),
            PublishedStream(mix(word ^ by_stream.wrapping_mul(2))),
        ]
    }

    /// What rounds a position down as the element's number would: 1 less it, but below 1.
    #[inline(always)]
    #[must_use]
    pub const fn dither(self, index: u32) -> f32 {
        let mirrored = 1.0 - self.uniform(index);
        let below_one = 1.0 - UNIT;
        if mirrored < below_one { mirrored } else { below_one }
    }

    /// The number of the element at `index`, from 0 to below 1.
    #[inline(always)]
    #[must_use]
    pub const fn uniform(self, index: u32) -> f32 {
        let b = (mix((index >> 1) ^ self.0) >> 8) as i32 as f32 * UNIT;
        let mirrored = 1.0 - b;
        let below_one = 1.0 - UNIT;
        if index & 1 == 0 {
            b
        } else if mirrored < below_one {
            mirrored
        } else {
            below_one
        }
    }
}
