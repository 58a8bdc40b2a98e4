//! The seeded story generator: an endless supply of small stories to train on.
//!
//! A first run of the product has no text of its own, so the program makes some. Each story is
//! 80 to 160 words of plain English about a hero who wants something, meets an obstacle, finds
//! help and comes to an end that follows from what happened. The vocabulary is small, the grammar
//! is regular and the characters come back, so that a small model has a chance to learn names,
//! pronouns, dialogue and plot from a few million bytes; yet hardly two stories are alike.
//!
//! The rooms of this module, in reading order:
//!
//! * `lexicon`: who and where: characters, trades, animals, settings, shared word tables;
//! * `plots`: what happens: the skeletons, written as text with slots and alternatives;
//! * `telling`: draws a cast for a plot and turns both into one story;
//! * `grammar`: a or an, plurals, capitals.
//!
//! Everything is integer arithmetic on constants, without clock, locale, floating point or hash
//! maps: a seed gives the same bytes on every machine. To change a word of a plot is to change
//! what a seed stands for, and the golden file of the tests says so.
//!
//! What does not live here: tokens, tapes and files. `prepare` takes these stories as documents.

mod grammar;
mod lexicon;
mod plots;
mod telling;

/// The stories of one seed, from the first on, without end.
///
/// The k-th item, counted from 0, is `story(seed, k)`.
///
/// ```
/// use tape::stories::{Stories, story};
///
/// let first: Vec<String> = Stories::new(7).take(3).collect();
/// assert_eq!(first[2], story(7, 2));
/// for text in &first {
///     assert!((80..=160).contains(&text.split_whitespace().count()));
///     assert!(text.ends_with(".\n") || text.ends_with("\"\n"));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Stories {
    seed: u64,
    next_index: u64,
}

impl Stories {
    /// The stories of `seed`; the next one is number 0.
    pub fn new(seed: u64) -> Self {
        Self { seed, next_index: 0 }
    }
}

impl Iterator for Stories {
    type Item = String;

    /// Never `None`. After story 2^64 - 1 comes story 0 again.
    fn next(&mut self) -> Option<String> {
        let text = story(self.seed, self.next_index);
        self.next_index = self.next_index.wrapping_add(1);
        Some(text)
    }
}

/// Story number `index` of `seed`, a pure function of both.
///
/// The text is ASCII, has no title, consists of paragraphs that each end with a newline, and
/// costs a few microseconds.
pub fn story(seed: u64, index: u64) -> String {
    telling::tell(Dice::new(seed, index))
}

/// The random choices of one story: SplitMix64, started from a hash of seed and index.
struct Dice {
    state: u64,
}

impl Dice {
    /// The Weyl increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
    const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(seed: u64, index: u64) -> Self {
        Self { state: Self::scramble(Self::scramble(seed) ^ index.wrapping_mul(Self::INCREMENT)) }
    }

    /// The output permutation of SplitMix64: one-to-one on 64-bit words.
    fn scramble(word: u64) -> u64 {
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number from 0 to `count - 1`, each as likely as the others to within `count / 2^64`.
    fn below(&mut self, count: usize) -> usize {
        self.state = self.state.wrapping_add(Self::INCREMENT);
        let product = u128::from(Self::scramble(self.state)) * count as u128;
        (product >> 64) as usize
    }

    /// One item of a list that is not empty.
    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

#[cfg(test)]
mod tests;
