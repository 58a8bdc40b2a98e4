//! The network on CUDA, on a GPU or on the emulated device: against the CPU in f64, in every
//! precision; and what holds bit for bit.
//!
//! Bounds. In f32 a sum of n products errs by about sqrt(n) 2^-24 of its size, and a few dozen such
//! sums follow one another; in tf32 every factor is rounded at 2^-11 and in bf16 everything that is
//! stored at 2^-9, with sqrt as many of them adding up.

use gpu_kernels::{Buffer, Precision, Products};
use model::ops::{Device, GatherShape, Loss};
use model::{Batch, Config, Cpu, Cuda, Decoder, Gpt, IGNORED, Layout, Purpose};

use crate::emulator::{TestDevice, device};
use crate::samples::{self, Samples, relative_distance};

/// A device for the network; without a GPU there is no cuBLASLt to call, and with `OWN_KERNELS=1` there is nobody else's kernel,
/// so that a tool which looks at all of them has an end.
fn cuda(device: &TestDevice, precision: Precision) -> Cuda {
    let gpu = device.gpu();
    let products = if device.is_emulated {
        Products::without_library(precision)
    } else if std::env::var("OWN_KERNELS").is_ok_and(|value| value == "1") {
        Products::without_library(precision).preferring_tiles()
    } else {
        Products::new(&gpu, precision)
    };
    Cuda::with_products(&gpu, products).unwrap()
}

/// A network, its parameters and a batch.
struct Case {
    config: Config,
    batch: Batch,
    parameters: Vec<f32>,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    loss_scale: f32,
}

/// What comes out of a pass.
struct Outcome {
    nats: f64,
    losses: Vec<f32>,
    logits: Vec<f32>,
    gradients: Vec<f32>,
}

impl Case {
    fn new(dimensions: [usize; 5], rows: usize, time: usize) -> Case {
        let config = samples::config(dimensions);
        let mut samples = Samples::new(7);
        let tokens = samples.ids(rows * time, config.vocabulary());
        let mut targets = samples.ids(rows * time, config.vocabulary());
        for target in targets.iter_mut().skip(3).step_by(11) {
            *target = IGNORED;
        }
        let counted = targets.iter().filter(|&&target| target != IGNORED).count();
        let mut parameters = Layout::new(config).initial(5);
        let noise: Vec<f32> = samples.vector(parameters.len(), 0.02);
        parameters.iter_mut().zip(noise).for_each(|(parameter, noise)| *parameter += noise);
        let batch = Batch { rows, time };
        Case { config, batch, parameters, tokens, targets, loss_scale: 1.0 / counted as f32 }
    }

    fn run<D: model::ops::Operations>(&self, device: D, accumulates: bool) -> Outcome {
        self.run_for(device, accumulates, Purpose::Training)
    }

    fn run_for<D: model::ops::Operations>(
        &self,
        device: D,
        accumulates: bool,
        purpose: Purpose,
    ) -> Outcome {
        let mut parameters = device.floats(self.parameters.len()).unwrap();
        device.upload(&mut parameters, &self.parameters).unwrap();
        let mut gradients = device.floats(self.parameters.len()).unwrap();
        let mut host = vec![f32::NAN; self.parameters.len()];
        device.upload(&mut gradients, &host).unwrap();
        let mut gpt = Gpt::new(device, self.config, self.batch, purpose).unwrap();
        gpt.upload(&self.tokens, &self.targets, self.loss_scale).unwrap();
        gpt.forward_backward(&parameters, &mut gradients, false).unwrap();
        if accumulates {
            gpt.forward_backward(&parameters, &mut gradients, true).unwrap();
        }
        let rows = self.batch.tokens();
        let logits = gpt.logits(&parameters, 0..rows).unwrap();
        let mut losses = vec![f32::NAN; rows];
        gpt.token_losses(&mut losses).unwrap();
        gpt.device().download(&gradients, &mut host).unwrap();
        Outcome { nats: gpt.loss().unwrap().nats, losses, logits, gradients: host }
    }
}

/// Bounds on relative distances from f64: of losses, logits and gradients.
fn bounds(precision: Precision) -> [f64; 3] {
    match precision {
        Precision::Fp32 => [2e-6, 5e-6, 1e-5],
        Precision::Tf32 => [2e-3, 5e-3, 1e-2],
        Precision::Bf16 => [2e-3, 2e-2, 5e-2],
    }
}

