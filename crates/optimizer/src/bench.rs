//! How long an update takes, beside a copy of memory in the same run.
//!
//! An update reads and writes every byte once, so its floor is its bytes over the
//! bandwidth of memory. Each repetition times one large copy and one update, one
//! right after the other, so that a busy machine slows both.

#[cfg(feature = "cuda")]
mod cuda;

use std::str::FromStr;
use std::time::Instant;

use formats::{Format, RandomStream};
use rayon::prelude::*;

use crate::{AdamW, CpuAdamW, Error, Group, Options, TensorSpec};
#[cfg(feature = "cuda")]
pub use cuda::{Variant, VariantRow, run_cuda, run_cuda_quantized, run_cuda_variants};

/// Elements of each of the two buffers of the copy: 256 MiB, beyond most caches.
const COPY_ELEMENTS: usize = 64 << 20;

/// Bytes that the copy reads and writes.
const COPY_BYTES: f64 = (COPY_ELEMENTS * 2 * size_of::<f32>()) as f64;

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The models.
    pub sizes: Vec<Size>,
    /// The formats, each for every model.
    pub formats: Vec<Format>,
    /// Updates before the measured ones.
    pub warm_up: usize,
    /// Measured updates, at least one.
    pub repeats: usize,
}

/// A model by the lengths of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// What reports call it.
    pub name: String,
    /// The lengths.
    pub tensor_lengths: Vec<usize>,
}

/// The measurement of one format on one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `cpu` or `cuda`
    pub device: &'static str,
    /// The state format.
    pub format: Format,
    /// The name of the size.
    pub size: String,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of elements of all tensors together.
    pub parameters: u64,
    /// `eager`: every update is a call. `graph`: every update is the replay of a recorded one.
    pub mode: &'static str,
    /// `f32` or `bf16`
    pub parameter_type: &'static str,
    /// `f32` or `bf16`
    pub gradient_type: &'static str,
    /// The median of the measured updates.
    pub ms_median: f64,
    /// The fastest.
    pub ms_min: f64,
    /// The slowest.
    pub ms_max: f64,
    /// Bytes that an update must read and write for each parameter: parameter and
    /// state both ways, gradient once.
    pub bytes_per_parameter: f64,
    /// Bytes of stored moments for each parameter, as allocated.
    pub state_bytes_per_parameter: f64,
    /// The bytes of an update over its median time, in 10^9 bytes per second.
    pub gb_per_s: f64,
    /// Bytes read and written by the copy over its median time, likewise.
    pub copy_gb_per_s: f64,
    /// The quotient of the two.
    pub share_of_copy: f64,
}

/// Measures every format on every size, on the current rayon pool.
///
/// # Errors
///
/// If a size needs more memory than is free; nothing is measured then.
pub fn run(plan: &Plan) -> Result<Vec<Row>, Error> {
    for size in &plan.sizes {
        check_memory(size, &plan.formats)?;
    }
    let mut copy = CopyBuffers::new();
    let mut rows = Vec::new();
    for size in &plan.sizes {
        let elements = size.elements();
        let mut parameters = noise(elements, 1, 0.05);
        let gradients = noise(elements, 2, 1e-3);
        for &format in &plan.formats {
            let times = measure(plan, size, format, &mut parameters, &gradients, &mut copy)?;
            rows.push(times.into_row(size, format, "cpu", "eager"));
        }
    }
    Ok(rows)
}

/// The bandwidth of a large copy on the current rayon pool, the best of a few, in 10^9 bytes read and written
/// per second.
#[must_use]
pub fn copy_gb_per_s() -> f64 {
    const COPIES: usize = 8;
    let mut copy = CopyBuffers::new();
    let best_ms = (0..COPIES).map(|_| milliseconds(|| copy.run())).fold(f64::INFINITY, f64::min);
    COPY_BYTES / best_ms / 1e6
}

/// The buffers of the copy.
struct CopyBuffers {
    from: Vec<f32>,
    to: Vec<f32>,
}

/// What was measured of one format on one size.
struct Times {
    /// Milliseconds of each update.
    update_ms: Vec<f64>,
    copy_gb_per_s: f64,
    state_bytes: u64,
}

fn measure(
    plan: &Plan,
    size: &Size,
    format: Format,
    parameters: &mut Vec<f32>,
    gradients: &Vec<f32>,
    copy: &mut CopyBuffers,
) -> Result<Times, Error> {
    let mut optimizer = CpuAdamW::new(&size.tensors(), &groups(format), Options::default())?;
    let (mut update_ms, mut copy_ms) = (Vec::new(), Vec::new());
    for repeat in 0..plan.warm_up + plan.repeats.max(1) {
        let copy_time = milliseconds(|| copy.run());
        optimizer.set_next_update()?;
        let mut outcome = Ok(());
        let update_time = milliseconds(|| outcome = optimizer.step(parameters, gradients));
        outcome?;
        if repeat >= plan.warm_up {
            update_ms.push(update_time);
            copy_ms.push(copy_time);
        }
    }
    let copy_gb_per_s = COPY_BYTES / median(&sorted(copy_ms)) / 1e6;
    Ok(Times { update_ms, copy_gb_per_s, state_bytes: optimizer.state_bytes() })
}

