//! The bias: its limits, and the rule that chooses one.

use formats::Bias;

#[test]
fn zero_to_forty_and_nothing_else() {
    for bias in 0..=40 {
        assert_eq!(Bias::new(bias).unwrap().get(), bias);
    }
    for bias in [41, 127, u32::MAX] {
        let message = Bias::new(bias).unwrap_err().to_string();
        assert_eq!(message, format!("expected an exponent bias from 0 to 40, found {bias}"));
    }
    assert_eq!(Bias::default().get(), 16);
}

#[test]
fn the_rule_is_thirteen_less_the_rounded_up_logarithm() {
    for exponent in -149..=127i32 {
        let power = 2f64.powi(exponent) as f32;
        let expected =
            |log2_ceil: i32| Some(Bias::new((13 - log2_ceil).clamp(0, 40) as u32).unwrap());
        assert_eq!(Bias::for_max_gradient(power), expected(exponent));
        assert_eq!(Bias::for_max_gradient(-power), expected(exponent));
        if power.next_up().is_finite() {
            assert_eq!(Bias::for_max_gradient(power.next_up()), expected(exponent + 1));
        }
    }
    for nothing in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        assert_eq!(Bias::for_max_gradient(nothing), None);
    }
}

#[test]
fn the_rule_leaves_eight_times_the_first_gradient() {
    for gradient in [6.0e-2f32, 1.0e-3, 1.0, 7.5e-7] {
        let bias = Bias::for_max_gradient(gradient).unwrap();
        for number in formats::Format::E4.lanes().unwrap().map(|lane| lane.number) {
            let headroom = number.largest(bias) / gradient;
            assert!((7.99..16.0).contains(&headroom), "{headroom}");
        }
    }
}
