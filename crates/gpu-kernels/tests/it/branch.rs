//! The ends of a branch in one kernel, against the formulas of layer, residual sum and LayerNorm in f64.
//! Outputs are NaN before. Skipped where a device has no such kernels.

use gpu_kernels::{
    Activations, Attention, AttentionShape, AttentionStart, AttentionStartInputs, BranchEnd,
    BranchEndInputs, BranchEndOutputs, BranchStart, BranchStartInputs, Buffer, Error, Gpu, Lane,
    Linear, LinearShape, LinearUse, Precision, Products, RunSums, Shadows,
};

use crate::emulator::{TestDevice, device, skip};
use crate::network::{
    NormExpected, bounds, check_linear, close, noise, product, spoilt, spoilt_floats, stored,
};

/// A device that has such kernels.
pub fn tiles() -> Option<&'static TestDevice> {
    let device = device()?;
    if device.is_emulated || device.gpu().facts().compute_capability != (9, 0) {
        return skip("only devices of compute capability 9.0 make products by tiles");
    }
    Some(device)
}

/// Rows that fill their last tile and that do not; clusters of two to eight blocks; rings that hold the whole depth and
/// that come around.
const SHAPES: [[usize; 3]; 5] =
    [[64, 64, 128], [1, 64, 320], [70, 320, 320], [1152, 1280, 320], [200, 1536, 512]];

#[test]
fn its_end() {
    let Some(device) = tiles() else { return };
    for precision in [Precision::Tf32, Precision::Bf16] {
        for [rows, inputs, outputs] in SHAPES {
            check_end(&device.gpu(), precision, LinearShape { rows, inputs, outputs });
        }
    }
}

fn check_end(gpu: &Gpu, precision: Precision, shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    let [bound, _] = bounds(precision);
    let end = BranchEnd::new(gpu, precision, shape).unwrap();
    let (weights, parameters) = weights(gpu, precision, (inputs + 1) * outputs);
    let (left, residual) = (noise(rows * inputs, 2, 1.0), noise(rows * outputs, 3, 3.0));
    let gain_bias = noise(2 * outputs, 4, 1.0);
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let (on_device, added, gain) =
        (upload(&left), upload(&residual), gpu.upload(&gain_bias).unwrap());
    let length = rows * outputs;
    let [mut out, mut x] = [spoilt(gpu, precision, length), spoilt(gpu, precision, length)];
    let mut statistics = spoilt_floats(gpu, 2 * rows);
    let sources = BranchEndInputs {
        left: &on_device,
        weight_bias: weights.view(&parameters, 0..parameters.len()),
        residual: &added,
        gain_bias: gain.view(),
    };
    let outputs_of = BranchEndOutputs { out: &mut out, statistics: &mut statistics, x: &mut x };
    end.forward(gpu, outputs_of, sources).unwrap();

    let w = stored(precision, &parameters.to_vec().unwrap());
    let (left, residual) = (stored(precision, &left), stored(precision, &residual));
    let mut sum =
        product([rows, outputs, inputs], |i, l| left[i * inputs + l], |l, j| w[l * outputs + j]);
    for (at, sum) in sum.iter_mut().enumerate() {
        *sum += w[inputs * outputs + at % outputs] + residual[at];
    }
    let x = x.to_vec().unwrap();
    close("residual sum", &x, &sum, bound);
    // What follows is of the sum as it is stored.
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let expected = NormExpected::new(&x, &gain_bias, &vec![0.0; length]);
    close("its LayerNorm", &out.to_vec().unwrap(), &expected.out, bound);
    close("statistics", &statistics.to_vec().unwrap(), &statistics_of(&x, outputs), 2e-6);
}

/// Layers whose products are by tiles: several blocks of a multiprocessor and one, of whole and broken tiles.
#[test]
fn layers_by_tiles() {
    let Some(device) = tiles() else { return };
    let gpu = device.gpu();
    for precision in [Precision::Tf32, Precision::Bf16] {
        for [rows, inputs, outputs] in [[130, 320, 960], [1, 128, 64], [1100, 128, 1280]] {
            let products = Products::new(&gpu, precision).preferring_tiles();
            check_linear(&products, &gpu, precision, LinearShape { rows, inputs, outputs });
        }
    }
}

#[test]
fn its_beginning() {
    let Some(device) = tiles() else { return };
    for precision in [Precision::Tf32, Precision::Bf16] {
        for [rows, outputs, inputs] in SHAPES {
            check_start(&device.gpu(), precision, LinearShape { rows, inputs, outputs });
        }
    }
}

