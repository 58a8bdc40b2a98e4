//! AdamW for one parameter and one update.
//!
//! ```text
//! m = beta1 m0 + (1 - beta1) g
//! v = beta2 v0 + (1 - beta2) g^2
//! p = p0 (1 - lr weight_decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//! ```
//!
//! [`update_f64`] is that text. [`update_f32`] is the same update in f32, every
//! operation rounded to nearest in one pinned order, which is what all devices
//! reproduce bit for bit. Storage formats, clipping and counters are in
//! [`step`](crate::step).

/// What stays the same over many updates; `learning_rate` follows a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyperparameters {
    /// How far a parameter moves per update, at most about.
    pub learning_rate: f64,
    /// The share of the first moment that survives an update.
    pub beta1: f64,
    /// The share of the second moment that survives an update.
    pub beta2: f64,
    /// What is added to the denominator.
    pub eps: f64,
    /// Decoupled decay: the share of a parameter lost per unit of learning rate.
    pub weight_decay: f64,
}

/// A parameter with its two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter<Real> {
    /// The parameter.
    pub p: Real,
    /// The first moment.
    pub m: Real,
    /// The second moment.
    pub v: Real,
}

/// What an f32 update reads besides its parameter: computed in f64 from the
/// hyperparameters and the update number, then rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalars {
    /// `beta1`
    pub beta1: f32,
    /// `1 - beta1`
    pub one_minus_beta1: f32,
    /// `beta2`
    pub beta2: f32,
    /// `1 - beta2`
    pub one_minus_beta2: f32,
    /// `eps`
    pub eps: f32,
    /// `1 - lr weight_decay`
    pub decay: f32,
    /// `lr / (1 - beta1^t)`
    pub step: f32,
    /// `1 / sqrt(1 - beta2^t)`, which corrects the bias of an RMS
    pub rms_scale: f32,
}

impl Scalars {
    /// The scalars of update `update`, counted from 1.
    #[must_use]
    pub fn at(hyperparameters: Hyperparameters, update: u64) -> Scalars {
        let Hyperparameters { learning_rate, beta1, beta2, eps, weight_decay } = hyperparameters;
        let bias_correction1 = 1.0 - power(beta1, update);
        let bias_correction2 = 1.0 - power(beta2, update);
        Scalars {
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            eps: eps as f32,
            decay: (1.0 - learning_rate * weight_decay) as f32,
            step: (learning_rate / bias_correction1) as f32,
            rms_scale: (1.0 / bias_correction2.sqrt()) as f32,
        }
    }
}

/// One update in f64, as a textbook has it. Updates count from 1.
#[must_use]
pub fn update_f64(
    hyperparameters: Hyperparameters,
    update: u64,
    before: Parameter<f64>,
    gradient: f64,
) -> Parameter<f64> {
    let Hyperparameters { learning_rate, beta1, beta2, eps, weight_decay } = hyperparameters;
    let m = beta1 * before.m + (1.0 - beta1) * gradient;
    let v = beta2 * before.v + (1.0 - beta2) * gradient * gradient;
    let m_corrected = m / (1.0 - power(beta1, update));
    let v_corrected = v / (1.0 - power(beta2, update));
    let decayed = before.p * (1.0 - learning_rate * weight_decay);
    let p = decayed - learning_rate * m_corrected / (v_corrected.sqrt() + eps);
    Parameter { p, m, v }
}

/// One update in f32: each line is one or two IEEE operations, each rounded to
/// nearest, with a fused multiply-add where one is written.
#[must_use]
pub fn update_f32(scalars: Scalars, before: Parameter<f32>, gradient: f32) -> Parameter<f32> {
    let s = scalars;
    let m = s.beta1.mul_add(before.m, s.one_minus_beta1 * gradient);
    let v = s.beta2.mul_add(before.v, (s.one_minus_beta2 * gradient) * gradient);
    let r = v.sqrt();
    let direction = m / r.mul_add(s.rms_scale, s.eps);
    let p = (-s.step).mul_add(direction, before.p * s.decay);
    Parameter { p, m, v }
}

/// `base^exponent` by repeated squaring, lowest bit of the exponent first.
///
/// Pinned because a library's power function may differ from machine to machine
/// in its last bit; products do not.
#[must_use]
pub fn power(base: f64, exponent: u64) -> f64 {
    let mut product = 1.0;
    let mut square = base;
    let mut rest = exponent;
    while rest > 0 {
        if rest % 2 == 1 {
            product *= square;
        }
        square *= square;
        rest /= 2;
    }
    product
}
