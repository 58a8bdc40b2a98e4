//! The random words: spread evenly, and unrelated from counter to counter.

use formats::RandomStream;

const WORDS: u32 = 1 << 16;

/// Mean number of differing bits between two ways to draw `WORDS` words.
fn mean_distance(left: impl Fn(u32) -> u32, right: impl Fn(u32) -> u32) -> f64 {
    let bits: u32 = (0..WORDS).map(|index| (left(index) ^ right(index)).count_ones()).sum();
    f64::from(bits) / f64::from(WORDS)
}

/// Unrelated words differ in 16 bits, with a deviation of sqrt(8 / WORDS) = 0.011.
#[track_caller]
fn check_unrelated(left: impl Fn(u32) -> u32, right: impl Fn(u32) -> u32) {
    let distance = mean_distance(left, right);
    assert!((15.94..16.06).contains(&distance), "mean distance {distance}");
}

#[test]
fn every_counter_matters() {
    let base = RandomStream::new(1, 2, 3, 0);
    let others = [
        RandomStream::new(2, 2, 3, 0),
        RandomStream::new(1 << 32 | 1, 2, 3, 0),
        RandomStream::new(1, 3, 3, 0),
        RandomStream::new(1, 1 << 32 | 2, 3, 0),
        RandomStream::new(1, 2, 4, 0),
        RandomStream::new(1, 2, 3, 1),
        RandomStream::new(2, 1, 3, 0),
        RandomStream::new(1, 3, 2, 0),
    ];
    for other in others {
        check_unrelated(|index| base.word(index), |index| other.word(index));
    }
    check_unrelated(|index| base.word(index), |index| base.word(index + 1));
    check_unrelated(|index| base.word(index), |index| base.word(index ^ 1));
    check_unrelated(|index| base.word(index), |index| base.word(index + 1024));
}

#[test]
fn the_words_of_two_tensors_are_not_one_sequence_in_another_order() {
    use std::collections::HashSet;
    let first: HashSet<u32> = (0..WORDS).map(|i| RandomStream::new(9, 1, 0, 0).word(i)).collect();
    let common = (0..WORDS).filter(|&i| first.contains(&RandomStream::new(9, 1, 1, 0).word(i)));
    // Expected by chance: 2^16 * 2^16 / 2^32 = 1.
    assert!(common.count() < 10);
}

#[test]
fn upper_bits_are_uniform() {
    let mut counts = [0u32; 256];
    for update in 0..16 {
        let stream = RandomStream::new(0, update, 0, 0);
        for index in 0..WORDS {
            counts[(stream.word(index) >> 24) as usize] += 1;
        }
    }
    let expected = f64::from(16 * WORDS) / 256.0;
    let chi_squared: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    // 255 degrees of freedom: mean 255, deviation 22.6.
    assert!((150.0..360.0).contains(&chi_squared), "{chi_squared}");
}
