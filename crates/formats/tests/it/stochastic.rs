//! Stochastic rounding: between neighbours, with exactly the right odds.

use formats::{Bias, E4M11, E4M12};

use crate::definition::{BIASES, Definition};

/// Words whose upper 23 bits sweep evenly over all they can be.
fn even_sweep(log2_count: u32) -> impl Iterator<Item = u32> {
    (0..1u32 << log2_count).map(move |step| step << (32 - log2_count))
}

#[test]
fn a_representable_value_never_moves() {
    for bias in BIASES.map(|bias| Bias::new(bias).unwrap()) {
        let codec = E4M12::new(bias);
        for code in 0..=0xFFFF {
            for random in [0, 1, u32::MAX / 2, u32::MAX] {
                let rounded = codec.encode_stochastic(codec.decode(code), random);
                assert_eq!((rounded.code, rounded.saturated), (code, false));
            }
        }
    }
}

#[test]
fn the_share_of_upper_codes_is_the_distance_from_the_lower_one() {
    for bias in BIASES {
        let codec = E4M12::new(Bias::new(bias).unwrap());
        let definition = Definition::new(12, bias as i32, 0xFFFF);
        // Values at k/16 of the way between two codes: a sweep of 2^9 words
        // resolves that exactly.
        for code in (0..0xFFFF).step_by(331) {
            for sixteenths in 0..16u32 {
                let share = f64::from(sixteenths) / 16.0;
                let (below, above) = (definition.decode(code), definition.decode(code + 1));
                let value = (below + (above - below) * share) as f32;
                let ups = even_sweep(9)
                    .filter(|&random| {
                        let rounded = codec.encode_stochastic(value, random).code;
                        assert!(rounded == code || rounded == code + 1);
                        rounded == code + 1
                    })
                    .count();
                assert_eq!(ups as f64 / 512.0, share, "bias {bias} code {code:#06x}");
            }
        }
    }
}

#[test]
fn the_odds_are_exact_to_the_last_bit_of_the_value() {
    // One step is 2^(1 - B - 12). From one step up, an f32 lies on a grid of 2^-23
    // steps, which the upper 23 bits of a word resolve whole: all 2^23 are tried.
    let codec = E4M12::new(Bias::DEFAULT);
    let definition = Definition::new(12, 16, 0xFFFF);
    let step = codec.decode(1);
    for value in [step.next_up(), step * 1.7, (step * 2.0).next_down(), step * 3000.3, 0.3] {
        let (lower, rest) = definition.split(value.into());
        let ups = (0..1u32 << 23)
            .filter(|upper| codec.encode_stochastic(value, upper << 9).code > lower as u32)
            .count();
        assert_eq!(ups as f64, rest * f64::from(1 << 23), "value {value:e}");
    }
}

#[test]
fn it_clamps_beyond_the_largest_code_only() {
    let codec = E4M12::new(Bias::DEFAULT);
    let largest = codec.decode(0xFFFF);
    let above = codec.encode_stochastic(largest.next_up(), u32::MAX);
    assert_eq!((above.code, above.saturated), (0xFFFF, false), "rounds down to the largest");
    let above = codec.encode_stochastic(largest.next_up(), 0);
    assert_eq!((above.code, above.saturated), (0xFFFF, true), "rounds up, beyond it");
    for value in [1.0, 2.0, f32::MAX, f32::INFINITY, f32::NAN] {
        let rounded = codec.encode_stochastic(value, u32::MAX);
        assert_eq!((rounded.code, rounded.saturated), (0xFFFF, true), "{value}");
    }
}

#[test]
fn signed_numbers_round_as_their_magnitudes_do() {
    for bias in BIASES.map(|bias| Bias::new(bias).unwrap()) {
        let codec = E4M11::new(bias);
        for code in (0..0x7FFF).step_by(97) {
            let magnitude = (codec.decode(code) + codec.decode(code + 1)) / 2.0;
            for random in [0, 0x7FFF_FFFF, 0x8000_0000, u32::MAX] {
                let expected = codec.encode_stochastic(magnitude, random);
                assert_eq!(expected.code, if random < 1 << 31 { code + 1 } else { code });
                let up = codec.encode_signed_stochastic(magnitude, random);
                let down = codec.encode_signed_stochastic(-magnitude, random);
                assert_eq!((up.code, down.code), (expected.code, expected.code | 0x8000));
            }
        }
    }
    let codec = E4M11::new(Bias::DEFAULT);
    assert_eq!(codec.encode_signed_stochastic(-0.0, u32::MAX).code, 0x8000, "zero keeps its sign");
}
