//! The operations of the network, each alone, against its formula in f64 on the inputs as the device
//! has them. Outputs are NaN before.
//!
//! Bounds, on |found - expected| / |expected| over whole outputs: an output that is stored as bf16 is
//! off by up to 2^-9 of itself, inputs of a tf32 product by 2^-11; sums in f32 add far less.

use gpu_kernels::{
    Activations, Buffer, Decode, DecodeShape, Embedding, Gelu, Gpu, Head, HeadGradients,
    HeadInputs, HeadShape, Lane, LayerNorm, LayerNormInputs, Linear, LinearShape, LinearUse,
    Logits, Plus, Precision, Products, RunSums, Shadows, View, Windows, bf16,
};

use crate::emulator::{TestDevice, device};

pub fn noise(length: usize, seed: u32, largest: f32) -> Vec<f32> {
    let stream = formats::RandomStream::new(u64::from(seed), 0, 0, 0);
    let number = |index| (stream.word(index) >> 8) as f32 / 8_388_608.0 - 1.0;
    (0..length as u32).map(|index| largest * number(index)).collect()
}

/// What activations hold after `numbers` were stored in them.
pub fn stored(precision: Precision, numbers: &[f32]) -> Vec<f64> {
    let round = |&number: &f32| match precision {
        Precision::Bf16 => f64::from(f32::from_bits(u32::from(bf16(number)) << 16)),
        Precision::Fp32 | Precision::Tf32 => f64::from(number),
    };
    numbers.iter().map(round).collect()
}

pub fn spoilt(gpu: &Gpu, precision: Precision, length: usize) -> Activations {
    Activations::of(gpu, precision, &vec![f32::NAN; length]).unwrap()
}

pub fn spoilt_floats(gpu: &Gpu, length: usize) -> Buffer<f32> {
    gpu.upload(&vec![f32::NAN; length]).unwrap()
}

#[track_caller]
pub fn close(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>();
    let difference =
        square(&mut found.iter().zip(expected).map(|(found, x)| f64::from(*found) - x)).sqrt();
    let distance = difference / square(&mut expected.iter().copied()).sqrt().max(1e-30);
    assert!(distance < bound, "{what}: {distance:e} beyond {bound:e}");
}

/// Bounds for outputs that are stored as activations, and as f32.
pub fn bounds(precision: Precision) -> [f64; 2] {
    match precision {
        Precision::Fp32 => [2e-6, 2e-6],
        Precision::Tf32 => [1e-3, 1e-3],
        Precision::Bf16 => [3e-3, 2e-6],
    }
}

pub fn products(device: &TestDevice, gpu: &Gpu, precision: Precision) -> Products {
    if device.is_emulated {
        Products::without_library(precision)
    } else {
        Products::new(gpu, precision)
    }
}

#[test]
fn layernorm() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        for (rows, channels) in [(1, 8), (5, 15), (70, 64), (33, 320), (9, 1600)] {
            check_layernorm(&gpu, precision, rows, channels);
        }
    }
}

