//! Every operation alone, on shapes that cross the edges of its tiles, against its formula written
//! out in plain loops over `f64`. Outputs and workspaces start as NaN wherever they must not be
//! read.

use model::ops::{
    Attention, AttentionInputs, AttentionShape, Embedding, EmbeddingShape, Gelu, LayerNorm,
    LayerNormInputs, LayerNormShape, Linear, LinearShape, LinearStores, Loss, LossInputs,
    LossOutputs, LossShape, Store,
};
use model::{Cpu, IGNORED};

use crate::samples::{Samples, relative_distance};

const CPU: fn() -> Cpu<f64> = Cpu::new;

fn poison(length: usize) -> Vec<f64> {
    vec![f64::NAN; length]
}

/// Both orders of summation round at 2^-53.
#[track_caller]
fn assert_close(found: &[f64], expected: &[f64]) {
    let distance = relative_distance(found, expected);
    assert!(distance < 1e-13, "relative distance {distance:e}");
}

/// Runs an operation that overwrites, on NaN, and one that adds, on random values; both against
/// what is expected of the first.
#[track_caller]
fn check_stores(length: usize, expected: &[f64], run: impl Fn(&mut Vec<f64>, Store)) {
    let mut overwritten = poison(length);
    run(&mut overwritten, Store::Overwrite);
    assert_close(&overwritten, expected);
    let before = Samples::new(99).vector::<f64>(length, 1.0);
    let mut added = before.clone();
    run(&mut added, Store::Add);
    let sum: Vec<f64> = before.iter().zip(expected).map(|(a, b)| a + b).collect();
    assert_close(&added, &sum);
}

#[test]
fn embedding() {
    let shape = EmbeddingShape { batch: 3, time: 70, channels: 50, vocabulary: 11, context: 80 };
    let mut samples = Samples::new(1);
    let (table, positions) = (samples.vector(11 * 50, 1.0), samples.vector(80 * 50, 1.0));
    let (tokens, d_out) = (samples.ids(210, 11), samples.vector::<f64>(210 * 50, 1.0));

    let mut out = poison(210 * 50);
    CPU().embedding_forward(&mut out, &tokens, &table, &positions, shape).unwrap();
    let d_table = samples.vector::<f64>(11 * 50, 1.0);
    let mut expected_d_table = d_table.clone();
    let mut expected_d_positions = vec![0.0; 80 * 50];
    for row in 0..210 {
        for c in 0..50 {
            let (token, position) = (tokens[row] as usize * 50 + c, row % 70 * 50 + c);
            assert_eq!(out[row * 50 + c], table[token] + positions[position]);
            expected_d_table[token] += d_out[row * 50 + c];
            expected_d_positions[position] += d_out[row * 50 + c];
        }
    }
    check_stores(80 * 50, &expected_d_positions, |d_positions, store| {
        let mut added = d_table.clone();
        let tokens = (&tokens, &vec![]);
        CPU().embedding_backward([&mut added, d_positions], &d_out, tokens, shape, store).unwrap();
        assert_eq!(added, expected_d_table, "sums in the order of the text");
    });
}

