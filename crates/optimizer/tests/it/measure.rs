//! What formats keep of moments, and the table of docs/formats.md made of it; `UPDATE_GOLDEN=1` writes it anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use formats::Format;
use optimizer::measure::{BETAS2, FormatMeasures, measure};

fn measured(name: &str) -> FormatMeasures {
    measure(name.parse().unwrap()).unwrap()
}

#[test]
fn formats_without_blocks_are_as_exact_as_their_fractions() {
    let (fp32, e4) = (measured("fp32"), measured("e4"));
    assert_eq!((fp32.bits, e4.bits), (64.0, 32.0));
    assert!(fp32.rms_errors.iter().chain(&fp32.first_errors).all(|&error| error < 1e-7));
    assert_eq!(fp32.stalls, [None; 3]);
    // Twelve bits of r, eleven of m, evenly spread; in the last decade r is subnormal, and steps are larger.
    assert!(e4.rms_errors[0] < 2f64.powi(-13) && e4.first_errors[0] < 2f64.powi(-12), "{e4:?}");
    assert!(e4.rms_errors[2] > 4.0 * e4.rms_errors[0]);
    assert_eq!(e4.steps, [2f64.powi(-13), 2f64.powi(-12)]);
    // A step of r is 7.5e-9; what moves by less than half of one in an update stays.
    let [low, middle, high] = e4.stalls.map(Option::unwrap);
    assert!(low < middle && middle < high, "{:?}", e4.stalls);
    assert!((5e-8..4e-7).contains(&low) && (2e-6..2e-5).contains(&high), "{:?}", e4.stalls);
}

#[test]
fn what_is_rounded_at_random_never_stalls() {
    for name in ["n4l4", "ustate1q"] {
        assert_eq!(measured(name).stalls, [None; 3], "{name}");
    }
    // But at the smallest code above zero, 7.5e-9, from which nothing goes down.
    let low = measured("e4s").stalls.map(|stall| stall.unwrap_or(0.0));
    assert!(low.iter().all(|&stall| stall < 3.0 * 7.45e-9), "{low:?}");
}

#[test]
fn blocks_take_the_bits_that_they_say() {
    for (name, bits) in [("block8", 16.25), ("n4l4", 8.5), ("ustate1q", 6.5)] {
        let measures = measured(name);
        assert!((measures.bits - bits).abs() < 1e-3, "{name}");
        assert!(measures.steps[0] > 0.0 && measures.steps[1] >= measures.steps[0], "{name}");
    }
}

fn table() -> String {
    let mut text = String::from(
        "| format | bits | error of r at 1e-1 / 1e-3 / 1e-5 | error of m, in r, likewise | steps of r | r stalls below, beta2 ",
    );
    writeln!(text, "{} |", BETAS2.map(|beta| beta.to_string()).join(" / ")).unwrap();
    text.push_str("|---|---|---|---|---|---|\n");
    for format in Format::ALL {
        let FormatMeasures { bits, rms_errors, first_errors, steps, stalls } =
            measure(format).unwrap();
        let share = |share: f64| format!("{share:.1e}");
        let shares = |shares: &[f64]| shares.iter().map(|&x| share(x)).collect::<Vec<_>>();
        let stalls = stalls.map(|stall| stall.map_or_else(|| "never".to_owned(), share));
        let cells = [
            format!("`{format}`"),
            format!("{bits:.3}"),
            shares(&rms_errors).join(" / "),
            shares(&first_errors).join(" / "),
            shares(&steps).join(" to "),
            stalls.join(" / "),
        ];
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    text
}

#[test]
fn the_table_of_what_formats_keep_is_measured() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = Path::new(&manifest).join("../../docs/formats.md");
    let Ok(text) = fs::read_to_string(&path) else { return };
    let (begin, end) = ("<!-- measures: begin -->\n", "<!-- measures: end -->\n");
    let (before, rest) = text.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let expected = format!("{before}{begin}{}{end}{after}", table());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run the tests with UPDATE_GOLDEN=1 and read the difference");
    }
}
