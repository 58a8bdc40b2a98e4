//! Points made ready to be drawn: smoothed, thinned to what a picture can show, and their range.

use std::ops::Range;

/// Exponential running mean with a horizon of a hundredth of the points, or of ten where that is more and no more
/// than a fifth of them, corrected for its start.
#[must_use]
pub fn running_mean(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let count = points.len() as f64;
    let keep = 1.0 - 1.0 / (count / 100.0).max(10.0_f64.min(count / 5.0)).max(1.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let mean = |&(x, y): &(f64, f64)| {
        sum = keep * sum + y;
        weight = keep * weight + 1.0;
        (x, sum / weight)
    };
    points.iter().map(mean).collect()
}

/// About `count` of the points, evenly taken, the first and the last among them.
#[must_use]
pub fn thin(points: &[(f64, f64)], count: usize) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(count.max(1)).max(1);
    let mut thinned: Vec<_> = points.iter().copied().step_by(step).collect();
    if let Some(&last) = points.last().filter(|last| thinned.last() != Some(last)) {
        thinned.push(last);
    }
    thinned
}

/// The lowest and the highest point of each of up to `count` stretches, in the order in which they come.
#[must_use]
pub fn thin_envelope(points: &[(f64, f64)], count: usize) -> Vec<(f64, f64)> {
    if points.len() <= 2 * count {
        return points.to_vec();
    }
    let mut thinned = Vec::with_capacity(2 * count);
    for stretch in points.chunks(points.len().div_ceil(count)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = stretch.iter().min_by(by_value).copied();
        let high = stretch.iter().max_by(by_value).copied();
        let mut ends: Vec<(f64, f64)> = low.into_iter().chain(high).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        thinned.extend(ends);
    }
    thinned
}

/// The pieces of a line through `points` that lie within a range of heights.
#[must_use]
pub fn clipped(points: &[(f64, f64)], range: &Range<f64>) -> Vec<Vec<(f64, f64)>> {
    let mut pieces: Vec<Vec<(f64, f64)>> = Vec::new();
    let at =
        |a: (f64, f64), b: (f64, f64), y: f64| (a.0 + (b.0 - a.0) * (y - a.1) / (b.1 - a.1), y);
    for pair in points.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let end = |from: (f64, f64), to: (f64, f64)| match from.1 {
            y if y < range.start => at(from, to, range.start),
            y if y > range.end => at(from, to, range.end),
            _ => from,
        };
        let outside = |y: f64| -> i8 { i8::from(y > range.end) - i8::from(y < range.start) };
        // Both ends beyond the same edge, or a height that is no number.
        if outside(a.1) != 0 && outside(a.1) == outside(b.1) || !(a.1 + b.1).is_finite() {
            continue;
        }
        let (from, to) = (end(a, b), end(b, a));
        match pieces.last_mut().filter(|piece| piece.last() == Some(&from)) {
            Some(piece) => piece.push(to),
            None => pieces.push(vec![from, to]),
        }
    }
    pieces
}

/// The range of the finite values with a twentieth of it added at both ends; around 0 without any.
pub fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    if low > high {
        return -1.0..1.0;
    }
    let pad = ((high - low) / 20.0).max(high.abs() * 1e-3).max(1e-6);
    low - pad..high + pad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(count: u32) -> Vec<(f64, f64)> {
        (0..count).map(|i| (f64::from(i), f64::from(i % 7))).collect()
    }

    #[test]
    fn the_running_mean_of_a_constant_is_the_constant() {
        let points: Vec<(f64, f64)> = (0..200).map(|i| (f64::from(i), 2.5)).collect();
        assert!(running_mean(&points).iter().all(|&(_, y)| (y - 2.5).abs() < 1e-12));
    }

    #[test]
    fn thinning_keeps_the_ends_and_the_extremes() {
        let points = line(10_000);
        let thinned = thin(&points, 100);
        assert!(thinned.len() <= 102);
        assert_eq!((thinned.first(), thinned.last()), (points.first(), points.last()));
        let envelope = thin_envelope(&points, 100);
        assert!(envelope.len() <= 200);
        assert!(envelope.iter().any(|p| p.1 == 0.0) && envelope.iter().any(|p| p.1 == 6.0));
        assert!(envelope.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(thin_envelope(&line(50), 100), line(50));
    }

    #[test]
    fn a_line_is_cut_where_it_leaves_the_frame() {
        let points = [(0.0, 4.0), (1.0, 2.0), (2.0, 1.0), (3.0, 5.0), (4.0, 5.0), (5.0, 1.0)];
        let pieces = clipped(&points, &(0.0..3.0));
        let first = vec![(0.5, 3.0), (1.0, 2.0), (2.0, 1.0), (2.5, 3.0)];
        assert_eq!(pieces, [first, vec![(4.5, 3.0), (5.0, 1.0)]]);
        assert_eq!(clipped(&points, &(0.0..9.0)), [points.to_vec()]);
        assert!(clipped(&points, &(8.0..9.0)).is_empty() && clipped(&[], &(0.0..1.0)).is_empty());
    }

    #[test]
    fn a_range_is_never_empty() {
        for values in [vec![], vec![f64::NAN], vec![2.0], vec![0.0, 0.0], vec![1.0, 3.0]] {
            let range = padded(values.into_iter());
            assert!(range.start < range.end);
        }
    }
}
