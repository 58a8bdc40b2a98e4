//! Every code of every 16-bit lane at several biases.

use formats::{Bias, NumberFormat};

use crate::definition::lanes;

#[test]
fn every_code_has_the_value_of_the_definition() {
    for (number, bias, definition) in lanes() {
        let magnitudes = 0..=definition.code_max;
        for code in magnitudes {
            let expected = definition.decode(code);
            let found = number.decode(code, bias);
            assert_eq!(f64::from(found), expected, "{number:?} bias {bias} code {code:#06x}");
            assert!(found.is_finite() && found.is_sign_positive());
            if number.has_sign() {
                let negative = number.decode(code | 0x8000, bias);
                assert_eq!(negative.to_bits(), (-found).to_bits(), "code {code:#06x}");
            }
        }
    }
}

#[test]
fn codes_ascend_with_their_values() {
    for (number, bias, definition) in lanes() {
        for code in 0..definition.code_max {
            assert!(number.decode(code, bias) < number.decode(code + 1, bias));
        }
    }
}

#[test]
fn every_finite_binary16_code_agrees_with_the_half_crate() {
    for code in 0..=u16::MAX {
        let theirs = half::f16::from_bits(code);
        if theirs.is_finite() {
            let ours = NumberFormat::Binary16.decode(code.into(), Bias::DEFAULT);
            assert_eq!(ours.to_bits(), theirs.to_f32().to_bits(), "code {code:#06x}");
        }
    }
}

#[test]
fn a_code_that_decodes_encodes_to_itself() {
    for (number, bias, definition) in lanes() {
        let codes = if number.has_sign() { 0..=0xFFFF } else { 0..=definition.code_max };
        for code in codes.filter(|code| code & 0x7FFF <= definition.code_max) {
            let rounded = number.encode(number.decode(code, bias), bias);
            assert_eq!((rounded.code, rounded.saturated), (code, false), "{number:?} {bias}");
        }
    }
}
