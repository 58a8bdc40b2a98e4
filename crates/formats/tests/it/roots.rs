//! The grid of roots of `n4l4`: endpoints outward, codes beside their roots, no bias in v.

use formats::RandomStream;
use formats::counter_hash::uniforms;
use formats::half_floats::bf16_to_f32;
use formats::n4l4::{Extent, Grid, ROOT_ZERO_MAX, V_CODE_MAX};
use proptest::prelude::*;

fn endpoints(roots: &[f32]) -> [u16; 2] {
    let extent = roots.iter().fold(Extent::NONE, |extent, &root| extent.with(root));
    extent.endpoints(roots.iter().any(|&root| root <= ROOT_ZERO_MAX))
}

#[track_caller]
fn check_block(roots: &[f32]) {
    let grid = Grid::new(endpoints(roots));
    let levels: Vec<f32> = (0..=V_CODE_MAX).map(|code| grid.root(code)).collect();
    assert!(levels.windows(2).all(|pair| pair[0] <= pair[1]), "{levels:?}");
    for &root in roots {
        for uniform in [2f32.powi(-17), 0.25, 0.5, 1.0 - 2f32.powi(-17)] {
            let (code, stored) = grid.code(root, uniform);
            assert!(code <= V_CODE_MAX);
            assert_eq!(stored, levels[code as usize]);
            if root <= ROOT_ZERO_MAX {
                assert_eq!((code, stored), (0, 0.0));
                continue;
            }
            assert!(stored > 0.0, "{root:e} became zero");
            // No other level lies between the root and what is stored, but for the rounding of its place.
            let (low, high) = if stored < root { (stored, root) } else { (root, stored) };
            let between = levels
                .iter()
                .filter(|&&level| level > low && level < high && (level / root - 1.0).abs() > 1e-5);
            assert_eq!(between.count(), 0, "{root:e} became {stored:e} of {levels:?}");
        }
    }
}

proptest! {
    #[test]
    fn roots_land_beside_themselves(
        logs in prop::collection::vec(-20.0..19.0f32, 1..40),
        zeros in any::<u64>(),
        power in 0u32..4,
    ) {
        let roots: Vec<f32> = logs
            .iter()
            .enumerate()
            .map(|(i, log)| {
                let root = 10f32.powf(*log / 8f32.powi(power as i32));
                if zeros >> i & 3 == 3 { 0.0 } else { root }
            })
            .collect();
        check_block(&roots);
        check_block(&roots[..1]);
        check_block(&[roots[0]; 5]);
    }
}

#[test]
fn endpoints_are_outward() {
    assert_eq!(endpoints(&[1.0, 2.0]).map(bf16_to_f32), [1.0, 2.0]);
    assert_eq!(endpoints(&[1.001, 2.001]).map(bf16_to_f32), [1.0, 2.015_625]);
    assert_eq!(endpoints(&[1.001, 0.0, 2.001]).map(bf16_to_f32), [2.015_625, 1.0]);
    assert_eq!(endpoints(&[1.0, 0.0]).map(bf16_to_f32), [1.007_812_5, 1.0]);
    assert_eq!(endpoints(&[0.0, ROOT_ZERO_MAX]), [0, 0]);
    assert_eq!(Grid::new([0, 0]).root(0), 0.0);
}

#[test]
fn codes_of_roots_have_no_bias_in_v() {
    let roots = [3e-5f32, 1.8e-4, 2.8e-3, 1e-2];
    let grid = Grid::new(endpoints(&roots));
    let stream = RandomStream::new(1, 2, 3, 0);
    for root in roots.into_iter().chain([4e-5, 1e-3]) {
        let v = f64::from(root).powi(2);
        let draws = (0..25_000u32).flat_map(|four| uniforms(stream.words_of_four(four)));
        let mean = draws.map(|uniform| f64::from(grid.code(root, uniform).1).powi(2)).sum::<f64>()
            / 100_000.0;
        // Neighbours lie within a factor of two of v; a hundred thousand draws within four deviations.
        assert!((mean / v - 1.0).abs() < 4.0 * 1.0 / 100_000f64.sqrt(), "{root:e}: {}", mean / v);
    }
}

#[test]
fn blocks_of_equal_roots_can_move() {
    // A thousandth a step, as an average with beta2 = 0.999 moves: after 700 steps, as far as it should. The
    // numbers of a block then differ by a third, so the mean of its 256 by 0.02 from run to run, and that of 16
    // blocks by 0.005.
    let mean_of = |seed| {
        let stream = RandomStream::new(seed, 0, 0, 0);
        let mut v = vec![1e-6f64; 256];
        for step in 0..700u32 {
            let roots: Vec<f32> = v.iter().map(|v| (v * 1.001).sqrt() as f32).collect();
            let grid = Grid::new(endpoints(&roots));
            let draws = (0..64).flat_map(|four| uniforms(stream.words_of_four(step * 64 + four)));
            let stored = roots.iter().zip(draws).map(|(&root, uniform)| grid.code(root, uniform).1);
            v = stored.map(|root| f64::from(root).powi(2)).collect();
        }
        v.iter().sum::<f64>() / 256.0
    };
    let mean = (0..16).map(mean_of).sum::<f64>() / 16.0;
    assert!((mean / 1e-6 / 1.001f64.powi(700) - 1.0).abs() < 0.02, "{mean:e}");
}
