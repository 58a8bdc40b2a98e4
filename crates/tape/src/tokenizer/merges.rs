//! Byte pairs into tokens: the merging itself.
//!
//! A word begins as the tokens of its bytes. Of all neighbouring pairs that a merge is known for, the
//! one of the lowest rank is replaced by its token, the leftmost of equal ones, until no pair is left.
//! A short word is searched again for every merge; a long one keeps its pairs in a heap, so that the
//! time grows like n log n with its length. Both give the same tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Words of at most this many bytes are merged by searching.
const SHORT_BYTES_MAX: usize = 48;

/// No such position, rank or slot.
const NONE: u32 = u32::MAX;

/// What a pair of tokens becomes.
#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    token: u32,
}

/// All merges of a tokenizer.
pub(super) struct Merges {
    /// The token of each byte.
    bytes: [u32; 256],
    pairs: PairTable,
}

impl Merges {
    /// `bytes` are the tokens of single bytes; `merges` in the order of their rank, each a pair and what
    /// it becomes. Of equal pairs the last one counts.
    pub(super) fn new(bytes: [u32; 256], merges: &[([u32; 2], u32)]) -> Self {
        let mut pairs = PairTable::for_pairs(merges.len());
        for (&(pair, token), rank) in merges.iter().zip(0..) {
            pairs.insert(pair, Merge { rank, token });
        }
        Self { bytes, pairs }
    }

    /// Appends the tokens of `word`.
    pub(super) fn merge(&self, word: &[u8], tokens: &mut Vec<u32>) {
        if word.len() <= SHORT_BYTES_MAX {
            self.merge_short(word, tokens);
        } else {
            self.merge_long(word, tokens);
        }
    }

    fn merge_short(&self, word: &[u8], tokens: &mut Vec<u32>) {
        let mut parts = [0; SHORT_BYTES_MAX];
        // What each part and the next one become.
        let mut merges = [Merge { rank: NONE, token: 0 }; SHORT_BYTES_MAX];
        let mut count = word.len();
        for (part, &byte) in parts.iter_mut().zip(word) {
            *part = self.bytes[usize::from(byte)];
        }
        let find = |parts: &[u32], at: usize, count: usize| match parts[..count].get(at..at + 2) {
            Some(&[left, right]) => self.pairs.get([left, right]),
            _ => Merge { rank: NONE, token: 0 },
        };
        for (at, merge) in merges[..count].iter_mut().enumerate() {
            *merge = find(&parts, at, count);
        }
        loop {
            let ranks = merges[..count].iter().map(|merge| merge.rank);
            let Some((rank, at)) = ranks.zip(0..).min() else { break };
            if rank == NONE {
                break;
            }
            parts[at] = merges[at].token;
            parts.copy_within(at + 2..count, at + 1);
            merges.copy_within(at + 2..count, at + 1);
            count -= 1;
            merges[at] = find(&parts, at, count);
            if at > 0 {
                merges[at - 1] = find(&parts, at - 1, count);
            }
        }
        tokens.extend_from_slice(&parts[..count]);
    }

    fn merge_long(&self, word: &[u8], tokens: &mut Vec<u32>) {
        let count = u32::try_from(word.len()).expect("words are merged in runs");
        let mut parts: Vec<Part> = word
            .iter()
            .zip(0..)
            .map(|(&byte, at)| Part {
                token: self.bytes[usize::from(byte)],
                before: if at == 0 { NONE } else { at - 1 },
                after: if at + 1 == count { NONE } else { at + 1 },
            })
            .collect();
        let pair = |parts: &[Part], at: u32| {
            let part = parts[at as usize];
            let after = parts.get(part.after as usize)?;
            Some(self.pairs.get([part.token, after.token])).filter(|merge| merge.rank != NONE)
        };
        let found = |at: u32| Some(Reverse((pair(&parts, at)?.rank, at)));
        let mut heap: BinaryHeap<_> = (0..count).filter_map(found).collect();
        while let Some(Reverse((rank, at))) = heap.pop() {
            // A part that was merged away, or whose pair has changed since, is skipped.
            let Some(merge) = pair(&parts, at).filter(|merge| merge.rank == rank) else { continue };
            let gone = parts[at as usize].after;
            let after = parts[gone as usize].after;
            parts[gone as usize] = Part { token: NONE, before: NONE, after: NONE };
            parts[at as usize].token = merge.token;
            parts[at as usize].after = after;
            if let Some(after) = parts.get_mut(after as usize) {
                after.before = at;
            }
            for at in [parts[at as usize].before, at] {
                if at != NONE
                    && let Some(merge) = pair(&parts, at)
                {
                    heap.push(Reverse((merge.rank, at)));
                }
            }
        }
        tokens.extend(parts.iter().map(|part| part.token).filter(|&token| token != NONE));
    }
}

/// A part of a long word, with its neighbours.
#[derive(Clone, Copy)]
struct Part {
    token: u32,
    before: u32,
    after: u32,
}

/// Pairs and their merges: open addressing, at most half full.
struct PairTable {
    /// A pair as one number, and its merge; [`EMPTY`] where there is none.
    slots: Vec<(u64, Merge)>,
    shift: u32,
}

/// No pair: both halves would be beyond every vocabulary.
const EMPTY: u64 = u64::MAX;

impl PairTable {
    fn for_pairs(count: usize) -> Self {
        let bits = (2 * count.max(1)).next_power_of_two().trailing_zeros();
        let slots = vec![(EMPTY, Merge { rank: NONE, token: 0 }); 1 << bits];
        Self { slots, shift: 64 - bits }
    }

    fn insert(&mut self, pair: [u32; 2], merge: Merge) {
        let slot = self.slot(key(pair));
        self.slots[slot] = (key(pair), merge);
    }

    /// The merge of `pair`; its rank is [`NONE`] where there is none.
    #[inline]
    fn get(&self, pair: [u32; 2]) -> Merge {
        self.slots[self.slot(key(pair))].1
    }

    /// The slot that holds `key`, or the empty one where it would go.
    #[inline]
    fn slot(&self, key: u64) -> usize {
        let mut slot = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        while self.slots[slot].0 != key && self.slots[slot].0 != EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }
}

fn key([left, right]: [u32; 2]) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Random merges over four letters, many of them through each other's results.
        #[test]
        fn short_and_long_words_merge_alike(
            picks in prop::collection::vec((0_u32..64, 0_u32..64), 0..40),
            word in "[a-d]{0,48}",
        ) {
            let bytes: [u32; 256] = std::array::from_fn(|byte| byte as u32);
            let mut merges = Vec::new();
            for ((left, right), token) in picks.into_iter().zip(256..) {
                let known = |pick: u32| {
                    let count = 4 + merges.len() as u32;
                    let pick = pick % count;
                    if pick < 4 { u32::from(b'a') + pick } else { 256 + pick - 4 }
                };
                let pair = [known(left), known(right)];
                merges.push((pair, token));
            }
            let merges = Merges::new(bytes, &merges);
            let (mut short, mut long) = (Vec::new(), Vec::new());
            merges.merge_short(word.as_bytes(), &mut short);
            merges.merge_long(word.as_bytes(), &mut long);
            prop_assert_eq!(short, long);
        }
    }
}
