//! Which window comes when: seeded shuffling over epochs and mixtures, as arithmetic without files.
//!
//! A tape of n tokens has n - 1 targets. Its windows are the runs of T inputs from its start on, each with
//! the T targets one token on; the last window is shorter where T does not divide n - 1. Every target
//! is in exactly one window, so an epoch, all windows once, is every token but the first once as a target.
//!
//! Full windows are grouped into *ranges* of as many as fit. In each epoch the ranges come in an order of
//! their own, and the windows of a range in an order of their own; the shorter window comes last. Both
//! orders follow from the seed, the epoch and the range alone, by SplitMix64 and Fisher-Yates. Thus window
//! number w of a run is the same window whatever was read before it, on any number of threads and workers:
//! to resume at w is to ask for w.
//!
//! A mixture gives each 1,024 windows in fixed shares to its tapes, by largest remainders of the weights,
//! in one shuffled sequence that repeats. Each tape goes through epochs of its own.

use std::ops::Range;

use crate::Error;

/// Windows after which the sequence of tapes in a mixture repeats.
pub const MIXTURE_WINDOWS: u64 = 1024;

/// What decides an order beside the lengths of the tapes.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderOptions {
    /// T: tokens in a window.
    pub context: usize,
    /// Tokens in a range; at least one window is in it. 2^24 are 64 MiB in memory.
    pub range_tokens: u64,
    /// Another seed, another order.
    pub seed: u64,
    /// The share of each tape, in any unit; equal shares where there are none.
    pub weights: Vec<f64>,
}

/// The order of the windows of one or more tapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    tapes: Vec<TapeOrder>,
    /// The tape of each window of a round, and how many windows of that tape come before it in the round.
    slots: Vec<(usize, u64)>,
    /// Windows of each tape in a round.
    quotas: Vec<u64>,
}

impl Order {
    /// The order of tapes with so many `targets` each.
    ///
    /// # Errors
    /// [`Error::Weights`] for weights that are no shares.
    ///
    /// # Panics
    /// If there is no tape, a tape without a target, or T is 0.
    pub fn new(targets: &[u64], options: &OrderOptions) -> Result<Self, Error> {
        assert!(!targets.is_empty() && options.context > 0, "there is something to order");
        let quotas = quotas(targets.len(), &options.weights)?;
        let mut tapes_of_slots: Vec<usize> = Vec::new();
        for (tape, &quota) in quotas.iter().enumerate() {
            tapes_of_slots.extend(std::iter::repeat_n(tape, quota as usize));
        }
        shuffle(&mut tapes_of_slots, &[options.seed, u64::MAX]);
        let mut taken = vec![0; targets.len()];
        let slot = |tape: usize| {
            taken[tape] += 1;
            (tape, taken[tape] - 1)
        };
        let slots = tapes_of_slots.into_iter().map(slot).collect();
        let tapes = targets.iter().zip(0..).map(|(&targets, index)| TapeOrder {
            targets,
            context: options.context as u64,
            windows_per_range: (options.range_tokens / options.context as u64).max(1),
            seed: mix(&[options.seed, index]),
        });
        let tapes: Vec<_> = tapes.collect();
        assert!(tapes.iter().all(|tape| tape.targets > 0), "every tape has a target");
        Ok(Self { tapes, slots, quotas })
    }

    /// The tape of window number `window`, and which of that tape's windows it is.
    pub fn locate(&self, window: u64) -> (usize, u64) {
        let (round, slot) = (window / MIXTURE_WINDOWS, window % MIXTURE_WINDOWS);
        let (tape, before) = self.slots[slot as usize];
        (tape, round * self.quotas[tape] + before)
    }

    /// Targets of all windows before number `window`.
    pub fn tokens_before(&self, window: u64) -> u64 {
        let of_tape =
            |tape: usize| self.tapes[tape].tokens_before(self.windows_before(tape, window));
        (0..self.tapes.len()).map(of_tape).sum()
    }

    /// Windows of one tape before window number `window` of all.
    fn windows_before(&self, tape: usize, window: u64) -> u64 {
        let (round, slot) = (window / MIXTURE_WINDOWS, window % MIXTURE_WINDOWS);
        let within = if self.tapes.len() == 1 {
            slot
        } else {
            self.slots[..slot as usize].iter().filter(|&&(of, _)| of == tape).count() as u64
        };
        round * self.quotas[tape] + within
    }

