//! exp and ln: their bounds over whole ranges, exact points, and bits that may never change.

use formats::exp_log::{exp, ln};

/// Every 997th f32 from `low` to `high`, both of one sign.
fn steps(low: f32, high: f32) -> impl Iterator<Item = f32> {
    let (one, other) = (low.to_bits(), high.to_bits());
    (one.min(other)..=one.max(other)).step_by(997).map(f32::from_bits)
}

#[test]
fn exp_is_within_its_bound() {
    let ranges = [(0.0, 88.72), (-0.0, -87.3)];
    let mut worst: f64 = 0.0;
    for x in ranges.into_iter().flat_map(|(low, high)| steps(low, high)) {
        let truth = f64::from(x).exp();
        worst = worst.max((f64::from(exp(x)) / truth - 1.0).abs());
    }
    assert!(worst < 2f64.powi(-22), "relative error {worst:e}");
}

#[test]
fn small_results_of_exp_are_rounded_once_more() {
    for x in steps(-87.3, -103.0) {
        let truth = f64::from(x).exp();
        let bound = truth * 2f64.powi(-22) + 2f64.powi(-150);
        assert!((f64::from(exp(x)) - truth).abs() <= bound, "{x}");
    }
}

#[test]
fn ln_is_within_its_bound() {
    let mut worst: f64 = 0.0;
    let near_one = (0.5f32.to_bits()..2f32.to_bits()).step_by(31).map(f32::from_bits);
    for x in steps(f32::from_bits(1), f32::MAX).chain(near_one) {
        let truth = f64::from(x).ln();
        worst = worst.max((f64::from(ln(x)) - truth).abs() / (1.0 + truth.abs()));
    }
    assert!(worst < 2f64.powi(-23), "error {worst:e}");
}

#[test]
fn exact_points() {
    assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
    assert_eq!(ln(1.0), 0.0);
}

/// Values that stored endpoints depend on.
#[test]
fn bits_that_stay() {
    let exps = [-87.5f32, -69.0625, -16.0, -1.0, 1.0, 88.6875].map(|x| exp(x).to_bits());
    let lns = [1e-38f32, 1.0152e-30, 1e-7, 0.75, 3.0, 3.2847e38].map(|x| ln(x).to_bits());
    let text = format!("{exps:08x?} {lns:08x?}");
    let expected = "[006cb2bc, 0da4b860, 33f1aade, 3ebc5ab2, 402df854, 7f771c76] \
                    [c2aeff18, c28a1ffc, c180f1dc, be934b10, 3f8c9f54, 42b16001]";
    assert_eq!(text, expected);
}
