//! Causal attention against f64, in every precision: shapes from one token to past several tiles, heads
//! of all sizes, large scores, causality, the same bits again.

use gpu_kernels::{Activations, Attention, AttentionShape, Buffer, Error, Gpu, Precision, bf16};

use crate::attention_reference::{Bounded, expected};
use crate::emulator::device;

/// Inputs and buffers of one shape.
struct Setup {
    gpu: Gpu,
    precision: Precision,
    shape: AttentionShape,
    attention: Attention,
    qkv: Vec<f32>,
    d_out: Vec<f32>,
}

/// What a run of both passes left.
#[derive(PartialEq)]
struct Found {
    out: Vec<f32>,
    d_qkv: Vec<f32>,
}

impl Setup {
    fn new(gpu: &Gpu, precision: Precision, shape: [usize; 4], largest: f32) -> Setup {
        let [batch, time, heads, head_size] = shape;
        let shape = AttentionShape { batch, time, heads, head_size };
        let rounded = |numbers: Vec<f32>| match precision {
            Precision::Bf16 => numbers
                .into_iter()
                .map(|number| f32::from_bits(u32::from(bf16(number)) << 16))
                .collect(),
            _ => numbers,
        };
        let length = shape.rows() * shape.channels();
        Setup {
            gpu: gpu.clone(),
            precision,
            shape,
            attention: Attention::new(gpu, precision, shape).unwrap(),
            qkv: rounded(noise(3 * length, time as u32, largest)),
            d_out: rounded(noise(length, 77, 1.0)),
        }
    }

    /// Both passes over outputs that were spoilt before.
    fn run(&self) -> Found {
        let (gpu, shape) = (&self.gpu, self.shape);
        let length = shape.rows() * shape.channels();
        let spoilt = |length: usize| vec![f32::NAN; length];
        let activations = |numbers: &[f32]| Activations::of(gpu, self.precision, numbers).unwrap();
        let (qkv, d_out) = (activations(&self.qkv), activations(&self.d_out));
        let mut out = activations(&spoilt(length));
        let mut d_qkv = activations(&spoilt(3 * length));
        let mut statistics = gpu.upload(&spoilt(2 * shape.rows() * shape.heads)).unwrap();
        let mut workspace = gpu.upload(&spoilt(Attention::workspace_length(shape))).unwrap();
        self.attention.forward(&mut out, &mut statistics, &qkv, &mut workspace).unwrap();
        self.attention
            .backward(&mut d_qkv, &d_out, &out, &qkv, &statistics, &mut workspace)
            .unwrap();
        Found { out: out.to_vec().unwrap(), d_qkv: d_qkv.to_vec().unwrap() }
    }

    /// Both passes against f64.
    fn check(&self) {
        let expected = expected(self.precision, self.shape, &self.qkv, &self.d_out);
        let found = self.run();
        let name = format!("{} {:?}", self.precision, self.shape);
        let check = |what: &str, bounded: &Bounded, found: &[f32]| {
            let (worst, relative) = (bounded.worst(found), bounded.relative(found));
            say(&format!("{name} {what}: {worst:.3} of the bound, {relative:.1e} in all"));
            assert!(worst <= 1.0, "{name} {what}: {worst} times the bound");
            let limit = if self.precision == Precision::Fp32 { 1e-5 } else { 1e-2 };
            assert!(relative < limit, "{name} {what}: {relative} in all");
        };
        check("out", &expected.out, &found.out);
        check("d_qkv", &expected.d_qkv, &found.d_qkv);
    }
}

#[expect(clippy::print_stdout, reason = "whoever reads the log wants to know how close it was")]
fn say(line: &str) {
    println!("{line}");
}

/// Numbers between -largest and largest.
fn noise(length: usize, seed: u32, largest: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) ^ 0x1234_5678;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0) as f32 * largest
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn lengths_from_one_token_to_past_several_tiles() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        for time in [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, device.size(1152, 200)] {
            Setup::new(&device.gpu(), precision, [1, time, 2, 64], 1.5).check();
        }
        // A single head has so few tiles that groups of warps share out what they visit.
        Setup::new(&device.gpu(), precision, [1, 300, 1, 64], 1.5).check();
    }
}

