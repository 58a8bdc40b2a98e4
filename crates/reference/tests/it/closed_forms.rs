//! Inputs whose result can be written down.

use reference::adamw::{power, update_f32, update_f64};
use reference::{Hyperparameters, Parameter, Scalars};

const BASE: Hyperparameters =
    Hyperparameters { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

#[track_caller]
fn close(found: f64, expected: f64, relative: f64) {
    let error = (found - expected).abs() / expected.abs();
    assert!(error <= relative, "expected {expected:e}, found {found:e}, error {error:e}");
}

#[test]
fn powers_are_products() {
    assert_eq!(power(0.9, 0), 1.0);
    assert_eq!(power(0.0, 0), 1.0);
    assert_eq!(power(0.0, 5), 0.0);
    assert_eq!(power(0.5, 60), 2f64.powi(-60));
    assert_eq!(power(0.9, 3), 0.9 * (0.9 * 0.9));
    for exponent in [1u64, 2, 7, 100, 1_000, 20_000] {
        close(power(0.999, exponent), (exponent as f64 * 0.999f64.ln()).exp(), 1e-11);
    }
    assert_eq!(power(0.999, 1 << 40), 0.0);
}

#[test]
fn the_first_step_is_the_sign_of_the_gradient() {
    // m / bc1 = g and sqrt(v / bc2) = |g|, so p moves by lr |g| / (|g| + eps).
    for gradient in [1e-3, -1e-3, 5.0, -7e-6] {
        let fresh = Parameter { p: 0.0, m: 0.0, v: 0.0 };
        let after = update_f64(BASE, 1, fresh, gradient);
        let expected = -1e-3 * gradient / (gradient.abs() + 1e-8);
        close(after.p, expected, 1e-13);

        let fresh = Parameter { p: 0.0, m: 0.0, v: 0.0 };
        let after = update_f32(Scalars::at(BASE, 1), fresh, gradient as f32);
        close(after.p.into(), expected, 1e-6);
    }
}

#[test]
fn a_constant_gradient_has_constant_corrected_moments() {
    // m = g (1 - beta1^t) and v = g^2 (1 - beta2^t) for every t.
    let gradient = 3e-4;
    let mut state = Parameter { p: 1.0, m: 0.0, v: 0.0 };
    for update in 1..=500u64 {
        state = update_f64(BASE, update, state, gradient);
        close(state.m, gradient * (1.0 - 0.9f64.powi(update as i32)), 1e-12);
        close(state.v, gradient * gradient * (1.0 - 0.999f64.powi(update as i32)), 1e-11);
        let moved = update as f64 * 1e-3 * gradient / (gradient + 1e-8);
        close(state.p, 1.0 - moved, 1e-11);
    }
}

#[test]
fn a_zero_gradient_moves_nothing_without_decay() {
    let mut state = Parameter { p: 0.123f32, m: 0.0, v: 0.0 };
    for update in 1..=100 {
        state = update_f32(Scalars::at(BASE, update), state, 0.0);
        assert_eq!(state, Parameter { p: 0.123, m: 0.0, v: 0.0 });
    }
}

#[test]
fn decay_alone_is_geometric() {
    let hyperparameters = Hyperparameters { weight_decay: 0.1, ..BASE };
    let mut state = Parameter { p: 2.0, m: 0.0, v: 0.0 };
    for update in 1..=1000u64 {
        state = update_f64(hyperparameters, update, state, 0.0);
        close(state.p, 2.0 * (1.0f64 - 1e-4).powi(update as i32), 1e-12);
    }
    let once =
        update_f32(Scalars::at(hyperparameters, 1), Parameter { p: 2.0, m: 0.0, v: 0.0 }, 0.0);
    assert_eq!(once.p, 2.0 * (1.0f64 - 1e-4) as f32);
}

#[test]
fn a_dead_first_moment_fades_by_beta1() {
    let mut state = Parameter { p: 0.0, m: 1.0, v: 1.0 };
    for update in 1..=50u64 {
        state = update_f64(BASE, update, state, 0.0);
        close(state.m, 0.9f64.powi(update as i32), 1e-13);
        close(state.v, 0.999f64.powi(update as i32), 1e-13);
    }
}

#[test]
fn scalars_are_rounded_once() {
    let scalars = Scalars::at(Hyperparameters { weight_decay: 0.1, ..BASE }, 3);
    let bias_correction1 = 1.0 - 0.9 * (0.9 * 0.9);
    let bias_correction2: f64 = 1.0 - 0.999 * (0.999 * 0.999);
    assert_eq!(scalars.one_minus_beta1, (1.0 - 0.9) as f32);
    assert_eq!(scalars.one_minus_beta2, (1.0 - 0.999) as f32);
    assert_eq!(scalars.decay, (1.0 - 1e-3 * 0.1) as f32);
    assert_eq!(scalars.step, (1e-3 / bias_correction1) as f32);
    assert_eq!(scalars.rms_scale, (1.0 / bias_correction2.sqrt()) as f32);
}
