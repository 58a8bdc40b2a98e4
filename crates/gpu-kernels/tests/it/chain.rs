//! What lies between two attentions in one kernel, stage by stage against the formulas in f64: each stage is that of
//! what the kernel stored of the one before. Outputs are NaN before. Skipped where a device has no such kernels.

use gpu_kernels::{
    Activations, Attention, AttentionShape, BackwardChain, BackwardChainInputs,
    BackwardChainOutputs, Buffer, ForwardChain, ForwardChainInputs, ForwardChainOutputs, Gpu,
    NextBlock, NormGradient, NormedSum, Precision, RunSums, Shadows, ViewMut,
};

use crate::branch::{shadowed, statistics_of, tiles};
use crate::network::{
    NormExpected, bounds, close, gelu_of, noise, product, spoilt, spoilt_floats, stored,
};

const PRECISION: Precision = Precision::Bf16;
/// Rows and channels: tiles that are full and that are not, clusters of several sizes, and of several of them.
const SHAPES: [[usize; 2]; 5] = [[64, 320], [1, 128], [70, 192], [200, 256], [1152, 320]];

/// A linear layer: on the device, and as it is multiplied with.
pub struct Layer {
    shadows: Shadows,
    parameters: Buffer<f32>,
    numbers: Vec<f64>,
    outputs: usize,
}

impl Layer {
    pub fn new(gpu: &Gpu, seed: u32, [inputs, outputs]: [usize; 2]) -> Layer {
        let drawn = noise((inputs + 1) * outputs, seed, 0.1);
        let (shadows, parameters) = shadowed(gpu, PRECISION, &drawn);
        let numbers = stored(PRECISION, &parameters.to_vec().unwrap());
        Layer { shadows, parameters, numbers, outputs }
    }

    pub fn view(&self) -> gpu_kernels::Weights<'_> {
        self.shadows.view(&self.parameters, 0..self.parameters.len())
    }

    /// `left W + b`.
    fn forward(&self, left: &[f64]) -> Vec<f64> {
        let outputs = self.outputs;
        let inputs = self.numbers.len() / outputs - 1;
        let rows = left.len() / inputs;
        let weight = |l, j| self.numbers[l * outputs + j];
        let mut out = product([rows, outputs, inputs], |i, l| left[i * inputs + l], weight);
        for row in out.chunks_exact_mut(outputs) {
            let bias = &self.numbers[inputs * outputs..];
            row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
        out
    }

    /// `d_y W^T`.
    fn backward(&self, d_y: &[f64]) -> Vec<f64> {
        let outputs = self.outputs;
        let inputs = self.numbers.len() / outputs - 1;
        let rows = d_y.len() / outputs;
        let weight = |l, j| self.numbers[j * outputs + l];
        product([rows, inputs, outputs], |i, l| d_y[i * outputs + l], weight)
    }
}

/// Activations with their numbers.
pub struct Given {
    pub there: Activations,
    numbers: Vec<f64>,
}

impl Given {
    pub fn new(gpu: &Gpu, length: usize, seed: u32, largest: f32) -> Given {
        let numbers = noise(length, seed, largest);
        let there = Activations::of(gpu, PRECISION, &numbers).unwrap();
        Given { there, numbers: stored(PRECISION, &numbers) }
    }
}

fn numbers(activations: &Activations) -> Vec<f64> {
    activations.to_vec().unwrap().iter().map(|&number| f64::from(number)).collect()
}

fn sum(left: &[f64], right: &[f64]) -> Vec<f64> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

#[test]
fn forward() {
    let Some(device) = tiles() else { return };
    for shape in SHAPES {
        for is_linked in [true, false] {
            check_forward(&device.gpu(), shape, is_linked);
        }
    }
}