fn check_layernorm(gpu: &Gpu, precision: Precision, rows: usize, channels: usize) {
    let [bound, _] = bounds(if precision == Precision::Tf32 { Precision::Fp32 } else { precision });
    let length = rows * channels;
    let norm = LayerNorm::new(gpu, precision, channels).unwrap();
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let terms = [noise(length, 1, 3.0), noise(length, 2, 3.0)];
    let gain_bias = noise(2 * channels, 3, 1.0);
    let on_device = [upload(&terms[0]), upload(&terms[1])];
    let parameters = gpu.upload(&gain_bias).unwrap();
    let [mut out, mut x] = [spoilt(gpu, precision, length), spoilt(gpu, precision, length)];
    let mut statistics = spoilt_floats(gpu, 2 * rows);
    let (gain_view, terms_view) = (parameters.view(), [&on_device[0], &on_device[1]]);
    let outputs = (&mut out, &mut statistics, &mut x);
    norm.forward_residual(gpu, outputs, terms_view, gain_view, rows).unwrap();
    // The sum is rounded as it is stored, and what follows is of the rounded one.
    let sum: Vec<f32> = stored(precision, &terms[0])
        .iter()
        .zip(stored(precision, &terms[1]))
        .map(|(left, right)| (left + right) as f32)
        .collect();
    let sum = stored(precision, &sum);
    assert!(x.to_vec().unwrap().iter().zip(&sum).all(|(found, sum)| f64::from(*found) == *sum));
    let [mut alone, mut alone_statistics] =
        [spoilt(gpu, precision, length).to_vec().unwrap(), vec![f32::NAN; 2 * rows]];
    {
        let mut out = spoilt(gpu, precision, length);
        let mut statistics = spoilt_floats(gpu, 2 * rows);
        norm.forward(gpu, &mut out, &mut statistics, &x, gain_view, rows).unwrap();
        out.download(&mut alone).unwrap();
        statistics.download(&mut alone_statistics).unwrap();
    }
    assert_eq!(alone, out.to_vec().unwrap(), "with and without the sum");
    assert_eq!(alone_statistics, statistics.to_vec().unwrap());

    let expected = NormExpected::new(&sum, &gain_bias, &stored(precision, &noise(length, 4, 1.0)));
    close("output", &out.to_vec().unwrap(), &expected.out, bound);
    let inputs = (&x, &statistics, gain_view);
    check_layernorm_backward(gpu, &norm, precision, expected, inputs);
}

/// What LayerNorm gives in f64.
pub struct NormExpected {
    pub out: Vec<f64>,
    pub d_x: Vec<f64>,
    /// Of the bias before, which is left zero, of gain and of bias.
    pub d_parameters: Vec<f64>,
}

impl NormExpected {
    pub fn new(sum: &[f64], gain_bias: &[f32], d_out: &[f64]) -> NormExpected {
        let channels = gain_bias.len() / 2;
        let gain = |c: usize| f64::from(gain_bias[c]);
        let (mut out, mut d_x) = (Vec::new(), Vec::new());
        let mut d_parameters = vec![0.0; 3 * channels];
        for (x, d_out) in sum.chunks_exact(channels).zip(d_out.chunks_exact(channels)) {
            let count = channels as f64;
            let mean = x.iter().sum::<f64>() / count;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let scale = 1.0 / (variance + 1e-5).sqrt();
            let n: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
            let g: Vec<f64> = (0..channels).map(|c| d_out[c] * gain(c)).collect();
            let mean_g = g.iter().sum::<f64>() / count;
            let mean_gn = g.iter().zip(&n).map(|(g, n)| g * n).sum::<f64>() / count;
            for c in 0..channels {
                out.push(n[c] * gain(c) + gain(channels + c));
                d_x.push((g[c] - mean_g - n[c] * mean_gn) * scale);
                d_parameters[channels + c] += d_out[c] * n[c];
                d_parameters[2 * channels + c] += d_out[c];
            }
        }
        NormExpected { out, d_x, d_parameters }
    }
}

