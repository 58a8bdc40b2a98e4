//! The tokens of words met before: a few thousand words make up most of any text.
//!
//! A word of up to 15 bytes is its own key, one 128-bit number, and up to four tokens lie beside it in
//! the same half cache line. A word has four places; when they are taken, one of them is given to the
//! new word, so the cache follows the text. What is kept never changes a result.

/// The longest word that is kept: its length takes the key's last byte.
pub(super) const WORD_BYTES_MAX: usize = 15;

/// The most tokens of a word that is kept.
const TOKENS_MAX: usize = 4;

/// Words, a power of two: 2 MiB together.
const PLACES: usize = 1 << 16;

/// Places that a word may take.
const WAYS: usize = 4;

/// Tokens are below 2^20; the number of tokens stands above them in the first one.
const COUNT_SHIFT: u32 = 24;

/// The words of one encoding at a time.
pub(super) struct WordCache {
    places: Box<[Place]>,
    next_way: usize,
}

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Place {
    /// 0 for an empty place: no word has it, for no word is empty.
    key: u128,
    tokens: [u32; TOKENS_MAX],
}

impl Default for WordCache {
    fn default() -> Self {
        let empty = Place { key: 0, tokens: [0; TOKENS_MAX] };
        Self { places: vec![empty; PLACES].into(), next_way: 0 }
    }
}

/// The key of the word that is `bytes[start..end]`, or `None` where it is too long.
#[inline]
pub(super) fn key(bytes: &[u8], start: usize, end: usize) -> Option<u128> {
    let length = end - start;
    if length > WORD_BYTES_MAX {
        return None;
    }
    let word = match bytes[start..].first_chunk::<16>() {
        // What follows the word is masked away.
        Some(chunk) => u128::from_le_bytes(*chunk) & ((1 << (8 * length)) - 1),
        None => {
            let mut chunk = [0; 16];
            chunk[..length].copy_from_slice(&bytes[start..end]);
            u128::from_le_bytes(chunk)
        }
    };
    Some(word | (length as u128) << 120)
}

impl WordCache {
    /// Appends the tokens of the word with this key; false if it is not kept.
    #[inline]
    pub(super) fn append(&self, key: u128, tokens: &mut Vec<u32>) -> bool {
        for place in &self.places[ways(key)] {
            if place.key == key {
                let count = place.tokens[0] >> COUNT_SHIFT;
                let first = place.tokens[0] & ((1 << COUNT_SHIFT) - 1);
                tokens.push(first);
                if count > 1 {
                    tokens.extend_from_slice(&place.tokens[1..count as usize]);
                }
                return true;
            }
        }
        false
    }

    /// Keeps the tokens of the word with this key, if they are few enough.
    pub(super) fn keep(&mut self, key: u128, tokens: &[u32]) {
        if tokens.len() > TOKENS_MAX {
            return;
        }
        let mut kept = [0; TOKENS_MAX];
        kept[..tokens.len()].copy_from_slice(tokens);
        kept[0] |= (tokens.len() as u32) << COUNT_SHIFT;
        let places = &mut self.places[ways(key)];
        let way = places.iter().position(|place| place.key == 0).unwrap_or_else(|| {
            self.next_way = (self.next_way + 1) % WAYS;
            self.next_way
        });
        places[way] = Place { key, tokens: kept };
    }
}

/// The places of a key.
#[inline]
fn ways(key: u128) -> std::ops::Range<usize> {
    let folded = (key as u64) ^ ((key >> 64) as u64).wrapping_mul(0xA24B_AED4_963E_E407);
    let group =
        folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - (PLACES / WAYS).trailing_zeros());
    let start = group as usize * WAYS;
    start..start + WAYS
}
