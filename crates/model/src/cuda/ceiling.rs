//! The rate of a large matrix product: the ceiling of what a training step can reach.

use gpu_kernels::{Activations, Linear, LinearShape, LinearUse, Shadows};

use super::Cuda;
use crate::Error;
use crate::ops::Device as _;

/// Rows and columns of all three matrices.
const SIZE: usize = 8192;

/// The same without a library for products, where a large one would take forever.
const SIZE_ALONE: usize = 256;

/// Products that are timed.
const REPEATS: usize = 5;

/// Elements of noise; longer matrices repeat them.
const NOISE: usize = 1 << 20;

/// The fastest of some products, in TFLOP/s.
pub(super) fn product_tflops(cuda: &Cuda) -> Result<f64, Error> {
    let gpu = cuda.gpu();
    let size = if cuda.has_product_library() { SIZE } else { SIZE_ALONE };
    let shape = LinearShape { rows: size, inputs: size, outputs: size };
    let noise = noise();
    let repeated =
        |count: usize| -> Vec<f32> { noise.iter().copied().cycle().take(count).collect() };
    let mut parameters = cuda.floats(size * (size + 1))?;
    cuda.upload(&mut parameters, &repeated(size * (size + 1)))?;
    let mut x = Activations::zeros(gpu, cuda.precision(), size * size)?;
    x.upload(&repeated(size * size))?;
    let mut y = Activations::zeros(gpu, cuda.precision(), size * size)?;
    let shadows = Shadows::new(gpu, cuda.precision())?;
    shadows.refresh(gpu, &parameters, 0..parameters.len())?;
    let weights = shadows.view(&parameters, 0..parameters.len());
    let linear = Linear::new(cuda.lane(), &cuda.inner.products, shape, LinearUse::default())?;
    let mut forward = || linear.forward(cuda.lane(), &mut y, &x, weights);
    forward()?;
    let mut fastest_ms = f64::INFINITY;
    for _ in 0..REPEATS {
        fastest_ms = fastest_ms.min(gpu.elapsed_ms(&mut forward)?);
    }
    Ok(2.0 * (size as f64).powi(3) / fastest_ms / 1e9)
}

/// Numbers of both signs, such as matrices have: a device is faster on zeros.
fn noise() -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(NOISE).collect()
}
