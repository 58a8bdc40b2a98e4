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
