//! The list of formats: names that parse, bytes that add up, and the tables of
//! docs/formats.md.

use formats::{Bias, Format, Lane};

#[test]
fn names_are_distinct_and_parse_back() {
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>(), Ok(format));
        assert_eq!(Format::ALL.iter().filter(|other| other.name() == format.name()).count(), 1);
    }
    let message = "E4".parse::<Format>().unwrap_err().to_string();
    let names = "fp32, fp16, e4, e4s, block8, block8-original, ustate1q, ustate1q-original, n4l4";
    assert_eq!(message, format!("expected a state format, one of {names}; found \"E4\""));
}

#[test]
fn options_are_written_and_read_back() {
    let cases = [
        "block8:block=2048",
        "block8-original:block=64,min=1",
        "ustate1q:block=256,mean_block=32,v_bits=3,halves=m,min_m=0",
        "ustate1q:halves=v,min_v=7",
        "n4l4:m_block=32,v_block=64,m_rounding=nearest,min=100",
    ];
    for text in cases {
        assert_eq!(text.parse::<Format>().unwrap().to_string(), text);
    }
    let explicit = "ustate1q:block=128,min=4096".parse::<Format>().unwrap();
    assert_eq!(explicit.to_string(), "ustate1q");
    assert_eq!("block8:block=512, min=1".parse::<Format>().unwrap().block_elements(), 512);
}

#[test]
fn wrong_options_are_refused_with_what_is_expected() {
    let cases = [
        ("e4:block=64", "expected an option of e4 (none), found \"block\""),
        ("block8:blok=64", "expected an option of block8 (block, min), found \"blok\""),
        ("block8:block=300", "expected block to be a power of two from 64 to 4096, found \"300\""),
        (
            "block8:block=8192",
            "expected block to be a power of two from 64 to 4096, found \"8192\"",
        ),
        ("ustate1q:v_bits=5", "expected v_bits to be 2, 3, 4, 6 or 8, found \"5\""),
        ("ustate1q:halves=none", "expected halves to be both, m or v, found \"none\""),
        (
            "ustate1q:block=32",
            "expected a block of the first moment of at most 32 elements, that of the second \
             moment; found 64",
        ),
        ("n4l4:min=-1", "expected min to be a whole number below 2^32, found \"-1\""),
    ];
    for (text, message) in cases {
        assert_eq!(text.parse::<Format>().unwrap_err().to_string(), message);
    }
}

#[test]
fn bytes_are_those_of_the_published_layouts() {
    let bytes = |text: &str, elements| text.parse::<Format>().unwrap().state_bytes(elements);
    assert_eq!(bytes("ustate1q", 131_072), 106_508);
    // 2.25 bits and 12 bytes; 4.25 bits; halves alone beside an f32.
    assert_eq!(bytes("ustate1q:halves=m", 131_072), 131_072 / 4 + 131_072 / 32 + 12 + 4 * 131_072);
    assert_eq!(bytes("ustate1q:halves=v", 131_072), 131_072 / 2 + 131_072 / 32 + 4 * 131_072);
    assert_eq!(bytes("ustate1q:v_bits=2", 131_072), 106_508 - 131_072 / 4);
    // Codes are padded to whole blocks, means are not.
    assert_eq!(bytes("ustate1q:min=0", 129), 256 / 4 + 2 * 3 + 12 + 256 / 2 + 2 * 4);
    assert_eq!(bytes("ustate1q:min=0", 0), 0);
    assert_eq!(bytes("ustate1q", 4095), 8 * 4095);
    assert_eq!(bytes("block8", 4096), 2 * 4096 + 2 * 4 * 16);
    assert_eq!(bytes("block8:block=2048", 4097), 2 * 4097 + 2 * 4 * 3);
    assert_eq!(bytes("block8", 4095), 8 * 4095);
    assert_eq!(bytes("n4l4", 8192), 8192 + 2 * 128 + 4 * 64);
    let bits = ["block8", "block8:block=2048", "ustate1q", "n4l4"]
        .map(|text| text.parse::<Format>().unwrap().bits_per_parameter());
    assert_eq!(bits, [16.25, 16.03125, 6.5, 8.5]);
}

#[test]
fn a_tensor_of_one_length_has_one_format() {
    for format in Format::ALL {
        for elements in [0, 1, 4095, 4096, 1 << 33] {
            let own = format.for_length(elements);
            assert_eq!(own.for_length(elements), own);
            assert!(own.sections(elements).eq(format.sections(elements)));
        }
    }
}

#[test]
fn state_bytes_are_the_sum_of_the_sections() {
    for format in Format::ALL {
        for elements in [0, 1, 3, 16_384, 1 << 30, 1 << 40] {
            let sum: u64 = format.sections(elements).map(|s| s.count * s.element.bytes()).sum();
            assert_eq!(format.state_bytes(elements), sum);
        }
        let bits = format.state_bytes(1 << 20) as f64 * 8.0 / f64::from(1 << 20);
        assert!((bits - format.bits_per_parameter()).abs() < 1e-3, "{format}");
        if let Some(lanes) = format.lanes() {
            let lane_bits: u32 = lanes.iter().map(|lane| lane.number.bits()).sum();
            assert_eq!(f64::from(lane_bits), format.bits_per_parameter());
        }
    }
}

#[test]
fn lanes_agree_with_the_format_about_the_bias() {
    for format in Format::ALL {
        for lane in format.lanes().into_iter().flatten() {
            assert_eq!(lane.number.has_bias(), format.has_bias());
            for (_, code) in lane.number.landmarks() {
                assert!(lane.number.decode(code, Bias::DEFAULT).is_finite());
            }
        }
    }
}

/// Every row that the docs must hold, made from the code.
fn table_rows() -> Vec<String> {
    let mut rows = Vec::new();
    for format in Format::ALL {
        let sections: Vec<String> =
            format.sections(1 << 20).map(|s| format!("`{}` {}", s.name, s.element)).collect();
        let row = format!(
            "| `{format}` | {} | {} | {} |",
            format.bits_per_parameter(),
            format.bits_per_parameter() / 8.0,
            sections.join(", ")
        );
        let lane = |lane: Lane| format!(" {} {} |", lane.moment.symbol(), lane.number.name());
        rows.push(match format.lanes() {
            Some([first, second]) => row + &lane(first) + &lane(second),
            None => row,
        });
    }
    for format in [Format::Fp16, Format::E4] {
        for lane in format.lanes().into_iter().flatten() {
            let number = lane.number;
            let biases: &[u32] = if number.has_bias() { &[0, 16, 20, 40] } else { &[15] };
            for &bias in biases {
                let checked = Bias::new(bias).unwrap();
                rows.push(format!(
                    "| {} | {} | {bias} | {:e} | {:e} | {:e} |",
                    lane.moment.symbol(),
                    number.name(),
                    number.largest(checked),
                    number.smallest_normal(checked),
                    number.subnormal_step(checked)
                ));
            }
        }
    }
    rows
}

#[test]
fn the_docs_hold_the_rows_that_the_code_makes() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let docs = std::fs::read_to_string(format!("{root}/../../docs/formats.md")).unwrap();
    let rows = table_rows();
    let missing: Vec<&String> = rows.iter().filter(|row| !docs.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/formats.md lacks these rows: {missing:#?}");
}