fn check_forward(gpu: &Gpu, [rows, channels]: [usize; 2], is_linked: bool) {
    let [bound, _] = bounds(PRECISION);
    let chain = ForwardChain::new(gpu, PRECISION, [rows, channels], is_linked).unwrap();
    let layer = |seed, [inputs, outputs]: [usize; 2]| {
        Layer::new(gpu, seed, [inputs * channels, outputs * channels])
    };
    let [projection, up] = [layer(1, [1, 1]), layer(2, [1, 4])];
    let [down, qkv] = [layer(3, [4, 1]), layer(4, [1, 3])];
    let narrow = rows * channels;
    let (left, residual) = (Given::new(gpu, narrow, 5, 1.0), Given::new(gpu, narrow, 6, 3.0));
    let norms = [7, 8].map(|seed| noise(2 * channels, seed, 1.0));
    let gains = [0, 1].map(|which: usize| gpu.upload(&norms[which]).unwrap());
    let [mut x1, mut x2, mut out1, mut out2] = [1; 4].map(|_| spoilt(gpu, PRECISION, narrow));
    let [mut wide, mut activated] = [1; 2].map(|_| spoilt(gpu, PRECISION, 4 * narrow));
    let mut qkv_out = spoilt(gpu, PRECISION, 3 * narrow);
    let [mut statistics1, mut statistics2] = [1; 2].map(|_| spoilt_floats(gpu, 2 * rows));
    let outputs = ForwardChainOutputs {
        attention_end: NormedSum { x: &mut x1, out: &mut out1, statistics: &mut statistics1 },
        wide: &mut wide,
        activated: &mut activated,
        mlp_end: NormedSum { x: &mut x2, out: &mut out2, statistics: &mut statistics2 },
        qkv: is_linked.then_some(&mut qkv_out),
    };
    let inputs = ForwardChainInputs {
        left: &left.there,
        residual: &residual.there,
        projection: projection.view(),
        mlp_norm: gains[0].view(),
        up: up.view(),
        down: down.view(),
        next_norm: gains[1].view(),
        qkv: is_linked.then_some(qkv.view()),
    };
    chain.queue(gpu, outputs, inputs).unwrap();

    let check_end = |x: &Activations, expected: &[f64], out, statistics: &Buffer<f32>, norm| {
        close("residual sum", &x.to_vec().unwrap(), expected, bound);
        let x = numbers(x);
        let expected = NormExpected::new(&x, norm, &vec![0.0; narrow]).out;
        close("its LayerNorm", &Activations::to_vec(out).unwrap(), &expected, bound);
        let expected = statistics_of(&x, channels);
        close("statistics", &statistics.to_vec().unwrap(), &expected, 2e-6);
    };
    let expected = sum(&residual.numbers, &projection.forward(&left.numbers));
    check_end(&x1, &expected, &out1, &statistics1, &norms[0]);
    let z = up.forward(&numbers(&out1));
    close("the inside", &wide.to_vec().unwrap(), &z, bound);
    let gelu: Vec<f64> = z.iter().map(|&z| gelu_of(z)[0]).collect();
    close("GELU", &activated.to_vec().unwrap(), &gelu, bound);
    let expected = sum(&numbers(&x1), &down.forward(&numbers(&activated)));
    check_end(&x2, &expected, &out2, &statistics2, &norms[1]);
    if is_linked {
        let expected = qkv.forward(&numbers(&out2));
        close("qkv of the next block", &qkv_out.to_vec().unwrap(), &expected, bound);
    }
}

#[test]
fn backward() {
    let Some(device) = tiles() else { return };
    // Windows that need no padding, in heads of 64.
    for [batch, time, heads] in [[1, 128, 5], [2, 128, 2], [3, 128, 4], [1, 1152, 5]] {
        for is_linked in [true, false] {
            let shape = AttentionShape { batch, time, heads, head_size: 64 };
            check_backward(&device.gpu(), shape, is_linked);
        }
    }
}

/// A LayerNorm at the beginning of a branch, with what its gradients are left in.
struct Beginning {
    x: Given,
    statistics: Buffer<f32>,
    norm: Vec<f32>,
    gain: Buffer<f32>,
    d_x: Activations,
    partials: Buffer<f32>,
}

impl Beginning {
    fn new(gpu: &Gpu, [rows, channels]: [usize; 2], seed: u32) -> Beginning {
        let x = Given::new(gpu, rows * channels, seed, 3.0);
        let statistics = statistics_of(&x.numbers, channels);
        let statistics: Vec<f32> = statistics.iter().map(|&number| number as f32).collect();
        let norm = noise(2 * channels, seed + 1, 1.0);
        Beginning {
            x,
            statistics: gpu.upload(&statistics).unwrap(),
            gain: gpu.upload(&norm).unwrap(),
            norm,
            d_x: spoilt(gpu, PRECISION, rows * channels),
            partials: spoilt_floats(gpu, BackwardChain::partials_length([rows, channels])),
        }
    }

    /// Checks the gradients, given that of the output and that of the residual stream behind.
    fn check(&self, gpu: &Gpu, chain: &BackwardChain, d_out: &[f64], behind: &[f64]) {
        let [bound, float_bound] = bounds(PRECISION);
        let NormExpected { d_x, mut d_parameters, .. } =
            NormExpected::new(&self.x.numbers, &self.norm, d_out);
        let found = self.d_x.to_vec().unwrap();
        close("gradient of the residual stream", &found, &sum(&d_x, behind), 2.0 * bound);
        // The bias before is summed up from what was stored.
        let channels = self.norm.len() / 2;
        for (at, d_x) in found.iter().enumerate() {
            d_parameters[at % channels] += f64::from(*d_x);
        }
        let mut found = spoilt_floats(gpu, d_parameters.len());
        let view: ViewMut<'_, f32> = found.view_mut();
        let pending = chain.parameters(&view, &self.partials, false).unwrap();
        RunSums::new(gpu).unwrap().queue(gpu, &[pending]).unwrap();
        let found = found.to_vec().unwrap();
        close("gradients of parameters", &found, &d_parameters, 2.0 * float_bound);
    }
}

