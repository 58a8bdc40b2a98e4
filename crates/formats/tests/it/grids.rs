//! Codes of a few bits: grids of logarithms, the 2-bit and 4-bit first moments, packing, exact sums.

use formats::counter_hash::uniforms;
use formats::half_floats::{
    bf16_nearest, bf16_to_f32, binary16_above, binary16_below, binary16_nearest,
    binary16_next_above, binary16_next_below, binary16_to_f32,
};
use formats::one_q::{self, Extent, FRESH_ENDPOINT, Grid, ZERO_MAX};
use formats::published_random::{Place, PublishedStream};
use formats::ustate::{self, SQUARES_MAX, SquareSum};
use formats::{RandomStream, Rules, bit_stream, n4l4};
use proptest::prelude::*;

#[test]
fn every_16_bit_number_is_its_own_neighbour() {
    for bits in 0..=u16::MAX {
        let value = half::f16::from_bits(bits);
        if value.is_finite() {
            assert_eq!(binary16_to_f32(bits), value.to_f32());
            assert_eq!(binary16_nearest(value.to_f32()), bits);
            let number = value.to_f32();
            for near in [number.next_down(), number, number.next_up()] {
                assert!(binary16_to_f32(binary16_below(near)) <= near);
                if near.abs() < 65_504.0 {
                    assert!(binary16_to_f32(binary16_above(near)) >= near);
                }
            }
        }
        let wide = half::bf16::from_bits(bits);
        if !wide.is_nan() {
            assert_eq!(bf16_to_f32(bits), wide.to_f32());
            assert_eq!(bf16_nearest(wide.to_f32()), bits);
        }
    }
    assert_eq!(binary16_next_below(0), 0x8001);
    assert_eq!(binary16_next_above(0x8000), 1);
    assert_eq!(binary16_to_f32(FRESH_ENDPOINT), -69.0625);
    for x in [1.0f32, 1.003_906_2, 1.011_718_8, -3.2e-9] {
        assert_eq!(bf16_nearest(x), half::bf16::from_f32(x).to_bits());
    }
}

#[test]
fn a_stream_of_codes_is_little_endian() {
    for width in [2, 3, 4, 6, 8] {
        let codes: Vec<u32> =
            (0..64u32).map(|i| i.wrapping_mul(0x9E37_79B9) >> (32 - width)).collect();
        let mut stream = vec![0xFF; bit_stream::bytes(64, width) as usize];
        for (index, &code) in codes.iter().enumerate() {
            bit_stream::set(&mut stream, index, width, code);
        }
        for (index, &code) in codes.iter().enumerate() {
            assert_eq!(bit_stream::get(&stream, index, width), code);
            for bit in 0..width as usize {
                let place = index * width as usize + bit;
                assert_eq!(u32::from(stream[place / 8] >> (place % 8) & 1), code >> bit & 1);
            }
        }
    }
}

fn levels(endpoints: [u16; 2], bits: u32, rules: Rules) -> (Vec<f32>, bool) {
    let grid = Grid::new(endpoints, bits);
    ((0..1 << bits).map(|code| grid.value(code, rules)).collect(), grid.has_zero)
}

#[track_caller]
fn check_block(values: &[f32], bits: u32) {
    let rules = Rules::Repaired;
    let extent = values.iter().fold(Extent::NONE, |extent, &v| extent.with(v, rules));
    let (levels, has_zero) = levels(extent.endpoints(rules), bits, rules);
    assert!(levels.windows(2).all(|pair| pair[0] <= pair[1]), "{levels:?}");
    for &v in values {
        for uniform in [1e-6, 0.25, 0.5, 0.999_99] {
            let code = one_q::code(&levels, has_zero, v, uniform, rules);
            let stored = levels[code as usize];
            assert_eq!(stored == 0.0, v <= ZERO_MAX, "{v:e} became {stored:e}");
            if v > ZERO_MAX && v < 3e38 {
                // One of the two levels around v, but for the rounding of the lowest and highest.
                let next = levels.get(code as usize + 1).copied().unwrap_or(f32::INFINITY);
                assert!(stored <= v * 1.000_001 || levels[code as usize - 1] <= v * 1.000_001);
                assert!(next * 1.000_001 >= v, "{v:e} {stored:e} {next:e}");
            }
        }
    }
}

proptest! {
    #[test]
    fn numbers_land_beside_themselves(
        logs in prop::collection::vec(-28.0..38.0f32, 1..40),
        zeros in any::<u64>(),
        bits in prop::sample::select(vec![2u32, 3, 4, 6, 8]),
    ) {
        let values: Vec<f32> = logs
            .iter()
            .enumerate()
            .map(|(i, log)| if zeros >> i & 3 == 3 { 0.0 } else { 10f32.powf(*log) })
            .collect();
        check_block(&values, bits);
        check_block(&values[..1], bits);
        check_block(&[values[0]; 5], bits);
    }
}

#[test]
fn codes_of_v_have_no_bias() {
    // Forty thousand draws between levels that lie far apart.
    let values = [1e-9f32, 3.3e-8, 7.7e-6, 1e-4];
    let rules = Rules::Repaired;
    let extent = values.iter().fold(Extent::NONE, |extent, &v| extent.with(v, rules));
    let (levels, has_zero) = levels(extent.endpoints(rules), 2, rules);
    let stream = RandomStream::new(1, 2, 3, 0);
    for v in values {
        let mean = (0..10_000u32)
            .flat_map(|i| uniforms(stream.words_of_four(i)))
            .map(|uniform| one_q::code(&levels, has_zero, v, uniform, rules))
            .map(|code| f64::from(levels[code as usize]))
            .sum::<f64>()
            / 40_000.0;
        let spread = f64::from(levels[3] - levels[0]);
        assert!((mean - f64::from(v)).abs() < 4.0 * (f64::from(v) * spread / 40_000.0).sqrt());
    }
}

