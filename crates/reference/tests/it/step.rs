//! The rules of a whole step: formats, clipping, biases, what is not finite.

use formats::{Bias, Format};
use reference::adamw::update_f32;
use reference::{Hyperparameters, Location, Model, Parameter, Report, Scalars, State, Tensor};

const HYPERPARAMETERS: Hyperparameters =
    Hyperparameters { learning_rate: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

fn tensor(format: Format, parameters: &[f32]) -> Tensor {
    Tensor::new(parameters.to_vec(), format, Some(Bias::DEFAULT), HYPERPARAMETERS)
}

fn model(tensors: Vec<Tensor>) -> Model {
    Model { tensors, seed: 5, clip_norm: None, skip_nonfinite: false, maps: None, written: 0 }
}

#[test]
fn fp32_is_the_update_itself() {
    let mut model = model(vec![tensor(Format::Fp32, &[0.5, -0.25])]);
    let mut expected = [0.5f32, -0.25].map(|p| Parameter { p, m: 0.0, v: 0.0 });
    for update in 1..=5 {
        let gradients = [0.01, -0.3];
        model.step(update, &[&gradients]);
        for (state, gradient) in expected.iter_mut().zip(gradients) {
            *state = update_f32(Scalars::at(HYPERPARAMETERS, update), *state, gradient);
        }
    }
    assert_eq!(model.tensors[0].parameters, expected.map(|state| state.p));
    assert_eq!(model.tensors[0].state, State::F32(expected.map(|s| [s.m, s.v]).to_vec()));
}

#[test]
fn every_format_starts_alike() {
    // The first update reads a zero state, so its result is the same in all.
    for format in Format::ALL {
        let mut model = model(vec![tensor(format, &[0.5, -0.25, 0.0])]);
        let report = model.step(1, &[&[0.01, -0.3, 0.0]]);
        let expected = [(0.5, 0.01), (-0.25, -0.3), (0.0, 0.0)].map(|(p, g)| {
            update_f32(Scalars::at(HYPERPARAMETERS, 1), Parameter { p, m: 0.0, v: 0.0 }, g).p
        });
        assert_eq!(model.tensors[0].parameters, expected, "{format}");
        assert_eq!((report.nonfinite, report.saturated_m, report.saturated_r), (0, 0, 0));
    }
}

#[test]
fn packed_formats_follow_fp32() {
    for format in [Format::Fp16, Format::E4, Format::E4s] {
        let start = vec![0.1f32; 500];
        let mut exact = model(vec![tensor(Format::Fp32, &start)]);
        let mut packed = model(vec![tensor(format, &start)]);
        for update in 1..=50u32 {
            let gradient: Vec<f32> = (0..500u32)
                .map(|i| {
                    let word = formats::counter_hash::mix(update * 500 + i);
                    (word as f32 / 2f32.powi(31) - 1.0) * 1e-2
                })
                .collect();
            exact.step(update.into(), &[&gradient]);
            packed.step(update.into(), &[&gradient]);
        }
        let pairs = exact.tensors[0].parameters.iter().zip(&packed.tensors[0].parameters);
        let (mut error, mut moved) = (0.0, 0.0);
        for (exact, packed) in pairs {
            error += (exact - packed).powi(2);
            moved += (exact - 0.1).powi(2);
        }
        let relative = (error / moved).sqrt();
        assert!(relative < 2e-3, "{format} differs by {relative:e} of the way");
    }
}

#[test]
fn clipping_scales_the_gradient_first() {
    let gradients = [3.0f32, -4.0];
    let mut clipped =
        Model { clip_norm: Some(1.0), ..model(vec![tensor(Format::E4, &[1.0, 1.0])]) };
    let mut scaled = model(vec![tensor(Format::E4, &[1.0, 1.0])]);
    let report = clipped.step(1, &[&gradients]);
    assert_eq!((report.gradient_norm, report.clip_scale), (5.0, 0.2));
    scaled.step(1, &[&gradients.map(|g| g * 0.2)]);
    assert_eq!(clipped.tensors[0].parameters, scaled.tensors[0].parameters);
    assert_eq!(clipped.tensors[0].state, scaled.tensors[0].state);

    let report = clipped.step(2, &[&[0.3, 0.4]]);
    assert_eq!(report.clip_scale, 1.0, "a short gradient is left alone");
}

#[test]
fn saturation_is_counted_by_lane() {
    let mut model = model(vec![tensor(Format::E4, &[0.0; 3])]);
    // m = 0.1 g and r = sqrt(0.05) g = 0.22 g, against a largest code just under 1.
    let report = model.step(1, &[&[1.0, 6.0, -20.0]]);
    assert_eq!((report.saturated_m, report.saturated_r), (1, 2));
}

#[test]
fn elements_that_are_not_finite_are_left_alone() {
    for format in Format::ALL {
        let start = [0.5, f32::INFINITY, 0.5, 0.5, f32::MAX];
        let mut model = model(vec![tensor(format, &[0.5]), tensor(format, &start)]);
        model.step(1, &[&[0.1], &[0.1, 0.1, 0.1, 0.1, 0.1]]);
        let before = model.clone();
        let report = model.step(2, &[&[0.1], &[0.1, 0.1, f32::NAN, f32::NEG_INFINITY, -1e30]]);
        let Report { nonfinite, first_nonfinite, skipped, .. } = report;
        // -1e30 squared overflows v.
        assert_eq!((nonfinite, skipped), (4, false));
        assert_eq!(first_nonfinite, Some(Location { tensor: 1, index: 1 }));
        let (old, new) = (&before.tensors[1], &model.tensors[1]);
        assert_eq!(old.parameters[1..], new.parameters[1..]);
        assert_ne!(old.parameters[0], new.parameters[0]);
        match (&old.state, &new.state) {
            (State::F32(old), State::F32(new)) => assert_eq!(old[1..], new[1..]),
            (State::Words(old), State::Words(new)) => assert_eq!(old[1..], new[1..]),
            _ => unreachable!("a state keeps its kind"),
        }
    }
}

#[test]
fn skipping_drops_the_whole_update() {
    let mut automatic = tensor(Format::E4, &[0.5; 4]);
    automatic.bias = None;
    let tensors = vec![automatic, tensor(Format::Fp32, &[0.5; 4])];
    let mut model = Model { skip_nonfinite: true, ..model(tensors) };
    let report = model.step(1, &[&[0.1; 4], &[9.0, 0.1, f32::NAN, 0.1]]);
    assert!(report.skipped);
    assert_eq!((report.nonfinite, report.saturated_m), (1, 0));
    for tensor in &model.tensors {
        assert_eq!(tensor.parameters, [0.5; 4]);
    }
    assert_eq!(model.tensors[0].bias, None, "a dropped update chooses no bias");
    let report = model.step(2, &[&[0.1; 4], &[0.1; 4]]);
    assert!(!report.skipped);
    assert_ne!(model.tensors[1].parameters, [0.5; 4]);
}

#[test]
fn a_bias_is_chosen_at_the_first_gradient_that_is_not_zero() {
    let mut automatic = tensor(Format::E4, &[0.5; 3]);
    automatic.bias = None;
    let mut model = Model { clip_norm: Some(1.0), ..model(vec![automatic]) };
    model.step(1, &[&[0.0, -0.0, f32::NAN]]);
    assert_eq!(model.tensors[0].bias, None);
    model.step(2, &[&[0.02, -0.06, f32::INFINITY]]);
    // ceil(log2(0.06)) = -4
    assert_eq!(model.tensors[0].bias, Some(Bias::new(17).unwrap()));
    model.step(3, &[&[5.0, 5.0, 5.0]]);
    assert_eq!(model.tensors[0].bias, Some(Bias::new(17).unwrap()), "it is chosen once");
}
