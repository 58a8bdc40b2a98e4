//! `docs/accounting.md`: its tables are those of the code.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use formats::Format;

/// Models by name and number of parameters: two of this house, and round sizes of others.
const MODELS: [(&str, u64); 5] = [
    ("reference-12m", 11_637_760),
    ("GPT-2 124M", 124_475_904),
    ("125M", 125_000_000),
    ("7B", 7_000_000_000),
    ("70B", 70_000_000_000),
];

/// Bytes of an f32 parameter and of its f32 gradient.
const PARAMETER_AND_GRADIENT_BYTES: u64 = 8;

/// Bytes with the decimal prefix that gives three or four digits.
fn readable(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.2} GB", bytes / 1e9) }
}

fn table(first: &str, of: impl Fn(Format, u64) -> u64) -> String {
    let mut text = format!("| {first} | bytes a parameter |");
    MODELS.iter().for_each(|(name, _)| write!(text, " {name} |").unwrap());
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(MODELS.len()));
    for format in Format::ALL {
        let large = 1 << 40;
        let per_parameter = of(format, large) as f64 / large as f64;
        let name = if format == Format::Fp32 { " (AdamW)" } else { "" };
        let per_parameter = format!("{per_parameter:.4}");
        let per_parameter = per_parameter.trim_end_matches('0').trim_end_matches('.');
        write!(text, "\n| `{format}`{name} | {per_parameter} |").unwrap();
        for (_, parameters) in MODELS {
            write!(text, " {} |", readable(of(format, parameters))).unwrap();
        }
    }
    text + "\n"
}

#[test]
fn the_tables_of_accounting_are_those_of_the_code() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let path = Path::new(&manifest).join("../../docs/accounting.md");
    let Ok(text) = fs::read_to_string(&path) else {
        println!("skipped: {} is not there", path.display());
        return;
    };
    let state = table("state format", Format::state_bytes);
    let training = table("state format", |format, parameters| {
        format.state_bytes(parameters) + PARAMETER_AND_GRADIENT_BYTES * parameters
    });
    let mut expected = text.clone();
    for (name, table) in [("state", state), ("training", training)] {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
        let (before, rest) = expected.split_once(&begin).expect("a table has a begin mark");
        let (_, after) = rest.split_once(&end).expect("a table has an end mark");
        expected = format!("{before}{begin}{table}{end}{after}");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run the tests with UPDATE_GOLDEN=1 and read the difference");
    }
}

#[test]
fn the_table_of_the_readme_has_the_same_numbers() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let Ok(text) = fs::read_to_string(Path::new(&manifest).join("../../README.md")) else {
        return;
    };
    for (name, parameters) in &MODELS[2..] {
        let shown = ["fp32", "e4", "block8", "n4l4", "ustate1q"];
        let cells = shown.map(|name| {
            let format: Format = name.parse().expect("a format");
            readable(format.state_bytes(*parameters))
        });
        let row = format!("| {name} | {} |", cells.join(" | "));
        assert!(text.contains(&row), "{row}");
    }
}