#[test]
fn a_block_with_dead_coordinates_spends_no_range_on_them() {
    let rules = Rules::Repaired;
    let live = [1e-8f32, 2e-8];
    let extent = |values: &[f32]| values.iter().fold(Extent::NONE, |e, &v| e.with(v, rules));
    let [lo, hi] = extent(&live).endpoints(rules);
    assert_eq!(extent(&[1e-8, 0.0, 2e-8]).endpoints(rules), [hi, lo]);
    assert_eq!(extent(&[0.0; 9]).endpoints(rules), [FRESH_ENDPOINT; 2]);
    let (levels, has_zero) = levels([hi, lo], 4, rules);
    assert!(has_zero && levels[0] == 0.0 && levels[1] <= 1e-8 && levels[1] > 0.99e-8);
    // A fresh block is one of zeros.
    let fresh = Grid::new([FRESH_ENDPOINT; 2], 4);
    assert_eq!(fresh.value(0, rules), 0.0);
    assert!((fresh.value(0, Rules::Published) - 1.015_2e-30).abs() < 1e-34);
}

#[test]
fn published_blocks_span_what_they_must() {
    let rules = Rules::Published;
    let ends = Extent::NONE.with(1e-4, rules).with(0.0, rules).endpoints(rules);
    assert_eq!(ends.map(binary16_to_f32), [-87.5, -9.203_125]);
    let constant = Extent::NONE.with(1e-4, rules).endpoints(rules);
    assert_eq!(constant.map(binary16_to_f32), [-9.210_937_5; 2]);
}

#[test]
fn exact_sums_have_no_order() {
    let stream = RandomStream::new(9, 0, 0, 0);
    let numbers: Vec<f32> = (0..5000u32)
        .map(|i| f32::from_bits(stream.word(i) % (141 << 23)))
        .filter(|x| x.is_finite())
        .collect();
    let forward = numbers.iter().fold(SquareSum::default(), |sum, &x| sum.with(x));
    let backward = numbers.iter().rev().fold(SquareSum::default(), |sum, &x| sum.with(x));
    let (left, right) = numbers.split_at(1234);
    let part = |part: &[f32]| part.iter().fold(SquareSum::default(), |sum, &x| sum.with(x));
    assert_eq!(forward, backward);
    assert_eq!(forward, part(left).plus(part(right)));
    let truth: f64 = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / numbers.len() as f64;
    let mean = forward.mean(numbers.len() as u64);
    // Each number is rounded to half of 2^-29 at most.
    assert!((mean - truth).abs() < 2f64.powi(-30), "{mean} {truth}");
    assert_eq!(SquareSum::default().with(-1.0).mean(1), 0.0);
    let largest = SquareSum::default().with(f32::INFINITY).with(f32::NAN).with(1e9);
    assert_eq!(largest.mean(3), f64::from(SQUARES_MAX));
    // Pieces of a thousand numbers fit 32 bits.
    assert!(largest.pieces.iter().all(|&sum| sum / 3 * 1000 < 1 << 32));
}

#[test]
fn codes_of_first_moments() {
    // Two bits: -1.5, -0.5, 0.5, 1.5 times the scale, clamped.
    for (distance, codes) in
        [(-9.0, [0, 0]), (-1.0, [1, 0]), (0.0, [2, 1]), (1.49, [3, 2]), (9.0, [3, 3])]
    {
        let found =
            [1.0 - 1e-6, 0.005].map(|u| ustate::code(distance * 0.7, ustate::inverse(0.7), u));
        assert_eq!(found, codes, "{distance}");
    }
    assert_eq!(ustate::code(5.0, ustate::inverse(0.0), 0.25), 1);
    // Four bits: -7 to 7, zero exactly zero.
    let inverse = n4l4::inverse_unit(n4l4::stored_unit(0.7, 7.3));
    let code = |q, dither| n4l4::multiple(n4l4::code(q, inverse, dither));
    for dither in [2f32.powi(-17), 1.0 - 2f32.powi(-17)] {
        assert_eq!(code(0.0, dither), 0.0);
        assert_eq!(code(9.0, dither), 7.0);
        assert_eq!(code(-9.0, dither), -7.0);
    }
    assert_eq!((code(0.15, 0.6), code(0.15, 0.4)), (2.0, 1.0));
    assert_eq!((code(-0.15, 0.6), code(-0.15, 0.4)), (-1.0, -2.0));
}

#[test]
fn a_unit_is_rounded_up_and_bounded() {
    assert_eq!((n4l4::stored_unit(1e-40, 7.3), n4l4::inverse_unit(0)), (0, 0.0));
    let unit = |absmax, ratio_max| bf16_to_f32(n4l4::stored_unit(absmax, ratio_max));
    assert_eq!(unit(7.0, 7.3), 1.0);
    assert_eq!(unit(7.01, 7.3), 1.007_812_5);
    assert_eq!(unit(7.01, 7.02), 1.0);
    assert!(unit(1e30, 1e30) <= 1e30 / 7.0);
}

#[test]
fn published_numbers_are_antithetic() {
    let [first, second] = PublishedStream::both(0x1234_5678, 3, Place { group: 0, parameter: 2 });
    assert_ne!(first, second);
    for index in (0..1000).step_by(2) {
        let (even, odd) = (first.uniform(index), first.uniform(index + 1));
        assert!((0.0..1.0).contains(&even) && (0.0..1.0).contains(&odd));
        assert!((even + odd - 1.0).abs() <= 2f32.powi(-24));
    }
}