#[test]
fn four_warps_are_one_where_a_device_has_it() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    if gpu.facts().compute_capability != (9, 0) {
        return;
    }
    for batch in [1, 1000] {
        let shape = AttentionShape { batch, time: 256, heads: 2, head_size: 64 };
        for (precision, kind) in [(Precision::Bf16, "Ring"), (Precision::Tf32, "Wide")] {
            let attention = Attention::new(&gpu, precision, shape).unwrap();
            let plans = format!("{attention:?}");
            for pass in ["Forward", "Backward"] {
                assert!(plans.contains(&format!("{kind}{pass}")), "{plans}");
            }
        }
    }
}

#[test]
fn tiles_in_several_parts() {
    let Some(device) = device() else { return };
    // fp32 has none, and bf16 none so short.
    for precision in [Precision::Tf32, Precision::Bf16] {
        // Parts that a few queries see only, and several heads whose parts are done in any order.
        for (time, heads) in [(270, 1), (device.size(1152, 380), device.size(5, 1))] {
            let setup = Setup::new(&device.gpu(), precision, [1, time, heads, 64], 1.5);
            setup.check();
            assert!(setup.run() == setup.run(), "{precision}: the same bits again");
        }
    }
}

#[test]
fn heads_of_every_size() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        // Every size is a program that a machine without a GPU takes long to compile.
        let (usual, others) = if device.is_emulated {
            (vec![32, 80, 128], vec![7, 20, 40, 320])
        } else {
            (vec![32, 80, 96, 128], vec![1, 3, 4, 7, 8, 16, 20, 33, 40, 72, 144, 256, 320])
        };
        for head_size in usual {
            Setup::new(&device.gpu(), precision, [2, 70, 2, head_size], 1.5).check();
        }
        for head_size in others {
            Setup::new(&device.gpu(), precision, [1, 37, 2, head_size], 1.5).check();
        }
    }
}

#[test]
fn many_windows_and_heads() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        // Enough of them that the tiles of a head come one after the other.
        Setup::new(&device.gpu(), precision, [device.size(64, 4), 40, 9, 32], 1.5).check();
    }
}

#[test]
fn large_scores_overflow_nothing() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        for largest in [30.0, 1e3] {
            let found = Setup::new(&device.gpu(), precision, [1, 100, 1, 64], largest).run();
            let largest_out = found.out.iter().fold(0f32, |most, x| most.max(x.abs()));
            assert!(found.out.iter().all(|x| x.is_finite()), "{precision} {largest}: out");
            assert!(largest_out <= largest * 1.01, "{precision}: a mean is below the largest");
            assert!(found.d_qkv.iter().all(|x| x.is_finite()), "{precision} {largest}: d_qkv");
        }
        Setup::new(&device.gpu(), precision, [1, 70, 1, 64], 8.0).check();
    }
}

#[test]
fn a_later_token_changes_nothing_before_it() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        let time = 90;
        let mut setup = Setup::new(&device.gpu(), precision, [1, time, 2, 64], 1.5);
        let channels = setup.shape.channels();
        for token in [1, 40, 64, 89] {
            // No later output counts, so that no gradient flows back from there either.
            setup.d_out[token * channels..].fill(0.0);
            let before = setup.run();
            for number in &mut setup.qkv[token * 3 * channels..] {
                *number = 3.0 - *number;
            }
            let after = setup.run();
            let name = format!("{precision} token {token}");
            let rows = ..token * channels;
            assert!(before.out[rows] == after.out[rows], "{name}: an earlier output changed");
            assert!(before.out[token * channels..] != after.out[token * channels..], "{name}");
            let (earlier, later) = after.d_qkv.split_at(token * 3 * channels);
            assert!(before.d_qkv[..earlier.len()] == *earlier, "{name}: a gradient changed");
            assert!(later.iter().all(|&x| x == 0.0), "{name}: a gradient from nowhere");
            setup.d_out = noise(setup.d_out.len(), 5, 1.0);
        }
    }
}

