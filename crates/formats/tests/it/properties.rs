//! Laws of rounding on random values, biases and words.

use formats::{Bias, E4M12, NumberFormat};
use proptest::prelude::*;

fn any_number() -> impl Strategy<Value = NumberFormat> {
    prop_oneof![Just(NumberFormat::Binary16), Just(NumberFormat::E4M11), Just(NumberFormat::E4M12)]
}

fn any_bias() -> impl Strategy<Value = Bias> {
    (0..=40u32).prop_map(|bias| Bias::new(bias).unwrap())
}

/// Finite magnitudes, most of them in the range of some bias.
fn magnitude() -> impl Strategy<Value = f32> {
    prop_oneof![
        (60..150u32, 0..1u32 << 23).prop_map(|(exponent, f)| f32::from_bits(exponent << 23 | f)),
        (0..f32::INFINITY.to_bits()).prop_map(f32::from_bits),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn nothing_lies_nearer_than_the_code_chosen(
        number in any_number(), bias in any_bias(), value in magnitude()
    ) {
        let rounded = number.encode(value, bias);
        let error = |code| (f64::from(number.decode(code, bias)) - f64::from(value)).abs();
        if rounded.code > 0 {
            prop_assert!(error(rounded.code) <= error(rounded.code - 1));
        }
        if rounded.code < number.code_max() {
            prop_assert!(error(rounded.code) <= error(rounded.code + 1));
        }
    }

    #[test]
    fn rounding_keeps_order(
        number in any_number(), bias in any_bias(), a in magnitude(), b in magnitude()
    ) {
        let (small, large) = if a <= b { (a, b) } else { (b, a) };
        prop_assert!(number.encode(small, bias).code <= number.encode(large, bias).code);
    }

    #[test]
    fn stochastic_rounding_takes_one_of_the_two_neighbours(
        bias in any_bias(), value in magnitude(), random in any::<u32>()
    ) {
        let codec = E4M12::new(bias);
        let rounded = codec.encode_stochastic(value, random);
        let chosen = f64::from(codec.decode(rounded.code));
        let value = f64::from(value);
        if rounded.saturated {
            prop_assert!(value > chosen);
        } else if chosen > value {
            prop_assert!(f64::from(codec.decode(rounded.code - 1)) < value);
        } else {
            prop_assert!(rounded.code == 0xFFFF || f64::from(codec.decode(rounded.code + 1)) > value);
        }
    }

    #[test]
    fn another_bias_scales_by_a_power_of_two(
        bias in 0..=39u32, code in 0..=0xFFFFu32
    ) {
        let at = |bias| NumberFormat::E4M12.decode(code, Bias::new(bias).unwrap());
        prop_assert_eq!(at(bias), at(bias + 1) * 2.0);
    }
}