fn check_start(gpu: &Gpu, precision: Precision, shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    let [bound, float_bound] = bounds(precision);
    let start = BranchStart::new(gpu, precision, shape).unwrap();
    let (weights, parameters) = weights(gpu, precision, (inputs + 1) * outputs);
    let length = rows * inputs;
    let (d_y, x) = (noise(rows * outputs, 2, 1.0), noise(length, 3, 3.0));
    let (gain_bias, before) = (noise(2 * inputs, 4, 1.0), noise(length, 5, 1.0));
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let (d_y_there, x_there, before_there) = (upload(&d_y), upload(&x), upload(&before));
    let gain = gpu.upload(&gain_bias).unwrap();
    let x = stored(precision, &x);
    let statistics: Vec<f32> =
        statistics_of(&x, inputs).iter().map(|&number| number as f32).collect();
    let statistics = gpu.upload(&statistics).unwrap();
    let mut d_x = spoilt(gpu, precision, length);
    let mut partials = spoilt_floats(gpu, BranchStart::workspace_length(shape));
    let sources = BranchStartInputs {
        d_y: &d_y_there,
        weight_bias: weights.view(&parameters, 0..parameters.len()),
        x: &x_there,
        statistics: &statistics,
        gain_bias: gain.view(),
        d_residual: &before_there,
    };
    start.backward(gpu, &mut d_x, &mut partials, sources).unwrap();

    let (d_y, before) = (stored(precision, &d_y), stored(precision, &before));
    let w = stored(precision, &parameters.to_vec().unwrap());
    let d_out =
        product([rows, inputs, outputs], |i, l| d_y[i * outputs + l], |l, j| w[j * outputs + l]);
    let NormExpected { d_x: mut expected, mut d_parameters, .. } =
        NormExpected::new(&x, &gain_bias, &d_out);
    expected.iter_mut().zip(&before).for_each(|(d_x, before)| *d_x += before);
    let d_x = d_x.to_vec().unwrap();
    close("gradient of the residual stream", &d_x, &expected, 2.0 * bound);
    // The bias before is summed up from what was stored.
    for c in 0..inputs {
        d_parameters[c] = (0..rows).map(|row| f64::from(d_x[row * inputs + c])).sum();
    }
    let sums = RunSums::new(gpu).unwrap();
    for (first, factor) in [(0, 1.0), (inputs, 1.0), (inputs, 2.0)] {
        let expected: Vec<f64> = d_parameters[first..].iter().map(|sum| factor * sum).collect();
        let mut found = spoilt_floats(gpu, expected.len());
        for adds in if factor == 1.0 { &[false][..] } else { &[false, true] } {
            let pending = start.parameters(&found.view_mut(), &partials, *adds).unwrap();
            sums.queue(gpu, &[pending]).unwrap();
        }
        close("gradients of parameters", &found.to_vec().unwrap(), &expected, 2.0 * float_bound);
    }
}

/// Attention's backward pass, begun in the layer behind it and not.
#[test]
fn attention_behind_it() {
    let Some(device) = tiles() else { return };
    for [batch, time, heads] in [[1, 128, 1], [2, 256, 3], [1, 1152, 5]] {
        check_attention(&device.gpu(), AttentionShape { batch, time, heads, head_size: 64 });
    }
}

fn check_attention(gpu: &Gpu, shape: AttentionShape) {
    let (precision, AttentionShape { batch, time, heads, head_size }) = (Precision::Bf16, shape);
    let (rows, channels) = (batch * time, heads * head_size);
    let length = rows * channels;
    let [bound, _] = bounds(precision);
    let attention = Attention::new(gpu, precision, shape).unwrap();
    let start = AttentionStart::new(gpu, &attention).unwrap();
    let (weights, parameters) = weights(gpu, precision, (channels + 1) * channels);
    let weight_bias = weights.view(&parameters, 0..parameters.len());
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let (qkv, d_y) = (upload(&noise(3 * length, 2, 1.0)), upload(&noise(length, 3, 1.0)));
    let mut out = spoilt(gpu, precision, length);
    let mut statistics = spoilt_floats(gpu, 2 * rows * heads);
    let mut workspace = spoilt_floats(gpu, Attention::workspace_length(shape));
    attention.forward(&mut out, &mut statistics, &qkv, &mut workspace).unwrap();

    let products = Products::new(gpu, precision);
    let lane = Lane::new(gpu, &products).unwrap();
    let planned = LinearUse { is_training: true, ..LinearUse::default() };
    let layer = LinearShape { rows, inputs: channels, outputs: channels };
    let layer = Linear::new(&lane, &products, layer, planned).unwrap();
    let [mut d_out, mut d_qkv] = [length, 3 * length].map(|length| spoilt(gpu, precision, length));
    layer.backward_input(&lane, &mut d_out, &d_y, weight_bias).unwrap();
    attention.backward(&mut d_qkv, &d_out, &out, &qkv, &statistics, &mut workspace).unwrap();
    let expected = [d_out.to_vec().unwrap(), d_qkv.to_vec().unwrap()];

    let [mut d_out, mut d_qkv] = [length, 3 * length].map(|length| spoilt(gpu, precision, length));
    let mut workspace = spoilt_floats(gpu, Attention::workspace_length(shape));
    let inputs =
        AttentionStartInputs { d_y: &d_y, weight_bias, out: &out, statistics: &statistics };
    start.queue(gpu, &mut d_out, &mut workspace, inputs).unwrap();
    attention
        .backward_started(&mut d_qkv, &d_out, &out, &qkv, &statistics, &mut workspace)
        .unwrap();
    let found = [d_out.to_vec().unwrap(), d_qkv.to_vec().unwrap()];
    for (found, expected) in found.iter().zip(expected) {
        let expected: Vec<f64> = expected.iter().map(|&number| f64::from(number)).collect();
        close("attention's backward pass", found, &expected, 2.0 * bound);
    }
}