#[track_caller]
fn check(case: &Case, device: &TestDevice, precision: Precision) {
    let expected = case.run(Cpu::<f64>::new(), false);
    let found = case.run(cuda(device, precision), false);
    let distances = [
        (found.nats - expected.nats).abs() / expected.nats,
        relative_distance(&found.logits, &expected.logits),
        relative_distance(&found.gradients, &expected.gradients),
    ];
    for ((what, distance), bound) in
        ["loss", "logits", "gradients"].into_iter().zip(distances).zip(bounds(precision))
    {
        assert!(distance < bound, "{precision} {:?}: {what}: {distance:e}", case.batch);
    }
    assert!(relative_distance(&found.losses, &expected.losses) < 10.0 * bounds(precision)[0]);
    let layout = Layout::new(case.config);
    for slot in layout.slots() {
        let (found, expected) = (&found.gradients[slot.range()], &expected.gradients[slot.range()]);
        let distance = relative_distance(found, expected);
        // A single tensor may have a gradient that nearly cancels, such as the bias of the keys.
        let bound = if slot.name.ends_with("c_attn.bias") { 1.0 } else { 5.0 };
        assert!(distance < bound * 5.0 * bounds(precision)[2], "{}: {distance:e}", slot.name);
    }
}

#[test]
fn a_small_network_agrees_with_f64() {
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        // Widths that fit wide accesses, and widths that do not; vocabularies likewise.
        for (dimensions, rows, time) in
            [([61, 24, 32, 2, 2], 2, 17), ([40, 70, 24, 1, 3], 1, 70), ([13, 9, 15, 2, 3], 3, 5)]
        {
            check(&Case::new(dimensions, rows, time), device, precision);
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn two_runs_give_the_same_bits() {
    let Some(device) = device() else { return };
    let large = device.size(1, 0) == 1;
    for precision in Precision::ALL {
        let mut cases = vec![Case::new([61, 24, 32, 2, 2], 2, 17)];
        if large {
            cases.push(Case::new([12_096, 1152, 320, 6, 5], 1, 1152));
        }
        for case in cases {
            let run = || case.run(cuda(device, precision), true);
            let (one, other) = (run(), run());
            assert_eq!(one.nats.to_bits(), other.nats.to_bits());
            assert_eq!(bits(&one.losses), bits(&other.losses));
            assert_eq!(bits(&one.logits), bits(&other.logits));
            assert!(bits(&one.gradients) == bits(&other.gradients), "{precision}: gradients");
        }
    }
}

/// Activations that are computed once more are the same ones.
#[test]
fn recomputation_changes_no_bit() {
    let case = Case::new([61, 24, 32, 3, 2], 2, 17);
    let check = |kept: Outcome, again: Outcome| {
        assert_eq!(again.nats.to_bits(), kept.nats.to_bits());
        assert_eq!(bits(&again.logits), bits(&kept.logits));
        assert!(bits(&again.gradients) == bits(&kept.gradients), "gradients");
    };
    let cpu = || Cpu::<f32>::new();
    check(case.run(cpu(), true), case.run_for(cpu(), true, Purpose::TrainingRecomputed));
    let Some(device) = device() else { return };
    for precision in Precision::ALL {
        let cuda = || cuda(device, precision);
        check(case.run(cuda(), true), case.run_for(cuda(), true, Purpose::TrainingRecomputed));
    }
}

#[test]
fn gradients_add_up() {
    let Some(device) = device() else { return };
    let case = Case::new([61, 24, 32, 2, 2], 2, 17);
    for precision in Precision::ALL {
        let once = case.run(cuda(device, precision), false);
        let twice = case.run(cuda(device, precision), true);
        let doubled: Vec<f32> = once.gradients.iter().map(|gradient| 2.0 * gradient).collect();
        let distance = relative_distance(&twice.gradients, &doubled);
        assert!(distance < 1e-6, "{precision}: {distance:e}");
    }
}

/// A step that was recorded for one batch serves the next one, by itself or within the recording of
/// a caller.
#[test]
fn replays_read_what_changes_from_buffers() {
    let Some(device) = device() else { return };
    let case = Case::new([61, 24, 32, 2, 2], 2, 17);
    let other = {
        let mut other = Case::new([61, 24, 32, 2, 2], 2, 17);
        other.tokens.reverse();
        other.targets.rotate_left(5);
        other.parameters.iter_mut().for_each(|parameter| *parameter *= 1.25);
        other
    };
    for precision in Precision::ALL {
        let expected = other.run(cuda(device, precision), false);
        for is_nested in [false, true] {
            let cuda = cuda(device, precision);
            let mut parameters = cuda.gpu().upload(&case.parameters).unwrap();
            let mut gradients = cuda.gpu().zeros::<f32>(parameters.len()).unwrap();
            let mut gpt =
                Gpt::new(cuda.clone(), case.config, case.batch, Purpose::Training).unwrap();
            gpt.upload(&case.tokens, &case.targets, case.loss_scale).unwrap();
            cuda.reserve_parameters(&parameters).unwrap();
            let mut outer = None;
            let mut step = |gpt: &mut Gpt<Cuda>, parameters: &_, gradients: &mut _| {
                if is_nested {
                    let step = || gpt.forward_backward(parameters, gradients, false);
                    cuda.record(&mut outer, step).unwrap();
                } else {
                    gpt.forward_backward(parameters, gradients, false).unwrap();
                }
            };
            step(&mut gpt, &parameters, &mut gradients);
            parameters.upload(&other.parameters).unwrap();
            gpt.upload(&other.tokens, &other.targets, other.loss_scale).unwrap();
            step(&mut gpt, &parameters, &mut gradients);
            let found = gradients.to_vec().unwrap();
            assert!(bits(&found) == bits(&expected.gradients), "{precision}, {is_nested}");
            assert_eq!(gpt.loss().unwrap().nats.to_bits(), expected.nats.to_bits());
        }
    }
}

#[test]
fn evaluation_gives_the_bits_of_training() {
    let Some(device) = device() else { return };
    let case = Case::new([61, 24, 32, 3, 2], 2, 17);
    for precision in Precision::ALL {
        let trained = case.run(cuda(device, precision), false);
        let cuda = cuda(device, precision);
        let parameters = cuda.gpu().upload(&case.parameters).unwrap();
        let mut gpt = Gpt::new(cuda, case.config, case.batch, Purpose::Evaluation).unwrap();
        gpt.upload(&case.tokens, &case.targets, 1.0).unwrap();
        gpt.forward(&parameters).unwrap();
        let mut losses = vec![f32::NAN; case.batch.tokens()];
        gpt.token_losses(&mut losses).unwrap();
        assert_eq!(bits(&losses), bits(&trained.losses));
        assert_eq!(gpt.loss().unwrap().nats.to_bits(), trained.nats.to_bits());
    }
}

#[test]
fn later_tokens_do_not_reach_earlier_logits() {
    let Some(device) = device() else { return };
    let mut case = Case::new([61, 24, 32, 2, 2], 1, 20);
    for precision in Precision::ALL {
        let before = case.run(cuda(device, precision), false);
        case.tokens[13] = (case.tokens[13] + 1) % 61;
        let after = case.run(cuda(device, precision), false);
        assert_eq!(bits(&before.logits[..13 * 61]), bits(&after.logits[..13 * 61]));
        assert_ne!(bits(&before.logits[13 * 61..]), bits(&after.logits[13 * 61..]));
    }
}

#[test]
fn the_sum_of_losses_is_the_cpus() {
    let Some(device) = device() else { return };
    let cuda = cuda(device, Precision::Bf16);
    for length in [1, 2, 3, 1000, 1024, 1025, 5000] {
        let losses: Vec<f32> = Samples::new(length as u64).vector(length, 12.0);
        let on_device = cuda.gpu().upload(&losses).unwrap();
        let expected = Cpu::<f32>::new().sum(&losses, length).unwrap();
        assert_eq!(cuda.sum(&on_device, length).unwrap().to_bits(), expected.to_bits());
    }
}

/// The rows of three updates, two of which are planned, out of ids from 100 to 159.
fn gathered<D: Device>(device: &D, read: fn(&D::Tokens) -> Vec<u32>) -> Vec<u32> {
    let ids: Vec<u32> = (100..160).collect();
    // An update and its three rows: one of them is empty, one reaches beyond the end.
    let schedule = [0, 0, 8, 20, 5, 3, 8, 40, 8, 0, 0, 55, 8];
    let mut on_device = device.tokens(ids.len()).unwrap();
    device.upload_tokens(&mut on_device, 0, &ids[..7]).unwrap();
    device.upload_tokens(&mut on_device, 7, &ids[7..]).unwrap();
    let mut plan = device.tokens(schedule.len()).unwrap();
    device.upload_tokens(&mut plan, 0, &schedule).unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        for (first_row, rows, advances) in [(0, 2, false), (2, 1, true)] {
            let mut tokens = device.tokens(rows * 8).unwrap();
            let mut targets = device.tokens(rows * 8).unwrap();
            let shape = GatherShape { rows, time: 8, first_row, update_rows: 3, advances };
            let batch = [&mut tokens, &mut targets];
            device.gather(batch, &on_device, &mut plan, shape).unwrap();
            all.extend(read(&tokens));
            all.extend(read(&targets));
        }
    }
    all
}

#[test]
fn rows_are_gathered_by_a_schedule() {
    let row = |start: u32, count: u32, missing: u32| -> Vec<u32> {
        (0..8).map(|t| if t < count { 100 + start + t } else { missing }).collect()
    };
    let mut expected = Vec::new();
    for [one, two, three] in
        [[(0, 8), (20, 5), (3, 8)], [(40, 8), (0, 0), (55, 4)], [(0, 0), (0, 0), (0, 0)]]
    {
        for rows in [&[one, two][..], &[three]] {
            expected.extend(rows.iter().flat_map(|&(start, count)| row(start, count, 0)));
            expected.extend(rows.iter().flat_map(|&(start, count)| row(start + 1, count, IGNORED)));
        }
    }
    assert_eq!(gathered(&Cpu::<f32>::new(), Vec::clone), expected);
    let Some(device) = device() else { return };
    let read = |tokens: &Buffer<u32>| tokens.to_vec().unwrap();
    assert_eq!(gathered(&cuda(device, Precision::Bf16), read), expected);
}

#[test]
fn the_decoder_computes_what_whole_windows_do() {
    let Some(device) = device() else { return };
    let case = Case::new([61, 24, 32, 2, 2], 1, 24);
    for precision in Precision::ALL {
        let whole = case.run(cuda(device, precision), false);
        let cuda = cuda(device, precision);
        let parameters = cuda.gpu().upload(&case.parameters).unwrap();
        let mut decoder = Decoder::new(cuda, case.config).unwrap();
        for (&token, expected) in case.tokens.iter().zip(whole.logits.chunks_exact(61)) {
            let found = decoder.step(&parameters, token).unwrap();
            let distance = relative_distance(found, expected);
            let bound = if precision == Precision::Fp32 { 1e-5 } else { 2e-2 };
            assert!(distance < bound, "{precision}: {distance:e}");
        }
    }
}

/// Heads of 64 channels and windows without padding, for which a device may have kernels of everything that lies
/// between two attentions: a single block, and the first, an inner and the last one of several.
#[test]
fn linked_blocks_agree_with_f64() {
    let Some(device) = device() else { return };
    let mut shapes = vec![[61, 128, 64, 1, 1]];
    if !device.is_emulated {
        shapes.extend([[61, 128, 128, 3, 2], [300, 128, 320, 3, 5]]);
    }
    for dimensions in shapes {
        let case = Case::new(dimensions, 1, 128);
        for precision in Precision::ALL {
            check(&case, device, precision);
        }
    }
}

/// The shape that matters, with logits, loss and gradients within what is promised of them.
#[test]
fn reference_12m_agrees_with_f64() {
    let Some(device) = device() else { return };
    // On the emulated device a part of it: its width and heads, and a vocabulary beyond one tile.
    let (dimensions, time) = if device.is_emulated {
        ([300, 96, 320, 1, 5], 70)
    } else {
        ([12_096, 1152, 320, 6, 5], 1152)
    };
    let case = Case::new(dimensions, 1, time);
    for precision in Precision::ALL {
        check(&case, device, precision);
    }
}

#[test]
fn a_config_of_any_width() {
    let Some(device) = device() else { return };
    for (dimensions, rows, time) in [([50, 8, 7, 1, 7], 1, 1), ([9, 33, 20, 1, 5], 2, 33)] {
        for precision in Precision::ALL {
            check(&Case::new(dimensions, rows, time), device, precision);
        }
    }
}
