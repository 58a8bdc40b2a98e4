//! Windows: every target once, in order, never wrapped; byte sums that add up.

use tape::reader::Tape;
use tape::windows::{WindowShape, Windows};

use super::fixture::HandMade;

/// Walks a tape of `tokens` tokens with one shape and compares every window with the definition.
fn check(tokens: usize, shape: WindowShape) {
    let made = HandMade::new(tokens);
    let tape = Tape::open(&made.files, None).unwrap();
    let windows = Windows::new(&tape, shape);
    let step = shape.batch * shape.context;
    let targets = tokens - 1;
    assert_eq!(windows.tokens_per_window(), step as u64);
    assert_eq!(windows.count(), (targets / step) as u64);

    let mut seen = 0;
    let mut bytes = 0;
    for (index, window) in windows.all().map(Result::unwrap).enumerate() {
        assert_eq!(window.cursor, (index * step) as u64);
        assert_eq!(window.inputs(), &made.ids[seen..seen + window.inputs().len()]);
        assert_eq!(window.targets(), &made.ids[seen + 1..=seen + window.targets().len()]);
        let is_full = (index as u64) < windows.count();
        assert_eq!(window.inputs().len(), if is_full { step } else { targets % step });
        assert_eq!(windows.at(window.cursor).unwrap().as_ref(), Some(&window));

        for (row, (inputs, targets)) in window.rows().enumerate() {
            let start = row * shape.context;
            assert_eq!(inputs, &window.inputs()[start..start + inputs.len()]);
            assert_eq!(targets, &window.targets()[start..start + inputs.len()]);
        }
        assert!(window.rows().count() <= shape.batch);
        seen += window.inputs().len();
        bytes += window.source_bytes.unwrap();
    }
    assert_eq!(seen, targets, "every token but the first is a target once");
    assert_eq!(bytes, tape.source_bytes().unwrap() - u64::from(made.lengths[0]));
    for cursor in [targets as u64, targets as u64 + 1, u64::MAX] {
        assert_eq!(windows.at(cursor).unwrap(), None, "a tape never wraps");
    }
}

#[test]
fn windows_follow_their_definition() {
    for tokens in [1, 2, 3, 7, 24, 25, 26, 100] {
        for (batch, context) in [(1, 1), (1, 4), (2, 3), (3, 8), (4, 32)] {
            check(tokens, WindowShape { batch, context });
        }
    }
}

#[test]
fn any_cursor_may_be_resumed_from() {
    let made = HandMade::new(50);
    let tape = Tape::open(&made.files, None).unwrap();
    let windows = Windows::new(&tape, WindowShape { batch: 2, context: 5 });
    for cursor in 0..49 {
        let window = windows.at(cursor).unwrap().unwrap();
        assert_eq!(window.inputs()[0], made.ids[cursor as usize]);
        assert_eq!(window.targets()[0], made.ids[cursor as usize + 1]);
        assert_eq!(window.next_cursor(), cursor + window.inputs().len() as u64);
    }
}

#[test]
fn updates_are_whole_groups_of_full_windows() {
    let made = HandMade::new(101);
    let tape = Tape::open(&made.files, None).unwrap();
    let windows = Windows::new(&tape, WindowShape { batch: 2, context: 5 });
    assert_eq!(windows.count(), 10);
    assert_eq!((windows.updates(1), windows.updates(3), windows.updates(11)), (10, 3, 0));
}

#[test]
fn a_tape_without_byte_lengths_has_windows_without_bytes() {
    let made = HandMade::new(10);
    let mut files = made.files.clone();
    files.byte_lengths = None;
    let tape = Tape::open(&files, None).unwrap();
    let window = Windows::new(&tape, WindowShape { batch: 1, context: 3 }).at(0).unwrap().unwrap();
    assert_eq!(window.source_bytes, None);
}