impl Size {
    /// The elements of all tensors together.
    fn elements(&self) -> usize {
        self.tensor_lengths.iter().sum()
    }

    /// Its tensors, all of one group.
    fn tensors(&self) -> Vec<TensorSpec> {
        let tensor = |(position, &length): (usize, &usize)| {
            TensorSpec::new(format!("tensor.{position}"), length, 0)
        };
        self.tensor_lengths.iter().enumerate().map(tensor).collect()
    }
}

/// The one group of the tensors.
fn groups(format: Format) -> [Group; 1] {
    [Group { format, weight_decay: 0.1, ..Group::default() }]
}

impl CopyBuffers {
    fn new() -> CopyBuffers {
        CopyBuffers { from: noise(COPY_ELEMENTS, 0, 1.0), to: vec![0.0; COPY_ELEMENTS] }
    }

    /// Copies all of it, one piece per thread.
    fn run(&mut self) {
        let piece = COPY_ELEMENTS.div_ceil(rayon::current_num_threads());
        let pieces = self.to.par_chunks_mut(piece).zip(self.from.par_chunks(piece));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
    }
}

impl Times {
    fn into_row(
        self,
        size: &Size,
        format: Format,
        device: &'static str,
        mode: &'static str,
    ) -> Row {
        self.into_row_of(size, format, device, mode, ("f32", 4))
    }

    /// The same, of parameters and gradients of a type and as many bytes.
    fn into_row_of(
        self,
        size: &Size,
        format: Format,
        device: &'static str,
        mode: &'static str,
        (number_type, number_bytes): (&'static str, u64),
    ) -> Row {
        let update_ms = sorted(self.update_ms);
        let parameters = size.tensor_lengths.iter().map(|&length| length as u64).sum::<u64>();
        let per_parameter = |bytes: u64| bytes as f64 / (parameters.max(1)) as f64;
        let bytes = 2 * self.state_bytes + 3 * number_bytes * parameters;
        let ms_median = median(&update_ms);
        let gb_per_s = bytes as f64 / ms_median / 1e6;
        Row {
            device,
            format,
            size: size.name.clone(),
            tensors: size.tensor_lengths.len(),
            parameters,
            mode,
            parameter_type: number_type,
            gradient_type: number_type,
            ms_median,
            ms_min: update_ms[0],
            ms_max: update_ms[update_ms.len() - 1],
            bytes_per_parameter: per_parameter(bytes),
            state_bytes_per_parameter: per_parameter(self.state_bytes),
            gb_per_s,
            copy_gb_per_s: self.copy_gb_per_s,
            share_of_copy: gb_per_s / self.copy_gb_per_s,
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    /// Reads `100m`, `1gi` or `16x64mi`.
    fn from_str(text: &str) -> Result<Size, Error> {
        parse_lengths(text)
            .map(|tensor_lengths| Size { name: text.to_owned(), tensor_lengths })
            .ok_or_else(|| Error::BenchSize { found: text.to_owned() })
    }
}

fn parse_lengths(text: &str) -> Option<Vec<usize>> {
    let (count, length) = text.split_once('x').unwrap_or(("1", text));
    let digits = length.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: usize = match &length[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        _ => return None,
    };
    let length = digits.parse::<usize>().ok()?.checked_mul(unit)?;
    let count: u32 = count.parse().ok()?;
    length.checked_mul(count as usize)?;
    Some(vec![length; count as usize])
}

/// Whether the buffers of the copy, parameters, gradients and the largest state
/// fit; always, where the system does not say what is free.
fn check_memory(size: &Size, formats: &[Format]) -> Result<(), Error> {
    let state_bytes = |format: &Format| -> u64 {
        size.tensor_lengths.iter().map(|&length| format.state_bytes(length as u64)).sum()
    };
    let elements = size.elements();
    let buffers = 2 * (COPY_ELEMENTS + elements) * size_of::<f32>();
    let needed_bytes = buffers as u64 + formats.iter().map(state_bytes).max().unwrap_or(0);
    match available_bytes() {
        Some(available_bytes) if available_bytes < needed_bytes => {
            Err(Error::NotEnoughMemory { size: size.name.clone(), needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// The memory that a new allocation can have, where the system tells.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Numbers in `-scale..scale` that no instruction treats specially.
fn noise(elements: usize, tensor: u32, scale: f32) -> Vec<f32> {
    let stream = RandomStream::new(0, 0, tensor, 0);
    let number = |index: usize| (stream.word(index as u32) as i32 as f32) * (scale / 2f32.powi(31));
    (0..elements).into_par_iter().map(number).collect()
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The median of sorted numbers, of which there is at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
