//! What this machine can do at best: the yardstick beside which a step's rate is shown.

use std::time::{Duration, Instant};

use super::linear::row_tiles;
use super::simd::{Matrix, MatrixMut, for_each, product};
use crate::ops::Store;

/// The best rate of a large `f32` matrix product on rayon's current pool, in GFLOP/s (10^9
/// multiplications and additions, counted apart, per second): two shapes of a linear layer over
/// 1152 tokens, repeated for at least half a second. Other work on the machine lowers it.
pub fn product_ceiling_gflops() -> f64 {
    rayon::scope(|_| {
        let shapes = [(1152, 1280, 320), (1152, 1024, 1024)];
        shapes.into_iter().map(best_rate_gflops).fold(0.0, f64::max)
    })
}

/// The best rate of one shape, given as rows, depth and columns.
fn best_rate_gflops((rows, depth, columns): (usize, usize, usize)) -> f64 {
    const DURATION: Duration = Duration::from_millis(250);
    const RUNS_MIN: usize = 40;
    let (left, right) = (vec![0.5f32; rows * depth], vec![0.25f32; depth * columns]);
    let mut out = vec![0.0f32; rows * columns];
    let gflop = 2e-9 * (rows * depth * columns) as f64;
    let start = Instant::now();
    let mut best = 0.0f64;
    let mut runs = 0;
    while runs < RUNS_MIN || start.elapsed() < DURATION {
        let left = Matrix::new(&left, rows, depth);
        let right = Matrix::new(&right, depth, columns);
        let run = Instant::now();
        for_each(row_tiles(MatrixMut::new(&mut out, rows, columns)), |_, mut tile| {
            let (left, right) = (left.rows(tile.rows), right.columns(tile.columns));
            product(&mut tile.out, Store::Overwrite, 1.0, left, right);
        });
        best = best.max(gflop / run.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}
