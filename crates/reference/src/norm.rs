//! The global gradient norm by one pinned sum tree, and the clip scale.
//!
//! Squares and sums are f64; a square of an f32 is exact there. The tree:
//!
//! 1. every tensor is cut into chunks of 16,384 elements, the last one shorter;
//! 2. in a chunk, element `i` belongs to lane `i mod 1024`; each lane adds its at
//!    most 16 squares in ascending order, starting from zero;
//! 3. lanes fold by halves: lane `j` adds lane `j + 512` for `j < 512`, then 256,
//!    and so on down to 1;
//! 4. the chunk sums of all tensors, in order, go into 1024 lanes once more: chunk sum
//!    `k` belongs to lane `k mod 1024`, each lane adds in ascending order, starting
//!    from zero, and the lanes fold by halves.
//!
//! The tree depends on the lengths of the tensors alone, so any thread count,
//! vector width or launch shape gives the same bits. Elements that are not finite
//! count as zero.

/// Elements of a chunk.
pub const CHUNK_ELEMENTS: usize = 16_384;
/// Lanes of a chunk.
pub const LANES: usize = 1_024;

/// The norm over all tensors, and what it could not include.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNorm {
    /// `sqrt(sum of g^2)` over the finite elements.
    pub norm: f64,
    /// Elements that are NaN or infinite.
    pub nonfinite: u64,
}

/// The norm of all gradients together.
#[must_use]
pub fn gradient_norm(gradients: &[&[f32]]) -> GradientNorm {
    let chunks = gradients.iter().flat_map(|gradient| gradient.chunks(CHUNK_ELEMENTS));
    let chunk_sums: Vec<f64> = chunks.map(chunk_sum).collect();
    let nonfinite = gradients.iter().copied().flatten().filter(|g| !g.is_finite()).count();
    GradientNorm { norm: lane_sum(&chunk_sums).sqrt(), nonfinite: nonfinite as u64 }
}

/// `min(1, clip_norm / norm)`, rounded once to f32. A zero norm needs no clipping.
#[must_use]
pub fn clip_scale(clip_norm: f64, norm: f64) -> f32 {
    (clip_norm / norm).min(1.0) as f32
}

/// The sum of the squares of a chunk.
fn chunk_sum(chunk: &[f32]) -> f64 {
    let finite = |g: f32| if g.is_finite() { f64::from(g) } else { 0.0 };
    let squares: Vec<f64> = chunk.iter().map(|&g| finite(g) * finite(g)).collect();
    lane_sum(&squares)
}

/// Steps 2 and 3 of the file head.
fn lane_sum(numbers: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (index, number) in numbers.iter().enumerate() {
        lanes[index % LANES] += number;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}
