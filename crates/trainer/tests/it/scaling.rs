//! The tables of docs/scaling.md, computed from the formulas and constants that stand there.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use formats::Format;
use model::{Config, Dimensions, Layout};

/// Bytes of an H200 that a run may take: 150.1e9, less five in a hundred.
const DEVICE_BYTES: f64 = 142e9;
/// What a whole training step of GPT-2 124M reached, in model FLOPs a second: 624,000 tokens/s.
const STEP_TOKENS_PER_S: f64 = 624_000.0;
/// Bytes a second of the device's memory, read and written.
const MEMORY_BYTES_PER_S: f64 = 4.26e12;
/// Bytes a second in and out of a device: within a host as measured between two devices, and between hosts, which is
/// assumed, nine tenths of 400 Gbit/s for each.
const LINK_BYTES_PER_S: [f64; 2] = [329e9, 45e9];
/// Devices of a host.
const HOST: usize = 8;
/// Share of a training step that is its backward pass.
const BACKWARD: f64 = 2.0 / 3.0;
/// Tokens of an update: so many on each device, or so many in all.
const TOKENS_EACH: f64 = 32_768.0;
const TOKENS_ALL: f64 = 4_194_304.0;

const DEVICES: [usize; 4] = [8, 64, 256, 1024];
const FORMATS: [&str; 6] = ["fp32", "fp16", "e4", "block8", "n4l4", "ustate1q"];
/// V, T, C, L, H.
const MODELS: [(&str, [usize; 5]); 3] = [
    ("1.5B", [50_304, 1_024, 1_600, 48, 25]),
    ("7B", [50_304, 2_048, 4_096, 32, 32]),
    ("70B", [50_304, 4_096, 8_192, 80, 64]),
];

fn config([vocabulary, context, channels, layers, heads]: [usize; 5]) -> Config {
    Config::new(Dimensions { vocabulary, context, channels, layers, heads }).unwrap()
}

/// Model FLOPs a second of a device.
fn rate() -> f64 {
    let gpt2 = config([50_304, 1_024, 768, 12, 12]);
    gpt2.training_flops_per_token(1_024) * STEP_TOKENS_PER_S
}

/// Bytes of a device that stay: parameters, their copy in bf16, gradients, and the state of one of `ranks`.
fn held_bytes(layout: &Layout, format: Format, ranks: usize) -> f64 {
    let state: u64 = layout.slots().iter().map(|slot| format.state_bytes(slot.length as u64)).sum();
    10.0 * layout.parameters() as f64 + state as f64 / ranks as f64
}

fn memory() -> String {
    let mut text = "| parameters | state | whole state |".to_owned();
    DEVICES.iter().for_each(|devices| write!(text, " over {devices} |").unwrap());
    text.push_str("\n|---|---|---|---|---|---|---|\n");
    for (name, shape) in MODELS {
        let layout = Layout::new(config(shape));
        for format in FORMATS {
            write!(text, "| {name} | `{format}` |").unwrap();
            let format: Format = format.parse().unwrap();
            for ranks in [1].into_iter().chain(DEVICES) {
                write!(text, " {:.1} |", held_bytes(&layout, format, ranks) / 1e9).unwrap();
            }
            text.push('\n');
        }
    }
    text
}

/// What an update takes, in milliseconds.
struct Times {
    compute: f64,
    sums: f64,
    exposed: f64,
    gather: f64,
    update: f64,
}

impl Times {
    fn new(shape: [usize; 5], format: Format, devices: usize, tokens: f64) -> Self {
        let config = config(shape);
        let layout = Layout::new(config);
        let [vocabulary, context, channels, ..] = shape;
        let parameters = layout.parameters() as f64;
        let compute = config.training_flops_per_token(context) * tokens / rate();
        let link = LINK_BYTES_PER_S[usize::from(devices > HOST)];
        let share = (devices - 1) as f64 / devices as f64;
        let sums = 4.0 * parameters * share / link;
        let tables = ((vocabulary + context) * channels) as f64 / parameters;
        let exposed = (sums - BACKWARD * compute).max(sums * tables);
        let state = held_bytes(&layout, format, devices) - 10.0 * parameters;
        let update = (12.0 * parameters / devices as f64 + 2.0 * state) / MEMORY_BYTES_PER_S;
        let [compute, sums, exposed, gather, update] =
            [compute, sums, exposed, sums, update].map(|seconds| seconds * 1e3);
        Self { compute, sums, exposed, gather, update }
    }

    fn total(&self) -> f64 {
        self.compute + self.exposed + self.gather + self.update
    }
}

fn time() -> String {
    let mut text = "| parameters | devices | tokens a device | compute | sums | of them waited for | gather | update | all, ms | share of compute |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (name, shape) in MODELS {
        for devices in DEVICES {
            let mut each = vec![TOKENS_EACH];
            let divided = TOKENS_ALL / devices as f64;
            if divided < TOKENS_EACH {
                each.push(divided);
            }
            for tokens in each {
                let times = Times::new(shape, Format::E4, devices, tokens);
                let Times { compute, sums, exposed, gather, update } = &times;
                let total = times.total();
                writeln!(
                    text,
                    "| {name} | {devices} | {tokens} | {compute:.0} | {sums:.1} | {exposed:.1} | {gather:.1} | {update:.2} | {total:.0} | {:.0}% |",
                    compute / total * 100.0
                )
                .unwrap();
            }
        }
    }
    text
}

/// The update of every format, in milliseconds.
fn updates() -> String {
    let mut text = "| parameters | state | on one |".to_owned();
    DEVICES.iter().for_each(|devices| write!(text, " over {devices} |").unwrap());
    text.push_str("\n|---|---|---|---|---|---|---|\n");
    for (name, shape) in MODELS {
        for format in FORMATS {
            write!(text, "| {name} | `{format}` |").unwrap();
            let format: Format = format.parse().unwrap();
            for ranks in [1].into_iter().chain(DEVICES) {
                let ms = Times::new(shape, format, ranks, TOKENS_EACH).update;
                write!(text, " {ms:.3} |").unwrap();
            }
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_tables_of_scaling_follow_from_its_formulas() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let path = Path::new(&manifest).join("../../docs/scaling.md");
    let Ok(text) = fs::read_to_string(&path) else { return };
    let mut expected = text.clone();
    for (name, table) in [("memory", memory()), ("time", time()), ("updates", updates())] {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
        let (before, rest) = expected.split_once(&begin).expect("a table has a begin mark");
        let (_, after) = rest.split_once(&end).expect("a table has an end mark");
        expected = format!("{before}{begin}{table}{end}{after}");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert!(text == expected, "run the tests with UPDATE_GOLDEN=1 and read the difference");
    }
    // What the prose says.
    let sizes = MODELS.map(|(_, shape)| config(shape).parameters() as f64 / 1e9);
    for (found, said) in sizes.iter().zip([1.56, 6.66, 64.9]) {
        assert!((found / said - 1.0).abs() < 0.01, "{found}");
    }
    assert!((rate() / 1e12 - 498.0).abs() < 1.0, "{}", rate() / 1e12);
    for (format, most) in [("fp32", 14.2), ("e4", 14.2), ("ustate1q", 14.2)] {
        // Divided over many, the state is nothing, whatever its format.
        let bits = format.parse::<Format>().unwrap().bits_per_parameter();
        let limit = DEVICE_BYTES / (10.0 + bits / 8.0 / 1024.0) / 1e9;
        assert!((limit - most).abs() < 0.1, "{format} {limit}");
    }
}