/// Printed, not judged: what is behind attention and behind the feed-forward branch of `reference-12m` in tf32 by one kernel
/// each; and layers by tiles, and as they are chosen.
#[test]
fn times_of_ends() {
    let Some(device) = tiles() else { return };
    let (gpu, precision, rows) = (device.gpu(), Precision::Tf32, 1152);
    for (inputs, outputs) in [(320, 320), (1280, 320)] {
        let end = BranchEnd::new(&gpu, precision, LinearShape { rows, inputs, outputs }).unwrap();
        let (weights, parameters) = weights(&gpu, precision, (inputs + 1) * outputs);
        let of = |length| Activations::of(&gpu, precision, &noise(length, 2, 1.0)).unwrap();
        let (left, residual, gain) =
            (of(rows * inputs), of(rows * outputs), gpu.upload(&noise(2 * outputs, 4, 1.0)));
        let gain = gain.unwrap();
        let [mut out, mut x] = [0; 2].map(|_| spoilt(&gpu, precision, rows * outputs));
        let mut statistics = spoilt_floats(&gpu, 2 * rows);
        time(&gpu, &format!("layer {inputs} x {outputs}, residual sum, LayerNorm"), || {
            let inputs = BranchEndInputs {
                left: &left,
                weight_bias: weights.view(&parameters, 0..parameters.len()),
                residual: &residual,
                gain_bias: gain.view(),
            };
            let outputs =
                BranchEndOutputs { out: &mut out, statistics: &mut statistics, x: &mut x };
            end.forward(&gpu, outputs, inputs)
        });
    }
    for (inputs, outputs) in [(320, 960), (320, 320), (320, 1280), (1280, 320)] {
        let shape = LinearShape { rows, inputs, outputs };
        let of = |length| Activations::of(&gpu, precision, &noise(length, 2, 1.0)).unwrap();
        let (x, mut y, mut z) = (of(rows * inputs), of(rows * outputs), of(rows * outputs));
        let (weights, parameters) = weights(&gpu, precision, (inputs + 1) * outputs);
        let weights = weights.view(&parameters, 0..parameters.len());
        for is_tiled in [false, true] {
            let products = Products::new(&gpu, precision);
            let products = if is_tiled { products.preferring_tiles() } else { products };
            let lane = Lane::new(&gpu, &products).unwrap();
            let planned = LinearUse { gelu_after: true, ..LinearUse::default() };
            let layer = Linear::new(&lane, &products, shape, planned).unwrap();
            let how = if is_tiled { "by tiles" } else { "as chosen" };
            time(&gpu, &format!("layer {inputs} x {outputs} {how}"), || {
                layer.forward(&lane, &mut y, &x, weights)
            });
            time(&gpu, &format!("layer {inputs} x {outputs} with GELU {how}"), || {
                layer.forward_gelu(&lane, &mut z, &mut y, &x, weights)
            });
        }
    }
}

#[expect(clippy::print_stdout, reason = "whoever reads the log wants the times")]
fn time(gpu: &Gpu, what: &str, mut queue: impl FnMut() -> Result<(), Error>) {
    const CALLS: usize = 40;
    let graph = gpu.record(|| (0..CALLS).try_for_each(|_| queue())).unwrap();
    graph.replay().unwrap();
    let mut times: Vec<f64> =
        (0..11).map(|_| gpu.elapsed_ms(|| graph.replay()).unwrap() * 1e3 / CALLS as f64).collect();
    times.sort_by(f64::total_cmp);
    println!("tf32, {what}: {:.2} us", times[5]);
}

/// Noise as parameters, and their copies.
fn weights(gpu: &Gpu, precision: Precision, length: usize) -> (Shadows, Buffer<f32>) {
    shadowed(gpu, precision, &noise(length, 1, 1.0))
}

/// Parameters, and their copies.
pub fn shadowed(gpu: &Gpu, precision: Precision, numbers: &[f32]) -> (Shadows, Buffer<f32>) {
    let (length, parameters) = (numbers.len(), gpu.upload(numbers).unwrap());
    let shadows = Shadows::new(gpu, precision).unwrap();
    shadows.reserve(gpu, &parameters).unwrap();
    shadows.refresh(gpu, &parameters, 0..length).unwrap();
    (shadows, parameters)
}

/// Mean and 1 / deviation of each row.
pub fn statistics_of(x: &[f64], channels: usize) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / channels as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / channels as f64;
        [mean, 1.0 / (variance + 1e-5).sqrt()]
    };
    x.chunks_exact(channels).flat_map(of_row).collect()
}