fn check_layernorm_backward(
    gpu: &Gpu,
    norm: &LayerNorm,
    precision: Precision,
    expected: NormExpected,
    (x, statistics, gain_bias): (&Activations, &Buffer<f32>, View<'_, f32>),
) {
    let [bound, _] = bounds(if precision == Precision::Tf32 { Precision::Fp32 } else { precision });
    let NormExpected { d_x, mut d_parameters, .. } = expected;
    let (length, channels) = (d_x.len(), d_parameters.len() / 3);
    let rows = length / channels;
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let (d_out, before) = (upload(&noise(length, 4, 1.0)), noise(length, 5, 1.0));
    let before_stored = stored(precision, &before);
    let mut partials = spoilt_floats(gpu, LayerNorm::workspace_length(gpu, rows, channels));
    let (before, sums) = (upload(&before), RunSums::new(gpu).unwrap());
    for adds in [false, true] {
        let mut found = spoilt(gpu, precision, length);
        let d_residual = adds.then_some(&before);
        let inputs = LayerNormInputs { d_out: &d_out, x, statistics, gain_bias, d_residual };
        norm.backward_input(gpu, &mut found, &mut partials, inputs, rows).unwrap();
        let added = |index: usize| if adds { before_stored[index] } else { 0.0 };
        let expected: Vec<f64> = (0..length).map(|i| d_x[i] + added(i)).collect();
        let found = found.to_vec().unwrap();
        close("gradient of the input", &found, &expected, 2.0 * bound);
        // The bias before is summed up from what was stored.
        for c in 0..channels {
            d_parameters[c] = (0..rows).map(|row| f64::from(found[row * channels + c])).sum();
        }
        for with_before in [false, true] {
            let start = if with_before { 0 } else { channels };
            let expected = &d_parameters[start..];
            let mut found = spoilt_floats(gpu, expected.len());
            let store = |found: &mut Buffer<f32>, adds| {
                let found = &found.view_mut();
                let pending = norm.backward_parameters(gpu, found, &partials, rows, adds).unwrap();
                sums.queue(gpu, &[pending]).unwrap();
            };
            store(&mut found, false);
            close("parameters", &found.to_vec().unwrap(), expected, 2e-6);
            store(&mut found, true);
            let doubled: Vec<f64> = expected.iter().map(|gradient| 2.0 * gradient).collect();
            close("parameters, added", &found.to_vec().unwrap(), &doubled, 2e-6);
        }
    }
}

/// GELU in its tanh form, and its derivative.
pub fn gelu_of(x: f64) -> [f64; 2] {
    let scale = (8.0 / std::f64::consts::PI).sqrt();
    let s = 1.0 / (1.0 + (-scale * (x + 0.044_715 * x.powi(3))).exp());
    [x * s, s + x * s * (1.0 - s) * scale * (1.0 + 3.0 * 0.044_715 * x * x)]
}

#[test]
fn gelu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        let [bound, _] =
            bounds(if precision == Precision::Tf32 { Precision::Fp32 } else { precision });
        let kernels = Gelu::new(&gpu, precision).unwrap();
        for length in [1, 7, 8, 1000, 4099] {
            let (mut x, d) = (noise(length, 1, 6.0), noise(length, 2, 1.0));
            // Far out it is 0 or x, and never NaN.
            for (x, far) in x.iter_mut().skip(1).zip([-1e4, 1e4, -40.0, 0.0, 1e-20]) {
                *x = far;
            }
            let on_device = Activations::of(&gpu, precision, &x).unwrap();
            let mut y = spoilt(&gpu, precision, length);
            kernels.forward(&gpu, &mut y, &on_device, length).unwrap();
            let x = stored(precision, &x);
            let expected: Vec<f64> = x.iter().map(|&x| gelu_of(x)[0]).collect();
            close("GELU", &y.to_vec().unwrap(), &expected, bound);
            let mut gradient = Activations::of(&gpu, precision, &d).unwrap();
            kernels.backward(&gpu, &mut gradient, &on_device, length).unwrap();
            let d = stored(precision, &d);
            let expected: Vec<f64> = x.iter().zip(d).map(|(&x, d)| d * gelu_of(x)[1]).collect();
            close("its gradient", &gradient.to_vec().unwrap(), &expected, bound);
        }
    }
}

#[test]
fn embedding() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        for (batch, time, channels, vocabulary) in
            [(1, 1, 8, 3), (3, 70, 50, 11), (2, 300, 64, 5), (1, 40, 320, 1000)]
        {
            check_embedding(&gpu, precision, [batch, time, channels, vocabulary]);
        }
    }
}

