//! Shuffled windows: every target once an epoch, the same for any way of reading, exact at any cursor.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use tape::layout::BLOCK_BYTES;
use tape::loader::Loader;
use tape::order::{MIXTURE_WINDOWS, OrderOptions, share};
use tape::reader::{Tape, TapeSource, Verify};

use super::fixture::{HandMade, check_message};

fn options(context: usize, range_tokens: u64) -> OrderOptions {
    OrderOptions { context, range_tokens, seed: 7, weights: Vec::new() }
}

/// A tape whose ids say where they stand, for up to 60,000 tokens.
fn counted(tokens: usize) -> (HandMade, Arc<Tape>) {
    let mut made = HandMade::new(tokens);
    made.ids = (0..tokens as u32).collect();
    made.write_ids();
    let mut files = made.files.clone();
    files.sidecar = None;
    let tape = Arc::new(Tape::open(&files, None).unwrap());
    (made, tape)
}

/// Tape, cursor, inputs and bytes of windows.
type Windows = Vec<(usize, u64, Vec<u32>, Option<u64>)>;

fn read(loader: &mut Loader, windows: std::ops::Range<u64>) -> Windows {
    let mut found = Vec::new();
    loader
        .read(windows, &mut |row| {
            let expected: Vec<u32> = row.inputs.iter().map(|id| id + 1).collect();
            assert_eq!(row.targets, expected);
            let bytes = row.byte_lengths.map(|l| l.iter().map(|&length| u64::from(length)).sum());
            found.push((row.tape, row.cursor, row.inputs.to_vec(), bytes));
        })
        .unwrap();
    found
}

#[test]
fn an_epoch_has_every_target_once_and_the_next_one_another_order() {
    for (tokens, context, range_tokens) in [
        (1000, 7, 100),
        (1001, 10, 100),
        (50, 100, 1000),
        (2, 1, 1),
        (5000, 16, 16),
        (4097, 8, 1 << 20),
    ] {
        let (made, tape) = counted(tokens);
        let mut loader = Loader::new(vec![tape], &options(context, range_tokens), true).unwrap();
        let windows = (tokens as u64 - 1).div_ceil(context as u64);
        let mut orders = HashSet::new();
        for epoch in 0..3 {
            let rows = read(&mut loader, epoch * windows..(epoch + 1) * windows);
            let mut seen = vec![0; tokens];
            for (_, cursor, inputs, bytes) in &rows {
                let at = *cursor as usize;
                assert_eq!(inputs[0] as usize, at);
                for &id in inputs {
                    seen[id as usize + 1] += 1;
                }
                let lengths = &made.lengths[at + 1..at + inputs.len() + 1];
                assert_eq!(*bytes, Some(lengths.iter().map(|&length| u64::from(length)).sum()));
            }
            assert!(seen[1..].iter().all(|&count| count == 1), "{tokens} {context} {range_tokens}");
            let short = rows.last().unwrap().2.len();
            assert_eq!(short, (tokens - 2) % context + 1, "the shorter window comes last");
            orders.insert(rows.iter().map(|row| row.1).collect::<Vec<_>>());
            let order = loader.order();
            assert_eq!(
                order.tokens_before((epoch + 1) * windows),
                (epoch + 1) * (tokens as u64 - 1)
            );
        }
        assert!(windows < 5 || orders.len() == 3, "epochs differ");
    }
}

#[test]
fn ranges_and_windows_are_shuffled_and_ranges_stay_together() {
    let (_made, tape) = counted(10_001);
    let mut loader = Loader::new(vec![tape], &options(10, 1000), true).unwrap();
    let rows = read(&mut loader, 0..1000);
    let ranges: Vec<u64> = rows.iter().map(|row| row.1 / 1000).collect();
    assert!(ranges.chunks(100).all(|chunk| chunk.iter().all(|range| *range == chunk[0])));
    assert!(!ranges.is_sorted());
    let first: Vec<u64> = rows[..100].iter().map(|row| row.1).collect();
    assert!(!first.is_sorted());
}

#[test]
fn any_cursor_gives_the_same_windows_with_and_without_reading_ahead() {
    let (_made, tape) = counted(3000);
    let with = |prefetch, seed| {
        let options = OrderOptions { seed, ..options(11, 200) };
        Loader::new(vec![Arc::clone(&tape)], &options, prefetch).unwrap()
    };
    let expected = read(&mut with(true, 1), 0..900);
    assert_eq!(read(&mut with(false, 1), 0..900), expected);
    assert_ne!(read(&mut with(true, 2), 0..900), expected);
    // Resumed at, before and after a border of epochs (273 windows), again and again.
    for start in [1, 17, 18, 272, 273, 274, 500, 546, 899] {
        let mut loader = with(true, 1);
        let rows = read(&mut loader, start..900);
        assert_eq!(rows, expected[start as usize..], "{start}");
        assert_eq!(read(&mut loader, 3..30), expected[3..30], "and back");
    }
}

#[test]
fn workers_share_the_windows_of_an_update() {
    let (_made, tape) = counted(3000);
    let load = || Loader::new(vec![Arc::clone(&tape)], &options(11, 200), true).unwrap();
    let expected = read(&mut load(), 0..640);
    for count in [1, 2, 3, 4, 7] {
        let mut loaders: Vec<Loader> = (0..count).map(|_| load()).collect();
        let mut rows = Vec::new();
        for update in 0..40 {
            for (loader, index) in loaders.iter_mut().zip(0..) {
                rows.extend(read(loader, share(update * 16..(update + 1) * 16, index, count)));
            }
        }
        assert_eq!(rows, expected, "{count} workers");
    }
}

