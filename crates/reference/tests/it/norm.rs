//! The sum tree of the gradient norm.

use reference::norm::{CHUNK_ELEMENTS, LANES, clip_scale, gradient_norm};

/// Gradients of many magnitudes whose squares do not add exactly.
fn uneven(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 * 0.7).sin() + 1.1) * 10f32.powi((i % 9) as i32 - 4)).collect()
}

#[test]
fn exact_sums_are_exact() {
    assert_eq!(gradient_norm(&[]).norm, 0.0);
    assert_eq!(gradient_norm(&[&[]]).norm, 0.0);
    assert_eq!(gradient_norm(&[&[3.0], &[], &[-4.0]]).norm, 5.0);
    assert_eq!(gradient_norm(&[&vec![0.5; 40_000]]).norm, 100.0);
    assert_eq!(gradient_norm(&[&[1e-45, f32::MAX]]).norm, f64::from(f32::MAX));
}

/// The sum of `numbers` in lanes, written as the balanced tree over bit-reversed lanes that folding by
/// halves is.
fn tree(numbers: &[f64]) -> f64 {
    fn fold(numbers: &[f64], first: usize, stride: usize) -> f64 {
        if stride == LANES {
            numbers.iter().skip(first).step_by(LANES).fold(0.0, |a, b| a + b)
        } else {
            fold(numbers, first, stride * 2) + fold(numbers, first + stride, stride * 2)
        }
    }
    fold(numbers, 0, 1)
}

fn squares(gradient: &[f32]) -> Vec<f64> {
    gradient.iter().map(|&g| f64::from(g) * f64::from(g)).collect()
}

#[test]
fn the_tree_is_the_documented_one() {
    let long = uneven(2 * CHUNK_ELEMENTS + 777);
    let tensors: Vec<&[f32]> = std::iter::once(&long[..]).chain(long.chunks(5)).collect();
    let chunks = tensors.iter().flat_map(|tensor| tensor.chunks(CHUNK_ELEMENTS));
    let chunk_sums: Vec<f64> = chunks.map(|chunk| tree(&squares(chunk))).collect();
    assert!(chunk_sums.len() > 2 * LANES, "some lanes add more than one chunk");
    assert_eq!(gradient_norm(&tensors).norm, tree(&chunk_sums).sqrt());
    let straight: f64 = chunk_sums.iter().sum();
    assert_ne!(tree(&chunk_sums), straight, "the test needs numbers for which the order matters");
}

#[test]
fn tensors_are_cut_apart() {
    let gradient = uneven(5_000);
    let (left, right) = gradient.split_at(1_234);
    let split = gradient_norm(&[left, right]).norm;
    let sum = gradient_norm(&[left]).norm.powi(2) + gradient_norm(&[right]).norm.powi(2);
    assert!((split - sum.sqrt()).abs() <= 1e-15 * split);
}

#[test]
fn what_is_not_finite_counts_as_zero() {
    let found = gradient_norm(&[&[3.0, f32::NAN, f32::INFINITY], &[f32::NEG_INFINITY, 4.0]]);
    assert_eq!((found.norm, found.nonfinite), (5.0, 3));
}

#[test]
fn the_scale_never_enlarges() {
    assert_eq!(clip_scale(1.0, 0.0), 1.0);
    assert_eq!(clip_scale(1.0, 0.5), 1.0);
    assert_eq!(clip_scale(1.0, 1.0), 1.0);
    assert_eq!(clip_scale(1.0, 4.0), 0.25);
    assert_eq!(clip_scale(1.0, 3.0), (1.0f64 / 3.0) as f32);
}
