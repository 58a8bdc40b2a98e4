//! Rounding to nearest against the f64 definition: every tie and its neighbours,
//! all exponents of f32, dense ranges whole, zeros and what is not finite.

use formats::{Bias, NumberFormat};

use crate::definition::{Definition, lanes};

/// Both signs of `magnitude` round as the definition says.
#[track_caller]
fn check(number: NumberFormat, bias: Bias, definition: Definition, magnitude: f32) {
    let (code, saturated) = definition.encode(magnitude.into());
    let found = number.encode(magnitude, bias);
    assert_eq!(
        (found.code, found.saturated),
        (code, saturated),
        "{number:?} bias {bias} value {magnitude:e}"
    );
    if number.has_sign() {
        let found = number.encode(-magnitude, bias);
        assert_eq!((found.code, found.saturated), (code | 0x8000, saturated), "-{magnitude:e}");
    }
}

#[test]
fn every_tie_and_its_neighbours() {
    for (number, bias, definition) in lanes() {
        for code in 0..=definition.code_max {
            // Above the largest code lies one tie more: where saturation begins.
            let middle = (definition.decode(code) + definition.decode(code + 1)) / 2.0;
            let tie = middle as f32;
            assert_eq!(f64::from(tie), middle, "every tie is an f32");
            check(number, bias, definition, tie);
            check(number, bias, definition, tie.next_down());
            check(number, bias, definition, tie.next_up());

            let even = code + code % 2;
            let expected = (even.min(definition.code_max), even > definition.code_max);
            let found = number.encode(tie, bias);
            assert_eq!((found.code, found.saturated), expected, "tie above {code:#06x}");
        }
    }
}

#[test]
fn all_exponents_of_f32() {
    for (number, bias, definition) in lanes() {
        for exponent in 0..255u32 {
            for fraction in (0..1 << 23).step_by((1 << 13) - 1) {
                check(number, bias, definition, f32::from_bits(exponent << 23 | fraction));
            }
        }
    }
}

#[test]
fn every_f32_around_the_borders() {
    let of_interest = [Bias::DEFAULT, Bias::MAX];
    for (number, bias, definition) in lanes() {
        if !of_interest.contains(&bias) {
            continue;
        }
        // The last binade of subnormals with the first of normals, and the last
        // of normals with the first that saturates.
        let borders = [number.smallest_normal(bias), number.largest(bias) * 1.001];
        for border in borders {
            let exponent = border.to_bits() >> 23;
            for bits in (exponent - 1) << 23..(exponent + 1) << 23 {
                let magnitude = f32::from_bits(bits);
                let (code, saturated) = definition.encode(magnitude.into());
                let found = number.encode(magnitude, bias);
                assert!(
                    found.code == code && found.saturated == saturated,
                    "{number:?} bias {bias} value {magnitude:e}: expected {code:#x}, found {found:?}"
                );
            }
        }
    }
}

#[test]
fn zeros_keep_their_sign_where_there_is_one() {
    for (number, bias, _) in lanes() {
        let negative = if number.has_sign() { 0x8000 } else { 0 };
        assert_eq!(number.encode(0.0, bias).code, 0);
        assert_eq!(number.encode(-0.0, bias).code, negative);
        assert_eq!(number.encode(-f32::from_bits(1), bias).code, negative);
    }
}

#[test]
fn what_is_not_finite_saturates() {
    for (number, bias, definition) in lanes() {
        for bits in [0x7F80_0000, 0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF] {
            let rounded = number.encode(f32::from_bits(bits), bias);
            assert_eq!((rounded.code, rounded.saturated), (definition.code_max, true));
        }
    }
}

#[test]
fn finite_binary16_results_agree_with_the_half_crate() {
    for bits in (0..f32::INFINITY.to_bits()).step_by(997) {
        let theirs = half::f16::from_f32(f32::from_bits(bits));
        let ours = NumberFormat::Binary16.encode(f32::from_bits(bits), Bias::DEFAULT);
        assert_eq!(ours.saturated, theirs.is_infinite());
        if theirs.is_finite() {
            assert_eq!(ours.code, u32::from(theirs.to_bits()));
        }
    }
}
