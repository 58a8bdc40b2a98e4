//! The list of formats: names that parse, bytes that add up, and the tables of
//! docs/formats.md.

use formats::{Bias, Format};

#[test]
fn names_are_distinct_and_parse_back() {
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>(), Ok(format));
        assert_eq!(Format::ALL.iter().filter(|other| other.name() == format.name()).count(), 1);
    }
    let message = "E4".parse::<Format>().unwrap_err().to_string();
    assert_eq!(message, "expected a state format, one of fp32, fp16, e4, e4s; found \"E4\"");
}

#[test]
fn state_bytes_are_the_sum_of_the_sections() {
    for format in Format::ALL {
        for elements in [0, 1, 3, 16_384, 1 << 30, 1 << 40] {
            let sum: u64 = format.sections(elements).map(|s| s.count * s.element.bytes()).sum();
            assert_eq!(format.state_bytes(elements), sum);
        }
        assert_eq!(format.state_bytes(1000) as f64 * 8.0 / 1000.0, format.bits_per_parameter());
        let lane_bits: u32 = format.lanes().iter().map(|lane| lane.number.bits()).sum();
        assert_eq!(f64::from(lane_bits), format.bits_per_parameter());
    }
}

#[test]
fn lanes_agree_with_the_format_about_the_bias() {
    for format in Format::ALL {
        for lane in format.lanes() {
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
            format.sections(1).map(|s| format!("`{}` {}", s.name, s.element)).collect();
        let lanes =
            format.lanes().map(|lane| format!("{} {}", lane.moment.symbol(), lane.number.name()));
        rows.push(format!(
            "| `{format}` | {} | {} | {} | {} | {} |",
            format.bits_per_parameter(),
            format.state_bytes(1),
            sections.join(", "),
            lanes[0],
            lanes[1]
        ));
    }
    for format in [Format::Fp16, Format::E4] {
        for lane in format.lanes() {
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