    /// The fewest windows that together have at least `tokens` targets.
    pub fn windows_for(&self, tokens: u64) -> u64 {
        // Every window has at least one target and at most T.
        let (mut least, mut most) = (tokens / self.tapes[0].context, tokens);
        while least < most {
            let middle = least + (most - least) / 2;
            if self.tokens_before(middle) >= tokens {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        least
    }

    /// How often the first `windows` windows go through each tape, whole passes rounded up.
    pub fn epochs(&self, windows: u64) -> Vec<u64> {
        let epochs =
            |tape: usize| self.windows_before(tape, windows).div_ceil(self.tapes[tape].windows());
        (0..self.tapes.len()).map(epochs).collect()
    }

    /// The share of each tape in the windows.
    pub fn shares(&self) -> Vec<f64> {
        self.quotas.iter().map(|&quota| quota as f64 / MIXTURE_WINDOWS as f64).collect()
    }

    /// The targets of one epoch of a single tape; of a mixture, of all tapes together.
    pub fn epoch_tokens(&self) -> u64 {
        self.tapes.iter().map(|tape| tape.targets).sum()
    }

    /// Tokens of the longest range, the last target included.
    pub fn range_ids(&self) -> u64 {
        let ids = |tape: &TapeOrder| tape.targets.min(tape.windows_per_range * tape.context) + 1;
        self.tapes.iter().map(ids).max().expect("there is a tape")
    }

    /// Ranges of all tapes.
    pub fn ranges(&self) -> u64 {
        self.tapes.iter().map(TapeOrder::all_ranges).sum()
    }

    /// Ranges that any `windows` windows in a row are in, at most.
    pub fn ranges_of(&self, windows: u64) -> u64 {
        // One that has begun, and one that is shorter than others, and the short window's.
        let of_tape =
            |tape: &TapeOrder| tape.all_ranges().min(windows.div_ceil(tape.windows_per_range) + 3);
        self.tapes.iter().map(of_tape).sum()
    }

    /// The order inside one tape.
    pub(crate) fn of_tape(&self, tape: usize) -> &TapeOrder {
        &self.tapes[tape]
    }
}

/// The part of windows `rows` that worker number `index` of `count` has. The parts of all workers, one after
/// the other, are `rows`: a run has the same windows in the same order for any number of them.
///
/// # Panics
/// If there is no such worker.
pub fn share(rows: Range<u64>, index: u64, count: u64) -> Range<u64> {
    assert!(index < count, "worker {index} of {count}");
    let all = u128::from(rows.end - rows.start);
    let at = |index: u64| rows.start + (all * u128::from(index) / u128::from(count)) as u64;
    at(index)..at(index + 1)
}

/// The order of the windows of one tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapeOrder {
    targets: u64,
    context: u64,
    windows_per_range: u64,
    seed: u64,
}

/// A range in an epoch: its place in the order of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangePlace {
    pub(crate) epoch: u64,
    pub(crate) place: u64,
}

impl TapeOrder {
    fn full_windows(&self) -> u64 {
        self.targets / self.context
    }

    /// Windows of an epoch.
    fn windows(&self) -> u64 {
        self.targets.div_ceil(self.context)
    }

    /// Ranges of full windows.
    fn ranges(&self) -> u64 {
        self.full_windows().div_ceil(self.windows_per_range)
    }

    /// All ranges, that of the shorter window included.
    fn all_ranges(&self) -> u64 {
        self.ranges() + u64::from(self.windows() > self.full_windows())
    }

    /// Targets of the first windows of this tape.
    fn tokens_before(&self, windows: u64) -> u64 {
        let (epoch, window) = (windows / self.windows(), windows % self.windows());
        epoch * self.targets + window * self.context
    }

    /// The order of ranges in an epoch.
    pub(crate) fn range_order(&self, epoch: u64) -> Vec<u64> {
        let mut ranges: Vec<u64> = (0..self.ranges()).collect();
        shuffle(&mut ranges, &[self.seed, epoch]);
        ranges
    }

