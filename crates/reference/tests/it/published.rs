//! `ustate1q-original` against the package that the format comes from: every update from the package's own
//! state before it.

use formats::published_random::Place;
use formats::{Format, half_floats::bf16_to_f32};
use reference::{Hyperparameters, Model, State, Tensor};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn floats(hex: &str) -> Vec<f32> {
    bytes(hex).as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn model(format: Format, parameters: Vec<f32>, weight_decay: f64) -> Model {
    let hyperparameters =
        Hyperparameters { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay };
    let mut tensor = Tensor::new(parameters, format, None, hyperparameters);
    tensor.place = Place { group: 0, parameter: 0 };
    Model {
        tensors: vec![tensor],
        seed: 0x1234_5678,
        clip_norm: None,
        skip_nonfinite: false,
        maps: None,
        written: 0,
    }
}

/// How much of `found` is not within `bound` of `expected`, relative to each number or to `scale`.
fn outliers(found: &[f32], expected: &[f32], bound: f32, scale: f32) -> usize {
    let pairs = found.iter().zip(expected);
    pairs.filter(|(a, b)| (**a - **b).abs() > bound * b.abs().max(scale)).count()
}

/// Bounds: the package adds a logarithm of up to 30 in f32, with an error of `2^-20`, so its v has one of
/// 1e-6 and, with the library's exp, at most 2e-6; ours is within 8e-6 (`formats::one_q`). Roots, and with
/// them m, have half of that. A normalised update is `fma(4 + c, s, o)` with `o = fma(-s, C, mean) - 4 s`, for
/// an average code C of at most 3 and a scale s: its roundings are `2^-24 (2 |mean| + 10 s + |q|)`, 6e-7 of the largest q, and
/// as much of the largest m. To m the mean's and the scale's roundings come. Where a random number
/// lies within such an error of its probability, a code may be the neighbour; in a tensor of 150
/// elements that happens about once in a thousand updates. A mean that lies between two bf16 moves its whole
/// block.
#[test]
fn updates_agree_with_the_package_from_a_common_state() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = format!("{root}/tests/it/golden/published-ustate1q.txt");
    let golden = std::fs::read_to_string(path).unwrap();
    let mut lines = golden.lines().filter(|line| !line.starts_with('#'));
    let (mut format, mut weight_decay, mut updates) = (Format::Fp32, 0.0, 0);
    while let Some(line) = lines.next() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields[0] == "case" {
            let text = format!("ustate1q-original:min=0,v_bits={}", fields[1]);
            format = text.parse().unwrap();
            weight_decay = fields[3].parse().unwrap();
            continue;
        }
        let update: u64 = fields[1].parse().unwrap();
        let mut model = model(format, floats(fields[3]), weight_decay);
        let State::Arrays(arrays) = &mut model.tensors[0].state else { unreachable!() };
        if fields[4] != "fresh" {
            let lengths: Vec<usize> = arrays.iter().map(Vec::len).collect();
            *arrays = fields[4..].iter().map(|hex| bytes(hex)).collect();
            assert_eq!(lengths, arrays.iter().map(Vec::len).collect::<Vec<_>>());
        }
        model.written = update - 1;
        let gradient = floats(fields[2]);
        let report = model.step(update, &[&gradient]);
        assert_eq!(report.nonfinite, 0);

        let after: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let tensor = &model.tensors[0];
        let parameters = floats(after[1]);
        assert_eq!(outliers(&tensor.parameters, &parameters, 3e-7, 3e-2), 0, "update {update}");
        let State::Arrays(arrays) = &tensor.state else { unreachable!() };
        let expected: Vec<Vec<u8>> = after[4..].iter().map(|hex| bytes(hex)).collect();
        assert_eq!(arrays[4], expected[4], "endpoints of update {update}");
        let halves = |bytes: &[u8]| -> Vec<f32> {
            let halves = bytes.as_chunks::<2>().0.iter();
            halves.map(|half| bf16_to_f32(u16::from_le_bytes(*half))).collect()
        };
        assert_eq!(outliers(&halves(&arrays[1]), &halves(&expected[1]), 4e-3, 1e-6), 0);
        let scales = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        assert_eq!(outliers(&scales(&arrays[2]), &scales(&expected[2]), 2e-6, 0.0), 0);
        // The next update's moments before it are the decoded ones after this.
        let (m, v) = model.decoded(update + 1, 0);
        assert_eq!(outliers(&v, &floats(after[3]), 1e-5, 0.0), 0, "v of update {update}");
        let m_expected = floats(after[2]);
        let largest = m_expected.iter().fold(0f32, |largest, m| largest.max(m.abs()));
        assert_eq!(outliers(&m, &m_expected, 6e-6, 0.1 * largest), 0, "m of update {update}");
        updates += 1;
    }
    assert_eq!(updates, 30);
}
