//! The scalars of one update: computed in f64 on the host, rounded once to f32,
//! then the same on every device.

use crate::Group;

/// What the update of an element reads besides the element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scalars {
    pub(crate) beta1: f32,
    pub(crate) one_minus_beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) one_minus_beta2: f32,
    pub(crate) eps: f32,
    /// `1 - lr * weight_decay`
    pub(crate) decay: f32,
    /// `lr / (1 - beta1^t)`
    pub(crate) step: f32,
    /// `1 / sqrt(1 - beta2^t)`
    pub(crate) rms_scale: f32,
}

impl Scalars {
    /// The scalars of update `update`, counted from 1.
    pub(crate) fn at(group: &Group, update: u64, learning_rate: f64) -> Scalars {
        let [beta1, beta2] = group.betas;
        let bias_correction1 = 1.0 - power(beta1, update);
        let bias_correction2 = 1.0 - power(beta2, update);
        Scalars {
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            eps: group.eps as f32,
            decay: (1.0 - learning_rate * group.weight_decay) as f32,
            step: (learning_rate / bias_correction1) as f32,
            rms_scale: (1.0 / bias_correction2.sqrt()) as f32,
        }
    }
}

/// What formats of blocks read besides: bounds of moments, and the units of stored first moments.
///
/// No exact moments have `|m| > K sqrt(v)`, where at update t, by Cauchy and Schwarz,
///
/// ```text
/// K = (1 - beta1) / sqrt(1 - beta2) * sqrt(1 + rho + ... + rho^(t - 1))      rho = beta1^2 / beta2
/// ```
///
/// All bounds are a millionth larger, and 1e30 at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockScalars {
    /// K
    pub(crate) ratio_max: f32,
    /// K at the update before.
    pub(crate) ratio_max_before: f32,
    /// Its inverse; 0 at the first update.
    pub(crate) inverse_ratio_max_before: f32,
    /// The largest normalised update.
    pub(crate) normalised_max: f32,
    /// `1 / (1 - beta1^t)`
    pub(crate) inverse_correction: f32,
    /// `1 - beta1^t` at the update that wrote the state; 0 before the first.
    pub(crate) correction_before: f32,
    /// `1 / sqrt(1 - beta2^t)` at that update; 1 before the first.
    pub(crate) rms_scale_before: f32,
    /// The largest normalised update at that update; 0 before the first.
    pub(crate) normalised_max_before: f32,
}

impl BlockScalars {
    /// Those of update `update`, over a state that update `written` wrote, 0 for a fresh one.
    pub(crate) fn at(group: &Group, update: u64, written: u64) -> BlockScalars {
        let [beta1, beta2] = group.betas;
        let correction1 = |update| 1.0 - power(beta1, update);
        let root2 = |update| (1.0 - power(beta2, update)).sqrt();
        let (ratio, before) = (ratio_max(group.betas, update), ratio_max(group.betas, update - 1));
        let normalised_max =
            |update| ratio_max(group.betas, update) * root2(update) / correction1(update);
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

/// K after `updates` updates.
fn ratio_max([beta1, beta2]: [f64; 2], updates: u64) -> f64 {
    if updates == 0 {
        return 0.0;
    }
    let rho = if beta1 == 0.0 { 0.0 } else { beta1 * beta1 / beta2 };
    let is_one = (1.0 - rho).abs() < 1e-9;
    let sum = if is_one { updates as f64 } else { (1.0 - power(rho, updates)) / (1.0 - rho) };
    let ratio = (1.0 - beta1) * (sum / (1.0 - beta2)).sqrt() * (1.0 + 1e-6);
    // Not a number where both powers of an infinite rho are; then there is no bound.
    if ratio < 1e30 { ratio } else { 1e30 }
}

/// `base^exponent` by repeated squaring, lowest bit first: products round alike
/// everywhere, a library's power function need not.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut product, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            product *= square;
        }
        square *= square;
        rest >>= 1;
    }
    product
}
