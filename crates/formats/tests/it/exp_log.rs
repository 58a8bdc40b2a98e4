//! exp2 and ln: their bounds over whole ranges, exact points, and bits that may never change.

use formats::exp_log::{exp2, ln};
use formats::fused::in_double;

/// Every 997th f32 from `low` to `high`, both of one sign.
fn steps(low: f32, high: f32) -> impl Iterator<Item = f32> {
    let (one, other) = (low.to_bits(), high.to_bits());
    (one.min(other)..=one.max(other)).step_by(997).map(f32::from_bits)
}

#[test]
fn exp2_is_within_its_bound() {
    let ranges = [(0.0, 127.0), (-0.0, -125.0)];
    let mut worst: f64 = 0.0;
    for x in ranges.into_iter().flat_map(|(low, high)| steps(low, high)) {
        let truth = f64::from(x).exp2();
        worst = worst.max((f64::from(exp2(x)) / truth - 1.0).abs());
    }
    assert!(worst < 2f64.powi(-22), "relative error {worst:e}");
}

#[test]
fn fused_sums_are_rounded_once() {
    // Every sign and size against each other, ties and what cancels among them.
    let numbers: Vec<f32> = (0..600u32)
        .map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9) >> (i % 3)))
        .chain([0.0, -0.0, 1.0, -1.0, 1.0 + f32::EPSILON, f32::MIN_POSITIVE, 1e-45, -3e-45, 3e38])
        .filter(|x| !x.is_nan())
        .collect();
    for (i, &x) in numbers.iter().enumerate() {
        for &y in &numbers {
            let product = x * y;
            let near = [-product, -product.next_up(), -product.next_down(), -product * 0.5];
            for z in [numbers[(7 * i + 3) % numbers.len()]].into_iter().chain(near) {
                let (found, expected) = (in_double(x, y, z), x.mul_add(y, z));
                let are_one =
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(are_one, "{x:e} * {y:e} + {z:e}: {found:e}, not {expected:e}");
            }
        }
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
    for exponent in -125..=127 {
        assert_eq!(exp2(exponent as f32), 2f32.powi(exponent));
    }
    assert_eq!(exp2(-0.0).to_bits(), 1f32.to_bits());
    assert_eq!(ln(1.0), 0.0);
}

/// Values that stored endpoints depend on.
#[test]
fn bits_that_stay() {
    let powers = [-63.125f32, -34.5, -8.3, -0.75, 0.4, 63.97].map(|x| exp2(x).to_bits());
    let lns = [1e-38f32, 1.0152e-30, 1e-7, 0.75, 3.0, 3.2847e38].map(|x| ln(x).to_bits());
    let text = format!("{powers:08x?} {lns:08x?}");
    let expected = "[1feac0c6, 2e3504f2, 3b4fefc3, 3f1837f0, 3fa8e5a4, 5f7abb58] \
                    [c2aeff18, c28a1ffc, c180f1dc, be934b10, 3f8c9f54, 42b16001]";
    assert_eq!(text, expected);
}
