//! The automatic exponent bias.

use formats::{Bias, Format};
use optimizer::{AdamW, BiasChoice, Instructions, Options};

use crate::pair::{Setup, noise};

fn automatic(format: Format, lengths: &[usize]) -> Setup {
    let mut setup = Setup::of(format, lengths);
    setup.groups[0].bias = BiasChoice::Auto;
    setup
}

#[test]
fn each_tensor_chooses_by_its_own_first_gradient() {
    for format in [Format::E4, Format::E4s] {
        let setup = automatic(format, &[20_000, 5, 0, 1]);
        let mut pair = setup.build(Instructions::best());
        let mut gradients = noise(20_000, 1, 1e-3);
        gradients[19_999] = -0.06;
        gradients.extend([0.0, -0.0, f32::NAN, f32::INFINITY, 0.0]);
        gradients.push(1e-30);
        pair.step(1, &gradients);
        let chosen = |position| pair.optimizer.bias(position).map(Bias::get);
        assert_eq!((chosen(0), chosen(1), chosen(2), chosen(3)), (Some(17), None, None, Some(40)));

        let mut gradients = vec![1e3; 20_006];
        gradients[20_000..20_005].fill(-3.0);
        pair.step(2, &gradients);
        let chosen = |position| pair.optimizer.bias(position).map(Bias::get);
        assert_eq!((chosen(0), chosen(1)), (Some(17), Some(11)), "a bias is chosen once");
    }
}

#[test]
fn the_clipped_gradient_decides() {
    let mut setup = automatic(Format::E4, &[100]);
    setup.options = Options { clip_norm: Some(1.0), ..setup.options };
    let mut pair = setup.build(Instructions::best());
    pair.step(1, &vec![4.0; 100]);
    // Clipped to 0.1 each; ceil(log2(0.1)) = -3.
    assert_eq!(pair.optimizer.bias(0), Some(Bias::new(16).unwrap()));
}

#[test]
fn formats_without_a_bias_ignore_the_choice() {
    for format in [Format::Fp32, Format::Fp16] {
        let mut pair = automatic(format, &[100]).build(Instructions::best());
        pair.step(1, &noise(100, 1, 1e-3));
        assert_eq!(pair.optimizer.bias(0), None);
        assert_eq!(pair.optimizer.bias(99), None);
        assert!(!pair.optimizer.save().unwrap().metadata.contains_key("t0.bias"));
    }
}
