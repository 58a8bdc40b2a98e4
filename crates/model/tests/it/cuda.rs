//! The network on CUDA, on a GPU or on the emulated device: against the CPU in f64, in every
//! precision; and what holds bit for bit.
//!
//! Bounds. In f32 a sum of n products errs by about sqrt(n) 2^-24 of its size, and a few dozen such
//! sums follow one another; in tf32 every factor is rounded at 2^-11 and in bf16 everything that is
//! stored at 2^-9, with sqrt as many of them adding up.

use gpu_kernels::{Precision, Products};
use model::{Batch, Config, Cpu, Cuda, Gpt, IGNORED, Layout, Purpose};

use crate::emulator::{TestDevice, device};
use crate::samples::{self, Samples, relative_distance};

/// A device for the network; without a GPU there is no cuBLASLt to call.
fn cuda(device: &TestDevice, precision: Precision) -> Cuda {
    let gpu = device.gpu();
    let products = if device.is_emulated {
        Products::without_library(precision)
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
        let mut parameters = device.floats(self.parameters.len()).unwrap();
        device.upload(&mut parameters, &self.parameters).unwrap();
        let mut gradients = device.floats(self.parameters.len()).unwrap();
        let mut host = vec![f32::NAN; self.parameters.len()];
        device.upload(&mut gradients, &host).unwrap();
        let mut gpt = Gpt::new(device, self.config, self.batch, Purpose::Training).unwrap();
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
    println!("{precision} {:?}: {distances:?}", case.batch);
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
