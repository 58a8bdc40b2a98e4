//! The layout as text: codes, words and random words that may never change,
//! since checkpoints hold them.
//!
//! `UPDATE_GOLDEN=1` rewrites the files; read the difference before you keep it.

use std::fmt::Write as _;

use formats::{
    Bias, E4Word, E4sWord, Format, Fp16Word, Moments, NumberFormat, Packed, RandomStream, WordCodec,
};

#[track_caller]
fn check(name: &str, text: &str) {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = format!("{root}/tests/it/golden/{name}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (number, (expected, found)) in golden.lines().zip(text.lines()).enumerate() {
        assert_eq!(found, expected, "{name} line {}", number + 1);
    }
    assert_eq!(text, golden, "{name} has another length");
}

#[test]
fn landmark_codes() {
    let mut text = String::from("# number bias code f32-bits value name\n");
    let numbers =
        [NumberFormat::F32, NumberFormat::Binary16, NumberFormat::E4M11, NumberFormat::E4M12];
    for number in numbers {
        for bias in [0, 16, 40].map(|bias| Bias::new(bias).unwrap()) {
            if !number.has_bias() && bias != Bias::DEFAULT {
                continue;
            }
            for (name, code) in number.landmarks() {
                let value = number.decode(code, bias);
                let (kind, bits) = (number.name(), value.to_bits());
                writeln!(text, "{kind} {bias} {code:#06x} {bits:08x} {value:e} {name}").unwrap();
            }
        }
    }
    check("codes.txt", &text);
}

fn encode(format: Format, bias: Bias, moments: Moments, index: u32) -> (Packed, Moments) {
    fn round_trip(codec: impl WordCodec, moments: Moments, index: u32) -> (Packed, Moments) {
        let packed = codec.encode(moments, index);
        (packed, codec.decode(packed.word))
    }
    match format {
        Format::Fp16 => round_trip(Fp16Word::new(), moments, index),
        Format::E4 => round_trip(E4Word::new(bias), moments, index),
        Format::E4s => {
            round_trip(E4sWord::new(bias, RandomStream::new(42, 3, 1, 0)), moments, index)
        }
        _ => unreachable!("it has no words"),
    }
}

#[test]
fn state_words() {
    let mut text = String::from("# format bias m r word m-back r-back saturated\n");
    let cases = [
        (0.0, 0.0),
        (-0.0, 1e-30),
        (1.0, 1.0),
        (-0.1, 0.1),
        (3.0e-5, 3.1e-5),
        (-1.0e-6, 4.7e-6),
        (7.5e-9, 3.8e-9),
        (-0.999_9, 0.999_9),
        (-70_000.0, 65_000.0),
    ];
    for format in [Format::Fp16, Format::E4, Format::E4s] {
        for bias in [0, 16, 40].map(|bias| Bias::new(bias).unwrap()) {
            if !format.has_bias() && bias != Bias::DEFAULT {
                continue;
            }
            for (index, (m, r)) in (0..).zip(cases) {
                let (packed, back) = encode(format, bias, Moments { m, r }, index);
                let saturated = match (packed.saturated_m, packed.saturated_r) {
                    (false, false) => "-",
                    (true, false) => "m",
                    (false, true) => "r",
                    (true, true) => "mr",
                };
                let (word, m_back, r_back) = (packed.word, back.m, back.r);
                let row = format!("{format} {bias} {m:e} {r:e} {word:08x} {m_back:e} {r_back:e}");
                writeln!(text, "{row} {saturated}").unwrap();
            }
        }
    }
    check("words.txt", &text);
}

#[test]
fn random_words() {
    let mut text = String::from("# seed update tensor index word\n");
    for (seed, update, tensor) in [(0, 1, 0), (0, 2, 0), (0, 1, 1), (u64::MAX, 1 << 40, 1000)] {
        for index in [0, 1, 2, 3, 1023, 16_384, u64::from(u32::MAX), 1 << 32, (1 << 33) + 5] {
            let stream = RandomStream::new(seed, update, tensor, (index >> 32) as u32);
            let word = stream.word(index as u32);
            writeln!(text, "{seed} {update} {tensor} {index} {word:08x}").unwrap();
        }
    }
    text += "# seed update tensor four words\n";
    for four in [0, 1, 1 << 20] {
        let [first, second] = RandomStream::new(1, 2, 3, 0).words_of_four(four);
        writeln!(text, "1 2 3 {four} {first:08x} {second:08x}").unwrap();
    }
    check("random-words.txt", &text);
}