fn check_embedding(gpu: &Gpu, precision: Precision, shape: [usize; 4]) {
    let [batch, time, channels, vocabulary] = shape;
    let (rows, context) = (batch * time, time + 3);
    let windows = Windows { batch, time };
    let tables = Embedding::new(gpu, precision, channels).unwrap();
    let tokens: Vec<u32> = noise(rows, 9, 1.0)
        .iter()
        .map(|x| ((x + 1.0) / 2.0 * vocabulary as f32) as u32)
        .map(|token| token.min(vocabulary as u32 - 1))
        .collect();
    let table = noise(vocabulary * channels, 1, 1.0);
    let positions = noise(context * channels, 2, 1.0);
    let d_out = noise(rows * channels, 3, 1.0);
    let d_out_stored = stored(precision, &d_out);
    let mut expected = Vec::new();
    let d_table = noise(vocabulary * channels, 4, 1.0);
    let mut expected_table: Vec<f64> =
        d_table.iter().map(|&gradient| f64::from(gradient)).collect();
    let mut expected_positions = vec![0.0; context * channels];
    for row in 0..rows {
        for c in 0..channels {
            let (token, place) = (tokens[row] as usize * channels + c, row % time * channels + c);
            expected.push(table[token] + positions[place]);
            expected_table[token] += d_out_stored[row * channels + c];
            expected_positions[place] += d_out_stored[row * channels + c];
        }
    }
    let on_device = gpu.upload(&tokens).unwrap();
    let (table, positions) = (gpu.upload(&table).unwrap(), gpu.upload(&positions).unwrap());
    let mut out = spoilt(gpu, precision, rows * channels);
    let both = (table.view(), positions.view());
    tables.forward(gpu, &mut out, &on_device, both, windows).unwrap();
    let expected = stored(precision, &expected);
    let found = out.to_vec().unwrap();
    assert!(found.iter().zip(expected).all(|(found, expected)| f64::from(*found) == expected));

    let mut order = spoilt_floats(gpu, Embedding::order_length(windows));
    tables.rank(gpu, &mut order, &on_device, windows).unwrap();
    let d_out = Activations::of(gpu, precision, &d_out).unwrap();
    let mut d_table = gpu.upload(&d_table).unwrap();
    let tokens = (&on_device, &order);
    let mut found = spoilt_floats(gpu, context * channels);
    let both = [d_table.view_mut(), found.view_mut()];
    tables.backward(gpu, both, &d_out, tokens, windows, false).unwrap();
    close("table", &d_table.to_vec().unwrap(), &expected_table, 1e-6);
    close("positions", &found.to_vec().unwrap(), &expected_positions, 1e-6);
    let both = [d_table.view_mut(), found.view_mut()];
    tables.backward(gpu, both, &d_out, tokens, windows, true).unwrap();
    let doubled: Vec<f64> = expected_positions.iter().map(|gradient| 2.0 * gradient).collect();
    close("positions, added", &found.to_vec().unwrap(), &doubled, 1e-6);
}

/// `out[i, j] = sum_l a(i, l) b(l, j)` in f64.
pub fn product(
    [m, n, k]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let element = |i: usize, j: usize| (0..k).map(|l| a(i, l) * b(l, j)).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

#[test]
fn linear() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        for (rows, inputs, outputs) in [(33, 64, 40), (1, 8, 24), (70, 15, 7), (130, 96, 200)] {
            let products = products(device, &gpu, precision);
            check_linear(&products, &gpu, precision, LinearShape { rows, inputs, outputs });
        }
    }
}

