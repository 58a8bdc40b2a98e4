//! f32 beside f64: one update from a common state, and many in a row.

use reference::adamw::{update_f32, update_f64};
use reference::compare::ulps_at;
use reference::{Hyperparameters, Parameter, Scalars};

const CASES: [Hyperparameters; 3] = [
    Hyperparameters { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 },
    Hyperparameters { learning_rate: 6e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 },
    Hyperparameters { learning_rate: 3e-2, beta1: 0.0, beta2: 0.5, eps: 1e-3, weight_decay: 1.0 },
];

/// A number in -1..1 from a counter.
fn noise(counter: u32) -> f64 {
    f64::from(formats::counter_hash::mix(counter)) / f64::from(1u32 << 31) - 1.0
}

fn widen(parameter: Parameter<f32>) -> Parameter<f64> {
    Parameter { p: parameter.p.into(), m: parameter.m.into(), v: parameter.v.into() }
}

/// Every scalar is off by at most half an ulp and every operation adds half an ulp
/// of its result. So v (two scalars, four roundings, terms that do not cancel)
/// stays within 3 ulps; m within 2 ulps of its largest term; p within three half
/// ulps of itself (decay, its product, the last addition) plus 8 ulps of its step.
#[test]
fn one_update_agrees_within_its_roundings() {
    for (case, hyperparameters) in CASES.into_iter().enumerate() {
        for counter in 0..20_000u32 {
            let noise = |k| noise(counter * 8 + k + case as u32);
            let gradient = (noise(1) * 10f64.powf(noise(2) * 3.0 - 3.0)) as f32;
            let m = (noise(3) * 10f64.powf(noise(4) * 3.0 - 3.0)) as f32;
            let v = (noise(5) * 10f64.powf(noise(6) * 3.0 - 3.0)).powi(2) as f32;
            let before = Parameter { p: noise(7) as f32, m, v };
            let update = u64::from(counter % 300 + 1);
            let found = update_f32(Scalars::at(hyperparameters, update), before, gradient);
            let exact = update_f64(hyperparameters, update, widen(before), gradient.into());

            let m_scale = m.abs().max(gradient.abs());
            assert!(ulps_at(m_scale, found.m, exact.m as f32) <= 2.0, "m of {before:?}");
            assert!(ulps_at(found.v, found.v, exact.v as f32) <= 3.0, "v of {before:?}");
            let step = step_at(m_scale, found, Scalars::at(hyperparameters, update));
            let p_scale = before.p.abs().max(found.p.abs());
            let bound = f64::from(f32::EPSILON) * (1.5 * f64::from(p_scale) + 8.0 * step);
            assert!((f64::from(found.p) - exact.p).abs() <= bound, "p of {before:?}");
        }
    }
}

/// How far p would move if m were as large as its largest term: where m cancels,
/// its absolute error keeps that size.
fn step_at(m_scale: f32, after: Parameter<f32>, scalars: Scalars) -> f64 {
    let denominator = after.v.sqrt() * scalars.rms_scale + scalars.eps;
    f64::from(scalars.step * m_scale / denominator)
}

#[test]
fn a_trajectory_stays_close() {
    let hyperparameters = CASES[0];
    let mut single = Parameter { p: 0.5f32, m: 0.0, v: 0.0 };
    let mut double = widen(single);
    for update in 1..=2000u64 {
        let gradient = (noise(update as u32) * 1e-2 + 3e-3) as f32;
        single = update_f32(Scalars::at(hyperparameters, update), single, gradient);
        double = update_f64(hyperparameters, update, double, gradient.into());
    }
    // 2000 roundings of p at half an ulp each would be 6e-5 if all went one way.
    assert!((f64::from(single.p) - double.p).abs() < 6e-5);
    assert!((f64::from(single.v) / double.v - 1.0).abs() < 1e-5);
}