#[test]
fn a_mixture_has_its_shares_and_each_tape_its_epochs() {
    let (_a, first) = counted(4000);
    let (_b, second) = counted(700);
    let (_c, third) = counted(2001);
    let tapes = || vec![Arc::clone(&first), Arc::clone(&second), Arc::clone(&third)];
    let options = OrderOptions { weights: vec![0.69, 0.31, 1.0], ..options(10, 300) };
    let load = || Loader::new(tapes(), &options, true).unwrap();
    let expected = read(&mut load(), 0..4 * MIXTURE_WINDOWS);
    for (tape, weight) in [(0, 0.345), (1, 0.155), (2, 0.5)] {
        let cursors: Vec<u64> =
            expected.iter().filter(|row| row.0 == tape).map(|row| row.1).collect();
        let share = cursors.len() as f64 / expected.len() as f64;
        assert!((share - weight).abs() < 0.001, "{share} {weight}");
        let windows = (tapes()[tape].len() - 1).div_ceil(10) as usize;
        for epoch in cursors.chunks_exact(windows) {
            assert_eq!(epoch.iter().collect::<HashSet<_>>().len(), windows);
        }
        let epochs = load().order().epochs(4 * MIXTURE_WINDOWS)[tape];
        assert_eq!(epochs, cursors.len().div_ceil(windows) as u64);
    }
    // The sequence is mixed, not one tape after the other.
    let changes = expected.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    assert!(changes > 1500, "{changes}");
    for start in [1, 1023, 1024, 2500] {
        assert_eq!(read(&mut load(), start..4096), expected[start as usize..]);
    }
    let mut tokens = 0;
    let loader = load();
    for (window, row) in expected.iter().enumerate() {
        assert_eq!(loader.order().tokens_before(window as u64), tokens);
        tokens += row.2.len() as u64;
    }
    for tokens in [0, 1, 9, 10, 11, 12_345] {
        let windows = loader.order().windows_for(tokens);
        assert!(loader.order().tokens_before(windows) >= tokens);
        assert!(windows == 0 || loader.order().tokens_before(windows - 1) < tokens);
    }
}

#[test]
fn weights_that_are_no_shares_are_refused() {
    let (_made, tape) = counted(100);
    for (weights, problem) in [
        (vec![1.0, 2.0, 3.0], "3 weights for 2 tapes"),
        (vec![1.0, 0.0], "a weight of 0"),
        (vec![1.0, f64::NAN], "a weight of NaN"),
        (vec![1.0, 1e-6], "less than 1 in 1,024"),
    ] {
        let options = OrderOptions { weights, ..options(10, 100) };
        let error = Loader::new(vec![Arc::clone(&tape); 2], &options, true).unwrap_err();
        check_message(&error, &[problem, "one positive number for each tape"]);
    }
    let (_one, tape) = counted(1);
    let error = Loader::new(vec![tape], &options(10, 100), true).unwrap_err();
    check_message(&error, &["one token", "prepare more text"]);
}

#[test]
fn resuming_reads_nothing_before_and_errors_come_with_their_place() {
    // Three blocks, the first one damaged: windows that lie elsewhere do not touch it.
    let mut made = HandMade::new(3 * BLOCK_BYTES as usize / 4);
    made.ids[1000] ^= 1;
    made.write_ids();
    let source = TapeSource::Files(made.files.clone());
    let tape = Arc::new(Tape::open_with(&source, None, Verify::WhenRead).unwrap());
    let range_tokens = BLOCK_BYTES / 4;
    let mut failed = 0;
    for prefetch in [true, false] {
        for start in (0..3072).step_by(64) {
            let mut loader =
                Loader::new(vec![Arc::clone(&tape)], &options(1024, range_tokens), prefetch)
                    .unwrap();
            let mut cursors = Vec::new();
            let result = loader.read(start..start + 1, &mut |row| cursors.push(row.cursor));
            match result {
                Ok(()) => assert!(cursors[0] >= range_tokens - 1024, "{cursors:?}"),
                Err(error) => {
                    check_message(&error, &["train.tokens.u32 has changed", "at byte 0"]);
                    failed += 1;
                }
            }
        }
        // Read through: the error comes when the damaged range does.
        let mut loader =
            Loader::new(vec![Arc::clone(&tape)], &options(1024, range_tokens), prefetch).unwrap();
        let mut rows = 0;
        let error = loader.read(0..3072, &mut |_| rows += 1).unwrap_err();
        check_message(&error, &["has changed"]);
        assert!(rows % 1024 == 0 || rows < 3072, "{rows}");
    }
    assert!((20..60).contains(&failed), "about a third of the starts: {failed}");
}

proptest! {
    #[test]
    fn every_shape_covers_its_targets(
        tokens in 2_usize..400,
        context in 1_usize..50,
        range_tokens in 1_u64..200,
        start in 0_u64..1000,
    ) {
        let (_made, tape) = counted(tokens);
        let mut loader = Loader::new(vec![tape], &options(context, range_tokens), true).unwrap();
        let windows = (tokens as u64 - 1).div_ceil(context as u64);
        let first = start / windows * windows;
        let rows = read(&mut loader, first..first + windows);
        let mut targets: Vec<u32> = rows.iter().flat_map(|row| row.2.clone()).collect();
        targets.sort_unstable();
        prop_assert_eq!(targets, (0..tokens as u32 - 1).collect::<Vec<_>>());
        prop_assert_eq!(loader.order().tokens_before(first), first / windows * (tokens as u64 - 1));
    }
}
