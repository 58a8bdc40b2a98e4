//! What the report says of norms and clipping.

use formats::Format;
use optimizer::{Instructions, OnNonfinite, Options};

use crate::pair::{Setup, noise};

#[test]
fn the_norm_is_reported_in_every_combination_of_passes() {
    let lengths = [40_000, 0, 1, 1_500];
    let gradients = noise(41_501, 4, 1.0);
    let mut norms = Vec::new();
    for clip_norm in [None, Some(0.25), Some(1e30)] {
        for on_nonfinite in [OnNonfinite::Stop, OnNonfinite::Skip] {
            for instructions in Instructions::available() {
                let mut setup = Setup::of(Format::E4, &lengths);
                setup.options = Options { clip_norm, on_nonfinite, seed: 0 };
                let mut pair = setup.build(instructions);
                let report = pair.step(1, &gradients);
                assert_eq!(report.clip_scale < 1.0, clip_norm == Some(0.25));
                norms.push(report.gradient_norm.to_bits());
            }
        }
    }
    norms.dedup();
    assert_eq!(norms.len(), 1);
}

#[test]
fn tensors_have_norms_of_their_own() {
    let setup = Setup::of(Format::Fp32, &[40_000, 0, 2]);
    let mut pair = setup.build(Instructions::best());
    let mut gradients = noise(40_000, 4, 1.0);
    gradients.extend([3.0, -4.0]);
    let report = pair.step(1, &gradients);
    let norms: Vec<f64> = pair.optimizer.tensor_gradient_norms().collect();
    assert_eq!((norms.len(), norms[1], norms[2]), (3, 0.0, 5.0));
    let expected = reference::norm::gradient_norm(&[&gradients[..40_000]]).norm;
    assert_eq!(norms[0], expected);
    let sum: f64 = norms.iter().map(|norm| norm * norm).sum();
    assert!((sum.sqrt() - report.gradient_norm).abs() < 1e-14 * report.gradient_norm);
}