    /// The epoch of a window of this tape, and its position in the epoch.
    pub(crate) fn epoch_of(&self, window: u64) -> (u64, u64) {
        (window / self.windows(), window % self.windows())
    }

    /// Where the window at `position` of an epoch is: the place of its range in the order of ranges, and its
    /// position in the order of the range. The shorter window has a range of its own, after all others.
    pub(crate) fn find(&self, position: u64, range_order: &[u64]) -> (u64, u64) {
        let (full, each) = (self.full_windows(), self.windows_per_range);
        if position >= full {
            return (self.ranges(), 0);
        }
        // All ranges have as many windows, but the last one of the tape, which stands anywhere.
        let last = self.ranges() - 1;
        let short = full - last * each;
        let place = range_order.iter().position(|&range| range == last);
        let before = place.expect("the order has every range") as u64 * each;
        if position < before {
            (position / each, position % each)
        } else if position < before + short {
            (before / each, position - before)
        } else {
            let after = position - before - short;
            (before / each + 1 + after / each, after % each)
        }
    }

    /// The range after one, in the order of epochs.
    pub(crate) fn next(&self, RangePlace { epoch, place }: RangePlace) -> RangePlace {
        if place + 1 < self.all_ranges() {
            RangePlace { epoch, place: place + 1 }
        } else {
            RangePlace { epoch: epoch + 1, place: 0 }
        }
    }

    /// The windows of a range, numbered from the start of the tape, in their order in the epoch.
    pub(crate) fn windows_of(&self, at: RangePlace, range_order: &[u64]) -> (u64, Vec<u32>) {
        let Some(&range) = range_order.get(at.place as usize) else {
            return (self.full_windows(), vec![0]);
        };
        let first = range * self.windows_per_range;
        let count = self.windows_per_range.min(self.full_windows() - first);
        let mut windows: Vec<u32> =
            (0..u32::try_from(count).expect("a range has fewer windows")).collect();
        shuffle(&mut windows, &[self.seed, at.epoch, range + 1]);
        (first, windows)
    }

    /// The positions of the inputs of window number `window` of the tape.
    pub(crate) fn inputs(&self, window: u64) -> Range<u64> {
        let start = window * self.context;
        start..self.targets.min(start + self.context)
    }
}

/// Windows of each tape in [`MIXTURE_WINDOWS`], by largest remainders.
fn quotas(tapes: usize, weights: &[f64]) -> Result<Vec<u64>, Error> {
    let wrong = |problem: String| Error::Weights { problem };
    let equal = vec![1.0; tapes];
    let weights = if weights.is_empty() { &equal } else { weights };
    if weights.len() != tapes {
        return Err(wrong(format!("{} weights for {tapes} tapes", weights.len())));
    }
    if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
        return Err(wrong(format!("a weight of {weight}")));
    }
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|w| w / sum * MIXTURE_WINDOWS as f64).collect();
    let mut quotas: Vec<u64> = exact.iter().map(|share| share.floor() as u64).collect();
    let mut by_remainder: Vec<usize> = (0..tapes).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = MIXTURE_WINDOWS.saturating_sub(quotas.iter().sum());
    for &tape in by_remainder.iter().take(missing as usize) {
        quotas[tape] += 1;
    }
    if let Some(tape) = quotas.iter().position(|&quota| quota == 0) {
        let weight = weights[tape];
        return Err(wrong(format!("a weight of {weight} of {sum}, less than 1 in 1,024")));
    }
    Ok(quotas)
}

/// The output permutation of SplitMix64.
fn scramble(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The increment of SplitMix64.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// One word out of several.
fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0, |state: u64, &word| scramble(state.wrapping_add(INCREMENT) ^ word))
}

/// Shuffles `items` by Fisher-Yates with the words of SplitMix64 from the state that `seeds` give.
fn shuffle<T>(items: &mut [T], seeds: &[u64]) {
    let mut state = mix(seeds);
    for last in (1..items.len()).rev() {
        state = state.wrapping_add(INCREMENT);
        let below = u128::from(scramble(state)) * (last as u128 + 1);
        items.swap(last, (below >> 64) as usize);
    }
}
