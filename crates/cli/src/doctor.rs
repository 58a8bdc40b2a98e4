//! `doctor`: what this machine can do, in a form that can be pasted into a report.

use anyhow::Result;
use gpu_kernels::bandwidth::Copy;
use gpu_kernels::{Gpu, LibraryReport, library};
use serde_json::{Value, json};

use crate::args::{Doctor, VERSION};
use crate::output::{self, bytes};
use crate::{doctor_nccl, table};

/// Bytes of each buffer of the copy that measures a device's bandwidth, where there is room.
const COPY_BYTES: u64 = 1 << 30;

/// Copies that are timed.
const COPIES: usize = 10;

/// Named facts, in the order in which they are shown.
type Facts = Vec<(&'static str, Value)>;

pub fn run(args: &Doctor) -> Result<()> {
    if args.nccl {
        return doctor_nccl::run(args);
    }
    let processor = processor();
    let libraries = library::reports();
    let devices: Vec<Facts> = (0..Gpu::count().unwrap_or(0)).map(device).collect();
    if args.json {
        return output::json(&json!({
            "version": VERSION,
            "processor": Value::from_iter(processor),
            "libraries": libraries.iter().map(describe).collect::<Value>(),
            "devices": devices.into_iter().map(Value::from_iter).collect::<Value>(),
        }));
    }
    let mut text = format!("packed-adamw {VERSION}\n\n{}", readable(&processor));
    for found in &libraries {
        let facts = readable(&library_facts(found));
        text.push_str(&format!("\n{}\n{facts}", found.library.name()));
    }
    if devices.is_empty() {
        text.push_str("\nno CUDA device: everything runs on the processor\n");
    }
    for (ordinal, facts) in devices.iter().enumerate() {
        text.push_str(&format!("\ncuda:{ordinal}\n{}", readable(facts)));
    }
    output::data(&text)
}

fn readable(facts: &Facts) -> String {
    let value = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    };
    let lines: Vec<(&str, String)> =
        facts.iter().map(|(name, found)| (*name, value(found))).collect();
    format!("{}\n", table::pairs(&lines))
}

/// Facts of the processor, by name.
fn processor() -> Facts {
    let name = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let size = |name| kibibytes(name).map_or(Value::Null, |found| bytes(found).into());
    let tenths = |number: f64| (number * 10.0).round() / 10.0;
    vec![
        ("system", format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH).into()),
        ("processor", name.into()),
        ("threads", rayon::current_num_threads().into()),
        ("instructions for updates", optimizer::Instructions::best().name().into()),
        ("memory", size("MemTotal")),
        ("memory free", size("MemAvailable")),
        ("matrix products in f32, GFLOP/s", tenths(model::product_ceiling_gflops()).into()),
        ("copy of memory, GB/s", tenths(optimizer::bench::copy_gb_per_s()).into()),
    ]
}

/// Facts of a CUDA device, or what is wrong with it.
fn device(ordinal: usize) -> Facts {
    device_facts(ordinal).unwrap_or_else(|error| vec![("problem", error.to_string().into())])
}

fn device_facts(ordinal: usize) -> Result<Facts, gpu_kernels::Error> {
    let gpu = Gpu::open(ordinal)?;
    let free = gpu.free_bytes()?;
    let mut copy = Copy::new(&gpu, COPY_BYTES.min(free / 4) as usize)?;
    let copy_gb_per_s = copy.gb_per_s(COPIES)?.into_iter().fold(0.0, f64::max);
    let facts = gpu.facts();
    let (major, minor) = facts.compute_capability;
    let (driver_major, driver_minor) = facts.driver_version;
    let cache = gpu.cache_folder().map_or_else(
        || "none: kernels are compiled at every start".to_owned(),
        |folder| folder.display().to_string(),
    );
    Ok(vec![
        ("name", facts.name.clone().into()),
        ("compute capability", format!("{major}.{minor}").into()),
        ("memory", bytes(facts.memory_bytes).into()),
        ("memory free", bytes(free).into()),
        ("multiprocessors", facts.multiprocessors.into()),
        ("L2 cache", bytes(facts.l2_bytes).into()),
        ("driver's CUDA version", format!("{driver_major}.{driver_minor}").into()),
        ("kernel cache", cache.into()),
        ("copy of memory, GB/s", copy_gb_per_s.round().into()),
    ])
}

/// What is known of a library.
fn library_facts(found: &LibraryReport) -> Facts {
    let path = found.path.as_ref().map(|path| path.display().to_string());
    let facts =
        [("version", found.version.clone()), ("path", path), ("problem", found.problem.clone())];
    facts.into_iter().filter_map(|(name, fact)| Some((name, fact?.into()))).collect()
}

fn describe(found: &LibraryReport) -> Value {
    let mut facts = library_facts(found);
    facts.push(("library", found.library.name().into()));
    Value::from_iter(facts)
}

fn kibibytes(name: &str) -> Option<u64> {
    let value = field("/proc/meminfo", name)?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The value after `name :` in a file of such lines.
fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned())
}