#[test]
fn layernorm() {
    let (rows, channels) = (70, 37);
    let shape = LayerNormShape { rows, channels };
    let mut samples = Samples::new(2);
    let (residual, branch) = (samples.vector(rows * 37, 1.0), samples.vector(rows * 37, 1.0));
    let (gain_bias, d_out) = (samples.vector::<f64>(74, 1.0), samples.vector(rows * 37, 1.0));

    let (mut out, mut statistics, mut x) = (poison(rows * 37), poison(rows * 2), poison(rows * 37));
    CPU()
        .layernorm_forward_residual(
            &mut out,
            &mut statistics,
            &mut x,
            [&residual, &branch],
            &gain_bias,
            shape,
        )
        .unwrap();
    let (mut alone, mut alone_statistics) = (poison(rows * 37), poison(rows * 2));
    CPU().layernorm_forward(&mut alone, &mut alone_statistics, &x, &gain_bias, shape).unwrap();
    assert_eq!((&alone, &alone_statistics), (&out, &statistics));

    let (mut expected, mut d_x, mut d_gain_bias) = (poison(rows * 37), vec![], vec![0.0; 74]);
    for row in 0..rows {
        let here = row * 37..(row + 1) * 37;
        let sum: Vec<f64> = here.clone().map(|index| residual[index] + branch[index]).collect();
        assert_eq!(x[here.clone()], sum);
        let mean = sum.iter().sum::<f64>() / 37.0;
        let variance = sum.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 37.0;
        let n: Vec<f64> = sum.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).collect();
        let g: Vec<f64> = (0..37).map(|c| d_out[row * 37 + c] * gain_bias[c]).collect();
        let mean_g = g.iter().sum::<f64>() / 37.0;
        let mean_gn = g.iter().zip(&n).map(|(g, n)| g * n).sum::<f64>() / 37.0;
        for c in 0..37 {
            expected[row * 37 + c] = n[c] * gain_bias[c] + gain_bias[37 + c];
            d_x.push((g[c] - mean_g - n[c] * mean_gn) / (variance + 1e-5).sqrt());
            d_gain_bias[c] += d_out[row * 37 + c] * n[c];
            d_gain_bias[37 + c] += d_out[row * 37 + c];
        }
    }
    assert_close(&out, &expected);

    let beside = samples.vector(rows * 37, 1.0);
    let backward = |d_x: &mut Vec<f64>, d_gain_bias: &mut Vec<f64>, d_residual, store| {
        let forward = LayerNormInputs::<Cpu<f64>> {
            d_out: &d_out,
            x: &x,
            statistics: &statistics,
            gain_bias: &gain_bias[..],
            d_residual,
        };
        let mut workspace = poison(CPU().layernorm_workspace_length(shape));
        CPU().layernorm_backward(d_x, d_gain_bias, forward, &mut workspace, shape, store).unwrap();
    };
    let with_beside: Vec<f64> = d_x.iter().zip(&beside).map(|(d_x, term)| d_x + term).collect();
    for (d_residual, expected) in [(None, &d_x), (Some(&beside), &with_beside)] {
        let mut found = poison(rows * 37);
        backward(&mut found, &mut poison(74), d_residual, Store::Overwrite);
        assert_close(&found, expected);
    }
    check_stores(74, &d_gain_bias, |d_gain_bias, store| {
        backward(&mut poison(rows * 37), d_gain_bias, None, store);
    });
    // With the bias that was added to x before.
    let sums = (0..37).map(|c| with_beside.chunks_exact(37).map(|row| row[c]).sum());
    let d_parameters: Vec<f64> = sums.chain(d_gain_bias).collect();
    check_stores(111, &d_parameters, |d_parameters, store| {
        backward(&mut poison(rows * 37), d_parameters, Some(&beside), store);
    });
}

#[test]
fn linear() {
    for (rows, inputs, outputs) in [(300, 130, 200), (1, 64, 20), (65, 1, 3), (2, 70, 1)] {
        check_linear(LinearShape { rows, inputs, outputs });
    }
}

fn check_linear(shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    let mut samples = Samples::new(3);
    let x = samples.vector::<f64>(rows * inputs, 1.0);
    let weight_bias = samples.vector::<f64>((inputs + 1) * outputs, 1.0);
    let d_y = samples.vector::<f64>(rows * outputs, 1.0);

    let mut y = vec![0.0; rows * outputs];
    let mut d_x = vec![0.0; rows * inputs];
    let mut d_weight_bias = vec![0.0; (inputs + 1) * outputs];
    for row in 0..rows {
        for output in 0..outputs {
            let d = d_y[row * outputs + output];
            y[row * outputs + output] += weight_bias[inputs * outputs + output];
            d_weight_bias[inputs * outputs + output] += d;
            for input in 0..inputs {
                let weight = input * outputs + output;
                y[row * outputs + output] += x[row * inputs + input] * weight_bias[weight];
                d_x[row * inputs + input] += d * weight_bias[weight];
                d_weight_bias[weight] += d * x[row * inputs + input];
            }
        }
    }
    let mut found = poison(rows * outputs);
    CPU().linear_forward(&mut found, &x, &weight_bias, shape).unwrap();
    assert_close(&found, &y);
    let mut found = poison(rows * inputs);
    CPU().linear_backward_input(&mut found, &d_y, &weight_bias, shape).unwrap();
    assert_close(&found, &d_x);
    check_stores(d_weight_bias.len(), &d_weight_bias, |found, store| {
        let stores = LinearStores { weight: store, bias: Some(store) };
        CPU().linear_backward_parameters(found, &d_y, &x, shape, stores).unwrap();
    });
    let mut found = poison(d_weight_bias.len());
    let stores = LinearStores { weight: Store::Overwrite, bias: None };
    CPU().linear_backward_parameters(&mut found, &d_y, &x, shape, stores).unwrap();
    let (weight, bias) = found.split_at(inputs * outputs);
    assert_close(weight, &d_weight_bias[..inputs * outputs]);
    assert!(bias.iter().all(|value| value.is_nan()), "left as it was");
}

