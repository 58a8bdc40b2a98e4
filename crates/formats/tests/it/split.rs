//! The halves of a parameter: exact for every pattern, and a bf16 in the upper one.

use formats::split::Split;

#[test]
fn every_pattern_comes_back() {
    // All 2^32 patterns: the sums of the two halves of all of them in blocks would not
    // show a pair of errors, so each is compared.
    let differing = (0..=u32::MAX)
        .filter(|&bits| Split::of(f32::from_bits(bits)).recombine().to_bits() != bits)
        .count();
    assert_eq!(differing, 0);
}

#[test]
fn the_upper_half_is_the_nearest_bf16() {
    for upper in 0..0x7F7F_u32 {
        for (remainder, up) in [(0, 0), (1, 0), (0x7FFF, 0), (0x8000, 1), (0x8001, 1), (0xFFFF, 1)]
        {
            for sign in [0, 0x8000_0000] {
                let bits = sign | upper << 16 | remainder;
                let expected = (bits >> 16) + up;
                assert_eq!(u32::from(Split::of(f32::from_bits(bits)).upper), expected, "{bits:#x}");
            }
        }
    }
}
