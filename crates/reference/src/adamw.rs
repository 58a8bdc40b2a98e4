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

/// What block formats read besides: bounds of moments, and the units of stored first moments.
///
/// No exact moments have `|m| > K sqrt(v)`, where at update t, by Cauchy and Schwarz,
///
/// ```text
/// K = (1 - beta1) / sqrt(1 - beta2) * sqrt(1 + rho + ... + rho^(t - 1))      rho = beta1^2 / beta2
/// ```
///
/// All bounds are a millionth larger, and 1e30 at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockScalars {
    /// K at this update.
    pub ratio_max: f32,
    /// K at the update before it.
    pub ratio_max_before: f32,
    /// Its inverse; 0 at the first update.
    pub inverse_ratio_max_before: f32,
    /// The largest normalised update, `K (1 / rms_scale) / (1 - beta1^t)`.
    pub normalised_max: f32,
    /// `1 / (1 - beta1^t)`
    pub inverse_correction: f32,
    /// `1 - beta1^t` at the update that wrote the state; 0 before the first.
    pub correction_before: f32,
    /// `rms_scale` at that update; 1 before the first.
    pub rms_scale_before: f32,
    /// The largest normalised update at that update; 0 before the first.
    pub normalised_max_before: f32,
}

impl BlockScalars {
    /// Those of update `update`, over a state that update `written` wrote, 0 for a fresh one.
    #[must_use]
    pub fn at(hyperparameters: Hyperparameters, update: u64, written: u64) -> BlockScalars {
        let Hyperparameters { beta1, beta2, .. } = hyperparameters;
        let correction1 = |update| 1.0 - power(beta1, update);
        let root2 = |update| (1.0 - power(beta2, update)).sqrt();
        let ratio = ratio_max(beta1, beta2, update);
        let before = ratio_max(beta1, beta2, update - 1);
        let normalised_max =
            |update| ratio_max(beta1, beta2, update) * root2(update) / correction1(update);
        let is_fresh = written == 0;
        BlockScalars {
            ratio_max: ratio as f32,
            ratio_max_before: before as f32,
            inverse_ratio_max_before: if before > 0.0 { (1.0 / before) as f32 } else { 0.0 },
            normalised_max: normalised_max(update) as f32,
            inverse_correction: (1.0 / correction1(update)) as f32,
            correction_before: correction1(written) as f32,
            rms_scale_before: if is_fresh { 1.0 } else { (1.0 / root2(written)) as f32 },
            normalised_max_before: if is_fresh { 0.0 } else { normalised_max(written) as f32 },
        }
    }
}

/// K of [`BlockScalars`] after `updates` updates.
fn ratio_max(beta1: f64, beta2: f64, updates: u64) -> f64 {
    if updates == 0 {
        return 0.0;
    }
    let rho = if beta1 == 0.0 { 0.0 } else { beta1 * beta1 / beta2 };
    let sum = if (1.0 - rho).abs() < 1e-9 {
        updates as f64
    } else {
        (1.0 - power(rho, updates)) / (1.0 - rho)
    };
    let ratio = (1.0 - beta1) * (sum / (1.0 - beta2)).sqrt() * (1.0 + 1e-6);
    // Not a number where both powers of an infinite rho are; then there is no bound.
    if ratio < 1e30 { ratio } else { 1e30 }
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