#[test]
fn attention() {
    // Three spans of keys with a short last one; one block; blocks that do not come out even.
    for (batch, time, heads, head_size) in [(1, 1030, 2, 4), (3, 20, 2, 5), (2, 200, 1, 3)] {
        check_attention(AttentionShape { batch, time, heads, head_size });
    }
}

fn check_attention(shape: AttentionShape) {
    let AttentionShape { batch, time, heads, head_size } = shape;
    let (rows, channels) = (batch * time, heads * head_size);
    let mut samples = Samples::new(4);
    let qkv = samples.vector::<f64>(rows * 3 * channels, 1.5);
    let d_out = samples.vector::<f64>(rows * channels, 1.0);
    let mut out = vec![0.0; rows * channels];
    let mut d_qkv = vec![0.0; rows * 3 * channels];
    let scale = 1.0 / (head_size as f64).sqrt();
    for (window, head) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let q_at = |t: usize| (window * time + t) * 3 * channels + head * head_size;
        let (k_at, v_at) = (|t| q_at(t) + channels, |t| q_at(t) + 2 * channels);
        for t in 0..time {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let part = |start: usize| &qkv[start..start + head_size];
            let scores = (0..=t).map(|s| scale * dot(part(q_at(t)), part(k_at(s))));
            let p: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = p.iter().sum();
            let at = (window * time + t) * channels + head * head_size;
            let d_out = &d_out[at..at + head_size];
            let dp: Vec<f64> = (0..=t).map(|s| dot(d_out, part(v_at(s)))).collect();
            let o = p.iter().zip(&dp).map(|(p, dp)| p / sum * dp).sum::<f64>();
            for s in 0..=t {
                let (p, ds) = (p[s] / sum, p[s] / sum * (dp[s] - o) * scale);
                for d in 0..head_size {
                    out[at + d] += p * qkv[v_at(s) + d];
                    d_qkv[q_at(t) + d] += ds * qkv[k_at(s) + d];
                    d_qkv[k_at(s) + d] += ds * qkv[q_at(t) + d];
                    d_qkv[v_at(s) + d] += p * d_out[d];
                }
            }
        }
    }
    let mut workspace = poison(CPU().attention_workspace_length(shape));
    let (mut found, mut statistics) = (poison(rows * channels), poison(rows * heads * 2));
    CPU().attention_forward(&mut found, &mut statistics, &qkv, &mut workspace, shape).unwrap();
    assert_close(&found, &out);
    workspace.fill(f64::NAN);
    let mut found = poison(rows * 3 * channels);
    let forward = AttentionInputs { d_out: &d_out, out: &out, qkv: &qkv, statistics: &statistics };
    CPU().attention_backward(&mut found, forward, &mut workspace, shape).unwrap();
    assert_close(&found, &d_qkv);
}