pub fn check_linear(products: &Products, gpu: &Gpu, precision: Precision, shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    let [bound, float_bound] = bounds(precision);
    let lane = Lane::new(gpu, products).unwrap();
    let planned = LinearUse { is_training: true, gelu_before: true, gelu_after: true, layers: 1 };
    let layer = Linear::new(&lane, products, shape, planned).unwrap();
    let parameters = noise((inputs + 1) * outputs, 1, 1.0);
    let (x, d_y) = (noise(rows * inputs, 2, 1.0), noise(rows * outputs, 3, 1.0));
    let z = noise(rows * inputs, 4, 2.0);
    let buffer = gpu.upload(&parameters).unwrap();
    let shadows = Shadows::new(gpu, precision).unwrap();
    shadows.reserve(gpu, &buffer).unwrap();
    shadows.refresh(gpu, &buffer, 0..parameters.len()).unwrap();
    let weights = shadows.view(&buffer, 0..parameters.len());
    let upload = |numbers: &[f32]| Activations::of(gpu, precision, numbers).unwrap();
    let on_device = [upload(&x), upload(&d_y), upload(&z)];
    let rounded = |numbers: &[f32]| stored(precision, numbers);
    let (w, x, d_y, z) = (rounded(&parameters), rounded(&x), rounded(&d_y), rounded(&z));

    let mut y =
        product([rows, outputs, inputs], |i, l| x[i * inputs + l], |l, j| w[l * outputs + j]);
    y.iter_mut().enumerate().for_each(|(at, y)| *y += w[inputs * outputs + at % outputs]);
    let mut found = spoilt(gpu, precision, rows * outputs);
    layer.forward(&lane, &mut found, &on_device[0], weights).unwrap();
    close("y", &found.to_vec().unwrap(), &y, bound);
    let mut activated = spoilt(gpu, precision, rows * outputs);
    let mut again = spoilt(gpu, precision, rows * outputs);
    layer.forward_gelu(&lane, &mut activated, &mut again, &on_device[0], weights).unwrap();
    close("y before GELU", &again.to_vec().unwrap(), &y, bound);
    let expected: Vec<f64> = y.iter().map(|&y| gelu_of(y)[0]).collect();
    close("GELU of y", &activated.to_vec().unwrap(), &expected, 2.0 * bound);

    let d_x =
        product([rows, inputs, outputs], |i, l| d_y[i * outputs + l], |l, j| w[j * outputs + l]);
    let mut found = spoilt(gpu, precision, rows * inputs);
    layer.backward_input(&lane, &mut found, &on_device[1], weights).unwrap();
    close("d_x", &found.to_vec().unwrap(), &d_x, bound);
    let mut found = spoilt(gpu, precision, rows * inputs);
    layer.backward_input_gelu(&lane, &mut found, &on_device[1], &on_device[2], weights).unwrap();
    let expected: Vec<f64> = d_x.iter().zip(&z).map(|(d, &z)| d * gelu_of(z)[1]).collect();
    close("d_z", &found.to_vec().unwrap(), &expected, 2.0 * bound);

    let mut expected =
        product([inputs, outputs, rows], |i, l| x[l * inputs + i], |l, j| d_y[l * outputs + j]);
    expected.extend((0..outputs).map(|j| (0..rows).map(|i| d_y[i * outputs + j]).sum::<f64>()));
    let mut found = spoilt_floats(gpu, expected.len());
    let [x, d_y, _] = &on_device;
    layer.backward_parameters(&lane, found.view_mut(), d_y, x, true, false).unwrap();
    close("d_W and d_b", &found.to_vec().unwrap(), &expected, float_bound);
    layer.backward_parameters(&lane, found.view_mut(), d_y, x, true, true).unwrap();
    let doubled: Vec<f64> = expected.iter().map(|gradient| 2.0 * gradient).collect();
    close("d_W and d_b, added", &found.to_vec().unwrap(), &doubled, float_bound);
    let mut found = spoilt_floats(gpu, expected.len());
    layer.backward_parameters(&lane, found.view_mut(), d_y, x, false, false).unwrap();
    let found = found.to_vec().unwrap();
    close("d_W", &found[..inputs * outputs], &expected[..inputs * outputs], float_bound);
    assert!(found[inputs * outputs..].iter().all(|gradient| gradient.is_nan()), "d_b is left");
}

#[test]
fn head() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        // One run, several with a short last one; vocabularies that do and do not fill their rows.
        for (rows, channels, vocabulary, run_rows) in
            [(20, 16, 64, 20), (13, 24, 61, 5), (1, 8, 3, 1), (9, 15, 1037, 4)]
        {
            let shape = HeadShape { rows, channels, vocabulary };
            check_head(&products(device, &gpu, precision), &gpu, shape, run_rows);
        }
    }
}

/// The same in tf32 by kernels of our own wherever a device has them.
#[test]
fn head_by_kernels_of_our_own() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let products = products(device, &gpu, Precision::Tf32).preferring_tiles();
    for (rows, channels, vocabulary) in [(20, 64, 1088), (200, 320, 1032), (150, 328, 1040)] {
        let rows = device.size(rows, rows.div_ceil(2));
        check_head(&products, &gpu, HeadShape { rows, channels, vocabulary }, rows);
    }
}

/// Logits, losses and the gradients of logits in f64.
fn cross_entropy(
    shape: HeadShape,
    x: &[f64],
    w: &[f64],
    targets: &[u32],
    scale: f32,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let HeadShape { rows, channels, vocabulary } = shape;
    let z = product(
        [rows, vocabulary, channels],
        |i, l| x[i * channels + l],
        |l, j| w[j * channels + l],
    );
    let mut losses = Vec::new();
    let mut d_z = Vec::new();
    for (row, &target) in targets.iter().enumerate() {
        let z = &z[row * vocabulary..][..vocabulary];
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = z.iter().map(|z| (z - max).exp()).sum();
        let is_counted = (target as usize) < vocabulary;
        losses.push(if is_counted { sum.ln() + max - z[target as usize] } else { 0.0 });
        d_z.extend(z.iter().enumerate().map(|(v, z)| {
            let hit = if v == target as usize { 1.0 } else { 0.0 };
            if is_counted { f64::from(scale) * ((z - max).exp() / sum - hit) } else { 0.0 }
        }));
    }
    (z, losses, d_z)
}