fn check_backward(gpu: &Gpu, shape: AttentionShape, is_linked: bool) {
    let [bound, _] = bounds(PRECISION);
    let AttentionShape { batch, time, heads, .. } = shape;
    let (rows, channels) = (batch * time, heads * 64);
    let narrow = rows * channels;
    let attention = Attention::new(gpu, PRECISION, shape).unwrap();
    let chain = BackwardChain::new(gpu, &attention, is_linked).unwrap();
    let layer = |seed, [inputs, outputs]: [usize; 2]| {
        Layer::new(gpu, seed, [inputs * channels, outputs * channels])
    };
    let [projection, up] = [layer(1, [1, 1]), layer(2, [1, 4])];
    let [down, qkv] = [layer(3, [4, 1]), layer(4, [1, 3])];
    let d_qkv = Given::new(gpu, 3 * narrow, 5, 1.0);
    let (residual, z) = (Given::new(gpu, narrow, 6, 1.0), Given::new(gpu, 4 * narrow, 7, 3.0));
    let [mut next, mut mlp] = [8, 10].map(|seed| Beginning::new(gpu, [rows, channels], seed));
    let out = Given::new(gpu, narrow, 12, 1.0);
    let sums: Vec<f32> = noise(2 * rows * heads, 13, 0.4).iter().map(|&x| x + 0.5).collect();
    let attention_statistics = gpu.upload(&sums).unwrap();
    let mut d_wide = spoilt(gpu, PRECISION, 4 * narrow);
    let mut d_attention = spoilt(gpu, PRECISION, narrow);
    let mut workspace = spoilt_floats(gpu, Attention::workspace_length(shape));
    let outputs = BackwardChainOutputs {
        next: is_linked
            .then_some(NormGradient { d_x: &mut next.d_x, partials: &mut next.partials }),
        d_wide: &mut d_wide,
        mlp: NormGradient { d_x: &mut mlp.d_x, partials: &mut mlp.partials },
        d_attention: &mut d_attention,
        workspace: &mut workspace,
    };
    let next_block = NextBlock {
        d_qkv: &d_qkv.there,
        qkv: qkv.view(),
        x: &next.x.there,
        statistics: &next.statistics,
        norm: next.gain.view(),
    };
    let inputs = BackwardChainInputs {
        next: is_linked.then_some(next_block),
        d_residual: &residual.there,
        down: down.view(),
        wide: &z.there,
        up: up.view(),
        x: &mlp.x.there,
        statistics: &mlp.statistics,
        mlp_norm: mlp.gain.view(),
        projection: projection.view(),
        attention_out: &out.there,
        attention_statistics: &attention_statistics,
    };
    chain.queue(gpu, outputs, inputs).unwrap();

    let behind = if is_linked {
        next.check(gpu, &chain, &qkv.backward(&d_qkv.numbers), &residual.numbers);
        numbers(&next.d_x)
    } else {
        residual.numbers
    };
    let d_hidden = down.backward(&behind);
    let d_z: Vec<f64> = d_hidden.iter().zip(&z.numbers).map(|(d, &z)| d * gelu_of(z)[1]).collect();
    close("gradient of the inside", &d_wide.to_vec().unwrap(), &d_z, bound);
    mlp.check(gpu, &chain, &up.backward(&numbers(&d_wide)), &behind);
    let expected = projection.backward(&numbers(&mlp.d_x));
    close("gradient of attention", &d_attention.to_vec().unwrap(), &expected, bound);

    check_pairs(shape, [&numbers(&d_attention), &out.numbers], &sums, &workspace);
}

/// Checks what the chain leaves for attention, of the gradient of its output and its output.
fn check_pairs(
    shape: AttentionShape,
    [d_out, out]: [&[f64]; 2],
    sums: &[f32],
    workspace: &Buffer<f32>,
) {
    let AttentionShape { batch, time, heads, .. } = shape;
    let mut pairs = Vec::new();
    for window in 0..batch {
        for head in 0..heads {
            for row in window * time..(window + 1) * time {
                let at = (row * heads + head) * 64;
                let products = d_out[at..at + 64].iter().zip(&out[at..at + 64]);
                let sums = &sums[2 * (row * heads + head)..][..2];
                pairs.push(f64::from(sums[0]) - f64::from(sums[1]).log2());
                pairs.push(products.map(|(d, out)| d * out).sum());
            }
        }
    }
    let [_, bound] = bounds(PRECISION);
    let found = workspace.to_vec().unwrap();
    close("what attention wants of rows", &found[..pairs.len()], &pairs, bound);
}
