//! `doctor`: what this machine can do, in a form that can be pasted into a report.

use anyhow::Result;
use serde_json::json;

use crate::args::Doctor;
use crate::output::{self, bytes};
use crate::table;

pub fn run(args: &Doctor) -> Result<()> {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let memory = kibibytes("MemTotal");
    let free = kibibytes("MemAvailable");
    let threads = rayon::current_num_threads();
    let instructions = optimizer::Instructions::best();
    let ceiling = model::product_ceiling_gflops();
    let copy = optimizer::bench::copy_gb_per_s();
    if args.json {
        return output::json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "system": std::env::consts::OS,
            "architecture": std::env::consts::ARCH,
            "processor": processor,
            "threads": threads,
            "instructions": instructions.name(),
            "memory_bytes": memory,
            "memory_free_bytes": free,
            "product_gflops": ceiling,
            "copy_gb_per_s": copy,
            "devices": ["cpu"],
        }));
    }
    let size = |found: Option<u64>| found.map_or_else(|| "unknown".to_owned(), bytes);
    let lines = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("system", format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("processor", processor),
        ("threads", threads.to_string()),
        ("instructions", format!("{} for updates", instructions.name())),
        ("memory", format!("{}, {} of it free", size(memory), size(free))),
        ("matrix products", format!("{ceiling:.0} GFLOP/s in f32")),
        ("memory copy", format!("{copy:.1} GB/s, read and write counted")),
        ("devices", "cpu".to_owned()),
    ];
    output::data(&format!("{}\n", table::pairs(&lines)))
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