#[test]
fn gelu() {
    let length = 20_000;
    let x: Vec<f64> = (0..length).map(|index| (index as f64 - 10_000.0) / 1000.0).collect();
    let exact = |x: f64| {
        let k = (2.0 / std::f64::consts::PI).sqrt();
        let u = k * (x + 0.044_715 * x.powi(3));
        let slope = k * (1.0 + 3.0 * 0.044_715 * x * x);
        let tanh = u.tanh();
        (x * (1.0 + tanh) / 2.0, (1.0 + tanh + x * (1.0 - tanh * tanh) * slope) / 2.0)
    };
    let (y, d): (Vec<f64>, Vec<f64>) = x.iter().map(|&x| exact(x)).unzip();
    let mut found = poison(length);
    CPU().gelu_forward(&mut found, &x, length).unwrap();
    assert_close(&found, &y);
    let mut found = vec![1.0; length];
    CPU().gelu_backward(&mut found, &x, length).unwrap();
    assert_close(&found, &d);

    // In f32 against f64, where 1 / (1 + e^-2u) keeps its digits in the tail.
    let x32: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    let (mut y32, mut d32) = (vec![f32::NAN; length], vec![1.0; length]);
    Cpu::<f32>::new().gelu_forward(&mut y32, &x32, length).unwrap();
    Cpu::<f32>::new().gelu_backward(&mut d32, &x32, length).unwrap();
    for (index, &x) in x32.iter().enumerate() {
        let (y, d) = exact(f64::from(x));
        assert!((f64::from(y32[index]) - y).abs() < 4e-7 * x.abs().max(1.0) as f64, "at {x}");
        assert!((f64::from(d32[index]) - d).abs() < 1e-6, "at {x}");
    }
    let mut far = vec![f32::NAN; 4];
    Cpu::<f32>::new().gelu_forward(&mut far, &vec![-1e4, 1e4, 0.0, -0.0], 4).unwrap();
    assert!(far[0].abs() < 1e-30);
    assert_eq!(far[1..], [1e4, 0.0, 0.0]);
}

#[test]
fn loss() {
    // The second shape has more logits than one run keeps, so its rows go in two.
    for (rows, channels, vocabulary) in [(11, 6, 13), (250, 5, 20_000)] {
        check_loss(LossShape { rows, channels, vocabulary });
    }
}

fn check_loss(shape: LossShape) {
    let LossShape { rows, channels, vocabulary } = shape;
    let mut samples = Samples::new(5);
    let x = samples.vector::<f64>(rows * channels, 1.0);
    let table = samples.vector::<f64>(vocabulary * channels, 1.0);
    let mut targets = samples.ids(rows, vocabulary);
    targets[rows / 2] = IGNORED;
    let scale = vec![0.37];

    let (mut losses, mut all_logits) = (vec![0.0; rows], vec![]);
    let (mut d_x, mut d_table) = (vec![0.0; x.len()], vec![0.0; table.len()]);
    for row in 0..rows {
        let x = &x[row * channels..(row + 1) * channels];
        let logits: Vec<f64> = table
            .chunks_exact(channels)
            .map(|entry| entry.iter().zip(x).map(|(a, b)| a * b).sum())
            .collect();
        let sum: f64 = logits.iter().map(|z| z.exp()).sum();
        let target = targets[row] as usize;
        if targets[row] != IGNORED {
            losses[row] = sum.ln() - logits[target];
            for (v, z) in logits.iter().enumerate() {
                let dz = 0.37 * (z.exp() / sum - f64::from(u8::from(v == target)));
                for c in 0..channels {
                    d_x[row * channels + c] += dz * table[v * channels + c];
                    d_table[v * channels + c] += dz * x[c];
                }
            }
        }
        all_logits.extend(logits);
    }
    let cpu = CPU();
    let workspace = || poison(cpu.loss_workspace_length(shape));
    let mut found = poison(rows);
    cpu.loss_forward(&mut found, &x, &table, &targets, &mut workspace(), shape).unwrap();
    assert_close(&found, &losses);
    let total: f64 = losses.iter().sum();
    assert!((cpu.sum(&found, rows).unwrap() - total).abs() < 1e-13 * total);
    assert_eq!(cpu.sum(&found, 0).unwrap(), 0.0);

    check_stores(table.len(), &d_table, |found, store| {
        let (mut found_losses, mut found_d_x) = (poison(rows), poison(x.len()));
        let outputs =
            LossOutputs { losses: &mut found_losses, d_x: &mut found_d_x, d_table: &mut found[..] };
        let inputs = LossInputs { x: &x, table: &table[..], targets: &targets, scale: &scale };
        cpu.loss_forward_backward(outputs, inputs, &mut workspace(), shape, store).unwrap();
        assert_close(&found_losses, &losses);
        assert_close(&found_d_x, &d_x);
    });
    let mut found = poison(3 * vocabulary);
    cpu.logits(&mut found, &x, &table, 7..10, shape).unwrap();
    assert_close(&found, &all_logits[7 * vocabulary..10 * vocabulary]);
}