#[test]
fn the_same_bits_again_and_in_a_recording() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        let setup = Setup::new(&device.gpu(), precision, [2, 150, 3, 64], 1.5);
        let first = setup.run();
        assert!(first == setup.run(), "{precision}: other bits");
        assert!(first == recorded(&setup), "{precision}: other bits in a recording");
    }
}

/// Both passes, recorded and then replayed twice.
fn recorded(setup: &Setup) -> Found {
    let (gpu, shape) = (&setup.gpu, setup.shape);
    let length = shape.rows() * shape.channels();
    let activations = |numbers: &[f32]| Activations::of(gpu, setup.precision, numbers).unwrap();
    let (qkv, d_out) = (activations(&setup.qkv), activations(&setup.d_out));
    let (mut out, mut d_qkv) =
        (activations(&vec![0.0; length]), activations(&vec![0.0; 3 * length]));
    let mut statistics: Buffer<f32> = gpu.zeros(2 * shape.rows() * shape.heads).unwrap();
    let mut workspace = gpu.zeros(Attention::workspace_length(shape)).unwrap();
    let graph = gpu.record(|| {
        setup.attention.forward(&mut out, &mut statistics, &qkv, &mut workspace)?;
        setup.attention.backward(&mut d_qkv, &d_out, &out, &qkv, &statistics, &mut workspace)
    });
    let graph = graph.unwrap();
    graph.replay().unwrap();
    graph.replay().unwrap();
    Found { out: out.to_vec().unwrap(), d_qkv: d_qkv.to_vec().unwrap() }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let shape = AttentionShape { batch: 1, time: 4, heads: 1, head_size: 64 };
    let attention = Attention::new(&gpu, Precision::Bf16, shape).unwrap();
    let activations = |precision, length| Activations::zeros(&gpu, precision, length).unwrap();
    let mut statistics = gpu.zeros(8).unwrap();
    let mut workspace = gpu.zeros(Attention::workspace_length(shape)).unwrap();
    let mut forward = |precision, length| {
        let qkv = activations(Precision::Bf16, 3 * 4 * 64);
        let mut out = activations(precision, length);
        attention.forward(&mut out, &mut statistics, &qkv, &mut workspace)
    };
    assert_eq!(forward(Precision::Bf16, 4 * 64), Ok(()));
    let error = forward(Precision::Fp32, 4 * 64).unwrap_err();
    assert!(matches!(error, Error::OtherType { .. }), "{error}");
    let error = forward(Precision::Bf16, 4 * 64 - 1).unwrap_err();
    assert!(matches!(error, Error::Length { .. }), "{error}");
    let large = AttentionShape { head_size: 1000, ..shape };
    let error = Attention::new(&gpu, Precision::Fp32, large).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn whoever_takes_a_task_finds_the_same() {
    let Some(device) = device() else { return };
    let (gpu, windows) = (device.gpu(), device.size(64, 3));
    for precision in [Precision::Bf16, Precision::Tf32] {
        // So many that blocks take tasks; the last heads', the longest of all come first.
        for (heads, time) in [(5, 150), (device.size(16, 3), device.size(520, 270))] {
            let mut setup = Setup::new(&gpu, precision, [windows, time, heads, 64], 1.5);
            let taken = setup.run();
            for _ in 0..3 {
                // A count that is not 0 again would leave tasks undone.
                assert!(setup.run() == taken, "{precision}: other bits");
            }
            assert!(recorded(&setup) == taken, "{precision}: other bits in a recording");
            let fixed = Attention::in_fixed_turns(&gpu, precision, setup.shape).unwrap();
            setup.attention = fixed;
            assert!(setup.run() == taken, "{precision}: other bits in fixed turns");
        }
    }
}
