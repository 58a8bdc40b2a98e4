//! A coordinate whose gradient stops comes to rest, as in AdamW without rounding: a first moment that rounding keeps
//! from fading, over an RMS that fades on, would carry it away for ever.

use formats::{Bias, Format};
use reference::{Hyperparameters, Model, Tensor};

const ELEMENTS: usize = 64;
const WITH_GRADIENT: u64 = 200;
const WITHOUT: u64 = 20_000;
const RULE: Hyperparameters =
    Hyperparameters { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

/// How far the elements are, at most, from where they were when their gradients stopped, in learning rates.
fn drift(format: Format) -> f32 {
    let tensor = Tensor::new(vec![0.0; ELEMENTS], format, Some(Bias::DEFAULT), RULE);
    let mut model = Model {
        tensors: vec![tensor],
        seed: 1,
        clip_norm: None,
        skip_nonfinite: false,
        maps: None,
        written: 0,
    };
    let gradients: Vec<f32> = (0..ELEMENTS).map(|index| 1e-5 * (1.0 + index as f32)).collect();
    let none = vec![0.0; ELEMENTS];
    let mut stopped = Vec::new();
    for update in 1..=WITH_GRADIENT + WITHOUT {
        if update == WITH_GRADIENT + 1 {
            stopped = model.tensors[0].parameters.clone();
        }
        let gradients = if update <= WITH_GRADIENT { &gradients } else { &none };
        model.step(update, &[gradients]);
    }
    let moved =
        model.tensors[0].parameters.iter().zip(&stopped).map(|(at, from)| (at - from).abs());
    moved.fold(0.0, f32::max) / RULE.learning_rate as f32
}

#[test]
fn what_gets_no_gradient_any_more_comes_to_rest() {
    // m fades by b1, r hardly: m / r is near 1 where gradients stop, so that b1 / (1 - b1) learning rates follow.
    let exact = drift(Format::Fp32);
    assert!((8.0..10.0).contains(&exact), "{exact}");
    let e4s = drift(Format::E4s);
    assert!((exact - 1.0..exact + 1.0).contains(&e4s), "{e4s} against {exact}");
}

#[test]
fn rounded_to_nearest_it_creeps() {
    // Up to 4 steps of m, 2^-26 each, stay 4 steps when they become 3.6. An r of less than 1000 steps stays too, so
    // it is at least that of the smallest gradient.
    let r_min = 1e-5 * (1.0 - 0.999f32.powi(WITH_GRADIENT as i32)).sqrt();
    let creeping = 4.0 * 2f32.powi(-26) / r_min * WITHOUT as f32;
    let e4 = drift(Format::E4);
    assert!(e4 <= creeping * 1.01 + drift(Format::Fp32), "{e4} against {creeping}");
    assert!(e4 > creeping * 0.8, "the documented creeping of {creeping} became {e4}");
}