fn check_head(products: &Products, gpu: &Gpu, shape: HeadShape, run_rows: usize) {
    let HeadShape { rows, channels, vocabulary } = shape;
    let precision = products.precision();
    let [bound, float_bound] = bounds(precision);
    let lane = Lane::new(gpu, products).unwrap();
    let head = Head::in_runs(&lane, products, shape, true, run_rows).unwrap();
    let (x, table) = (noise(rows * channels, 1, 2.0), noise(vocabulary * channels, 2, 2.0));
    let targets: Vec<u32> = (0..rows as u32)
        .map(|row| if row % 4 == 1 { u32::MAX } else { row * 7 % vocabulary as u32 })
        .collect();
    let buffer = gpu.upload(&table).unwrap();
    let shadows = Shadows::new(gpu, precision).unwrap();
    shadows.refresh(gpu, &buffer, 0..table.len()).unwrap();
    let weights = shadows.view(&buffer, 0..table.len());
    let on_device = Activations::of(gpu, precision, &x).unwrap();
    let targets_on_device = gpu.upload(&targets).unwrap();
    let (x, w) = (stored(precision, &x), stored(precision, &table));
    let (z, losses, d_z) = cross_entropy(shape, &x, &w, &targets, 0.37);
    // Logits of about 8 are rounded by 2^-9 of that, which is what their exponentials are off by.
    let bound_losses = if precision == Precision::Bf16 { 2e-2 } else { 2.0 * bound };
    let bound_gradients = if precision == Precision::Bf16 { 2e-2 } else { 10.0 * bound };
    let mut workspace = spoilt_floats(gpu, shape.workspace_length(precision));
    let inputs = HeadInputs { x: &on_device, table: weights, targets: &targets_on_device };
    let mut found = spoilt_floats(gpu, rows);
    head.losses([&lane; 2], &mut found, inputs, &mut workspace, None).unwrap();
    let alone = found.to_vec().unwrap();
    close("losses", &alone, &losses, bound_losses);

    let scale = gpu.upload(&[0.37f32]).unwrap();
    let mut d_table = spoilt_floats(gpu, vocabulary * channels);
    let mut d_x = spoilt(gpu, precision, rows * channels);
    for adds in [false, true] {
        let mut found = spoilt_floats(gpu, rows);
        let gradients =
            HeadGradients { d_x: &mut d_x, d_table: d_table.view_mut(), scale: &scale, adds };
        let table = head.losses([&lane; 2], &mut found, inputs, &mut workspace, Some(gradients));
        let table = table.unwrap().unwrap();
        (0..head.table_parts()).for_each(|part| head.add_table(&lane, &table, part).unwrap());
        assert_eq!(found.to_vec().unwrap(), alone, "with and without gradients");
        let expected = product(
            [rows, channels, vocabulary],
            |i, l| d_z[i * vocabulary + l],
            |l, j| w[l * channels + j],
        );
        close("d_x", &d_x.to_vec().unwrap(), &expected, bound_gradients);
        let times = if adds { 2.0 } else { 1.0 };
        let expected = product(
            [vocabulary, channels, rows],
            |i, l| times * d_z[l * vocabulary + i],
            |l, j| x[l * channels + j],
        );
        close("d_table", &d_table.to_vec().unwrap(), &expected, bound_gradients);
    }

    let start = rows / 3;
    let part = HeadShape { rows: rows - start, ..shape };
    let logits = Logits::new(&lane, products, part).unwrap();
    let mut found = spoilt_floats(gpu, part.rows * vocabulary);
    logits.queue(&lane, &mut found, &on_device, weights, start).unwrap();
    close("logits", &found.to_vec().unwrap(), &z[start * vocabulary..], float_bound);
}

