//! State words: which lane lies where, and that nothing alive decodes to zero.

use formats::{
    Bias, E4Word, E4sWord, Format, Fp16Word, Moments, NumberFormat, RandomStream, WordCodec,
};

fn stream() -> RandomStream {
    RandomStream::new(7, 1, 0, 0)
}

/// Runs `check` with the codec of every format that packs words.
fn with_every_codec(
    bias: Bias,
    mut check: impl FnMut(Format, &dyn Fn(u32) -> Moments, &dyn Fn(Moments, u32) -> formats::Packed),
) {
    let (e4, e4s, fp16) = (E4Word::new(bias), E4sWord::new(bias, stream()), Fp16Word::new());
    check(Format::E4, &|word| e4.decode(word), &|moments, index| e4.encode(moments, index));
    check(Format::E4s, &|word| e4s.decode(word), &|moments, index| e4s.encode(moments, index));
    check(Format::Fp16, &|word| fp16.decode(word), &|moments, index| fp16.encode(moments, index));
}

#[test]
fn the_first_moment_lies_in_the_low_half() {
    for bias in [Bias::MIN, Bias::DEFAULT, Bias::MAX] {
        with_every_codec(bias, |format, decode, encode| {
            let [m_lane, r_lane] = format.lanes().unwrap();
            for code in (0..=0xFFFFu32).step_by(7) {
                let word = code | code.rotate_left(3) << 16;
                let (m_code, r_code) = (word & 0xFFFF, word >> 16);
                if format == Format::Fp16 && !Fp16Word::is_valid(word) {
                    continue;
                }
                let moments = decode(word);
                assert_eq!(moments.m.to_bits(), m_lane.number.decode(m_code, bias).to_bits());
                assert_eq!(moments.r.to_bits(), r_lane.number.decode(r_code, bias).to_bits());
                assert_eq!(encode(moments, code).word, word, "{format} bias {bias}");
            }
        });
    }
}

#[test]
fn a_fresh_state_is_zero() {
    with_every_codec(Bias::DEFAULT, |_, decode, encode| {
        assert_eq!(decode(0), Moments { m: 0.0, r: 0.0 });
        assert_eq!(encode(Moments { m: 0.0, r: 0.0 }, 0).word, 0);
        assert_eq!(encode(Moments { m: -0.0, r: 0.0 }, 0).word, 0x8000, "zero keeps its sign");
    });
}

#[test]
fn an_rms_above_zero_never_encodes_to_zero() {
    for bias in [Bias::MIN, Bias::DEFAULT, Bias::MAX] {
        with_every_codec(bias, |format, decode, encode| {
            // The smallest root of an f32 is 2^-74.5.
            for exponent in -75..=0 {
                for r in [2f32.powi(exponent), 2f32.powi(exponent) * 1.4] {
                    for index in 0..50 {
                        let packed = encode(Moments { m: 0.0, r }, index);
                        assert!(decode(packed.word).r > 0.0, "{format} bias {bias} r {r:e}");
                    }
                }
            }
            let smallest = encode(Moments { m: 0.0, r: 1e-22 }, 0);
            assert_eq!((smallest.word, smallest.saturated_r), (1 << 16, false));
        });
    }
}

#[test]
fn each_lane_reports_its_own_saturation() {
    with_every_codec(Bias::DEFAULT, |format, decode, encode| {
        let [m_lane, r_lane] = format.lanes().unwrap();
        let (m_max, r_max) =
            (m_lane.number.largest(Bias::DEFAULT), r_lane.number.largest(Bias::DEFAULT));
        let cases = [
            (Moments { m: 0.5, r: 0.5 }, false, false),
            (Moments { m: -1e5, r: 0.5 }, true, false),
            (Moments { m: 0.5, r: 1e5 }, false, true),
            (Moments { m: f32::MAX, r: f32::MAX }, true, true),
        ];
        for (moments, saturated_m, saturated_r) in cases {
            let packed = encode(moments, 3);
            assert_eq!((packed.saturated_m, packed.saturated_r), (saturated_m, saturated_r));
            let stored = decode(packed.word);
            assert!(!saturated_m || stored.m.abs() == m_max);
            assert!(!saturated_r || stored.r == r_max);
        }
    });
}

#[test]
fn e4s_draws_by_element_index() {
    let codec = E4sWord::new(Bias::DEFAULT, stream());
    let half_way = (NumberFormat::E4M12.decode(0x5000, Bias::DEFAULT)
        + NumberFormat::E4M12.decode(0x5001, Bias::DEFAULT))
        / 2.0;
    let ups = (0..10_000)
        .filter(|&index| codec.encode(Moments { m: 0.0, r: half_way }, index).word >> 16 == 0x5001)
        .count();
    assert!((4_800..5_200).contains(&ups), "{ups} of 10000 rounded up");
}

#[test]
fn fp16_words_with_reserved_codes_are_not_valid() {
    for word in [0, 0x7BFF, 0xFBFF, 0x7BFF_0000, 0x7BFF_FBFF] {
        assert!(Fp16Word::is_valid(word), "{word:#010x}");
    }
    for word in [0x7C00, 0xFC00, 0x7E01, 0x7C00_0000, 0x8000_0000, 0xFFFF_0000] {
        assert!(!Fp16Word::is_valid(word), "{word:#010x}");
    }
}