#[test]
fn attention_of_one_token() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for precision in Precision::ALL {
        let [bound, _] =
            bounds(if precision == Precision::Tf32 { Precision::Fp32 } else { precision });
        for (heads, head_size) in [(2, 32), (3, 5)] {
            let shape = DecodeShape { context: 20, heads, head_size };
            let channels = shape.channels();
            let decode = Decode::new(&gpu, precision, shape).unwrap();
            let mut keys = spoilt(&gpu, precision, 20 * channels);
            let mut values = spoilt(&gpu, precision, 20 * channels);
            let mut workspace = spoilt_floats(&gpu, shape.workspace_length());
            let mut rows: Vec<Vec<f64>> = Vec::new();
            for position in 0..20u32 {
                let qkv = noise(3 * channels, position, 2.0);
                rows.push(stored(precision, &qkv));
                let qkv = Activations::of(&gpu, precision, &qkv).unwrap();
                let place = gpu.upload(&[0, position]).unwrap();
                let mut out = spoilt(&gpu, precision, channels);
                let cache = (&mut keys, &mut values);
                decode.attention(&gpu, &mut out, cache, &qkv, &place, &mut workspace).unwrap();
                let q = &rows[position as usize];
                let expected: Vec<f64> = (0..channels)
                    .map(|c| {
                        let first = c / head_size * head_size;
                        let score = |row: &Vec<f64>| -> f64 {
                            let at = first..first + head_size;
                            let dot: f64 = at.map(|c| q[c] * row[channels + c]).sum();
                            (dot / (head_size as f64).sqrt()).exp()
                        };
                        let sum: f64 = rows.iter().map(score).sum();
                        rows.iter().map(|row| score(row) / sum * row[2 * channels + c]).sum()
                    })
                    .collect();
                close("attention", &out.to_vec().unwrap(), &expected, 2.0 * bound);
            }
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let norm = LayerNorm::new(&gpu, Precision::Bf16, 8).unwrap();
    let gain_bias = gpu.zeros::<f32>(16).unwrap();
    let mut statistics = gpu.zeros::<f32>(6).unwrap();
    let x = Activations::zeros(&gpu, Precision::Bf16, 24).unwrap();
    let mut short = Activations::zeros(&gpu, Precision::Bf16, 23).unwrap();
    let error =
        norm.forward(&gpu, &mut short, &mut statistics, &x, gain_bias.view(), 3).unwrap_err();
    assert_eq!(error.to_string(), "output: expected 24 elements, found 23");
    let mut other = Activations::zeros(&gpu, Precision::Fp32, 24).unwrap();
    let error =
        norm.forward(&gpu, &mut other, &mut statistics, &x, gain_bias.view(), 3).unwrap_err();
    assert_eq!(error.to_string(), "output: expected bf16 activations, found f32 activations");
}

#[test]
fn sums_are_added_in_the_order_asked_for() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let plus = Plus::new(&gpu).unwrap();
    // Wide accesses with and without an end, and arrays that lie apart by less than one.
    for (length, offset) in [(0, 0), (1, 0), (4096, 0), (4099, 0), (1000, 1)] {
        let (left, right) = (noise(length + offset, 1, 3.0), noise(length, 2, 1e-3));
        let whole = gpu.upload(&left).unwrap();
        let mut sum = whole.shared(offset..offset + length);
        plus.queue(&gpu, &mut sum, &gpu.upload(&right).unwrap()).unwrap();
        let expected: Vec<f32> = left[offset..].iter().zip(&right).map(|(a, b)| a + b).collect();
        assert_eq!(sum.to_vec().unwrap(), expected, "{length} from {offset}");
        assert_eq!(whole.to_vec().unwrap()[..offset], left[..offset]);
    }
    let two = gpu.upload(&[1.0f32; 2]).unwrap();
    assert!(plus.queue(&gpu, &mut gpu.upload(&[1.0f32]).unwrap(), &two).is_err());

    // From the left, where another order rounds otherwise.
    let numbers = [1.0, 1e-16, 1e-16, 1e-16, 0.0];
    let mut sum = gpu.upload(&[f64::NAN]).unwrap();
    plus.queue_in_order(&gpu, &mut sum, &gpu.upload(&numbers).unwrap()).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [1.0]);
}
