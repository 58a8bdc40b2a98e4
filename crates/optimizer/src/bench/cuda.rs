//! How long an update takes on a CUDA device, by its own events, beside a copy of its memory in the
//! same run.
//!
//! Updates are timed in bursts of a few milliseconds, one after the other on one stream, so that
//! a small model is not timed by its gaps. An eager update is `set_update` and `step`; one
//! in a graph is the replay of a recorded step, and the copy of its scalars is not in it. Inputs
//! are noise, not zeros. The norm is measured only where a variant says so: no update needs it
//! that does not clip.

use bytemuck::Pod;
use formats::dynamic_map::{signed, unsigned};
use formats::{Block8, Format, Maps};
use gpu_kernels::bandwidth::Copy;
use gpu_kernels::{Buffer, Gpu, Shape};

use super::{Plan, Row, Size, Times, groups, median, noise, sorted};
use crate::{
    AdamW, BiasChoice, CudaAdamW, CudaQuantizedAdamW, CudaQuantizedMoment, CudaSettings, Error,
    Group, OnNonfinite, Options,
};

/// Bytes of each of the two buffers of the copy, where there is room for ten times as much.
const COPY_BYTES: u64 = 4 << 30;
/// Copies that are timed.
const COPIES: usize = 10;
/// The least time of a burst.
const BURST_MS: f64 = 3.0;
/// Elements of noise that are made on the host; longer buffers repeat them.
const NOISE_ELEMENTS: usize = 1 << 24;

/// A way to do an update, worth measuring beside others.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What reports call it.
    pub name: String,
    /// How the update is launched.
    pub settings: CudaSettings,
    /// Clipping, and what elements that are not finite lead to.
    pub options: Options,
    /// How tensors get a bias.
    pub bias: BiasChoice,
    /// Whether a replay comes with its `set_update`.
    pub sets_update: bool,
}

/// The measurement of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantRow {
    /// The name of the variant.
    pub variant: String,
    /// The state format.
    pub format: Format,
    /// The name of the size.
    pub size: String,
    /// The median of the measured updates, replayed from a graph.
    pub ms_median: f64,
    /// The fastest.
    pub ms_min: f64,
    /// The slowest.
    pub ms_max: f64,
    /// The bytes of an update, without those of a norm or a look for what is not finite, over the
    /// median, over the bandwidth of a copy.
    pub share_of_copy: f64,
    /// Registers of a thread of the update.
    pub registers: u32,
}

/// Measures every format on every size, eager and in a graph.
///
/// # Errors
///
/// What the device refuses, such as a size that does not fit its memory.
pub fn run_cuda(plan: &Plan, gpu: &Gpu) -> Result<Vec<Row>, Error> {
    let mut copy = copy(gpu)?;
    let mut rows = Vec::new();
    for size in &plan.sizes {
        let mut buffers = Buffers::new(gpu, size)?;
        for &format in &plan.formats {
            let plain = Variant::plain("plain");
            let mut optimizer = plain.optimizer(gpu, size, format)?;
            let state_bytes = optimizer.state_bytes();
            for mode in ["eager", "graph"] {
                let update_ms = if mode == "eager" {
                    eager_ms(plan, gpu, &mut optimizer, &mut buffers)?
                } else {
                    graph_ms(plan, gpu, &mut optimizer, &mut buffers, false)?
                };
                let copy_gb_per_s = median(&sorted(copy.gb_per_s(COPIES)?));
                let times = Times { update_ms, copy_gb_per_s, state_bytes };
                rows.push(times.into_row(size, format, "cuda", mode));
            }
        }
    }
    Ok(rows)
}

/// Measures every variant of every format on every size, in a graph.
///
/// # Errors
///
/// As [`run_cuda`].
pub fn run_cuda_variants(
    plan: &Plan,
    gpu: &Gpu,
    variants: &[Variant],
) -> Result<Vec<VariantRow>, Error> {
    let mut copy = copy(gpu)?;
    let mut rows = Vec::new();
    for size in &plan.sizes {
        let mut buffers = Buffers::new(gpu, size)?;
        for &format in &plan.formats {
            for variant in variants {
                let mut optimizer = variant.optimizer(gpu, size, format)?;
                let registers = optimizer.kernel_facts()?[0].registers;
                let sets_update = variant.sets_update;
                let update_ms = graph_ms(plan, gpu, &mut optimizer, &mut buffers, sets_update)?;
                let copy_gb_per_s = median(&sorted(copy.gb_per_s(COPIES)?));
                let state_bytes = optimizer.state_bytes();
                let times = Times { update_ms, copy_gb_per_s, state_bytes };
                let row = times.into_row(size, format, "cuda", "graph");
                rows.push(VariantRow {
                    variant: variant.name.clone(),
                    format,
                    size: row.size,
                    ms_median: row.ms_median,
                    ms_min: row.ms_min,
                    ms_max: row.ms_max,
                    share_of_copy: row.share_of_copy,
                    registers,
                });
            }
        }
    }
    Ok(rows)
}

/// Measures block-wise 8-bit AdamW over bf16 parameters and gradients, in blocks of `block`, each size
/// as one tensor, eager and in a graph.
///
/// # Errors
///
/// As [`run_cuda`], and if blocks have no power of two from 64 to 4096 elements.
pub fn run_cuda_quantized(plan: &Plan, gpu: &Gpu, block: usize) -> Result<Vec<Row>, Error> {
    let mut copy = copy(gpu)?;
    let maps = Maps::plain(&signed(), &unsigned())?;
    let optimizer = CudaQuantizedAdamW::new(gpu, &maps, block)?;
    let format = Format::Block8(Block8 { block: block as u32, ..Block8::ORIGINAL });
    let [group] = groups(format);
    let mut rows = Vec::new();
    for size in &plan.sizes {
        let (elements, blocks) = (size.elements(), size.elements().div_ceil(block));
        let halves =
            |tensor, scale| filled(gpu, elements, tensor, scale, |x| (x.to_bits() >> 16) as u16);
        let (mut parameters, gradients) = (halves(1, 0.05)?, halves(2, 1e-3)?);
        let (mut m_codes, mut v_codes) = (gpu.zeros::<u8>(elements)?, gpu.zeros::<u8>(elements)?);
        let (mut m_absmax, mut v_absmax) = (gpu.zeros::<f32>(blocks)?, gpu.zeros::<f32>(blocks)?);
        let mut update = 0;
        let mut step = || {
            update += 1;
            let first = CudaQuantizedMoment { codes: &mut m_codes, absmax: &mut m_absmax };
            let second = CudaQuantizedMoment { codes: &mut v_codes, absmax: &mut v_absmax };
            optimizer.step(&mut parameters, &gradients, first, second, &group, update)
        };
        for mode in ["eager", "graph"] {
            let update_ms = if mode == "eager" {
                bursts_ms(plan, gpu, &mut step)?
            } else {
                let graph = gpu.record(&mut step)?;
                bursts_ms(plan, gpu, &mut || Ok(graph.replay()?))?
            };
            let copy_gb_per_s = median(&sorted(copy.gb_per_s(COPIES)?));
            let state_bytes = (2 * elements + 8 * blocks) as u64;
            let times = Times { update_ms, copy_gb_per_s, state_bytes };
            rows.push(times.into_row_of(size, format, "cuda", mode, ("bf16", 2)));
        }
    }
    Ok(rows)
}

impl Variant {
    /// The variants worth measuring: every shape of a launch, then what clipping, measuring the norm,
    /// choosing a bias and looking for elements that are not finite cost.
    #[must_use]
    pub fn all() -> Vec<Variant> {
        let shapes = Shape::variants().into_iter().map(|(name, shape)| {
            let mut variant = Variant::plain(name);
            variant.settings.shape = shape;
            variant
        });
        let mut variants: Vec<Variant> = shapes.collect();
        let mut set = Variant::plain("with set_update");
        set.sets_update = true;
        let mut norm = Variant::plain("with norm");
        norm.settings.measures_norm = true;
        let mut clipped = Variant::plain("clipped");
        clipped.options.clip_norm = Some(1.0);
        let mut automatic = Variant::plain("automatic bias");
        automatic.bias = BiasChoice::Auto;
        let mut skipping = Variant::plain("skipping");
        skipping.options.on_nonfinite = OnNonfinite::Skip;
        variants.extend([set, norm, clipped, automatic, skipping]);
        variants
    }

    /// The default launch, without a norm.
    #[must_use]
    pub fn plain(name: &str) -> Variant {
        Variant {
            name: name.to_owned(),
            settings: CudaSettings { measures_norm: false, ..CudaSettings::default() },
            options: Options::default(),
            bias: Group::default().bias,
            sets_update: false,
        }
    }

    fn optimizer(&self, gpu: &Gpu, size: &Size, format: Format) -> Result<CudaAdamW, Error> {
        let groups = groups(format).map(|group| Group { bias: self.bias, ..group });
        CudaAdamW::with_settings(gpu, &size.tensors(), &groups, self.options, &self.settings)
    }
}

/// Parameters and gradients of a size.
struct Buffers {
    parameters: Buffer<f32>,
    gradients: Buffer<f32>,
}

impl Buffers {
    fn new(gpu: &Gpu, size: &Size) -> Result<Buffers, Error> {
        let floats = |tensor, scale| filled(gpu, size.elements(), tensor, scale, |x| x);
        Ok(Buffers { parameters: floats(1, 0.05)?, gradients: floats(2, 1e-3)? })
    }
}

/// Noise, as numbers of a type.
fn filled<T: Pod>(
    gpu: &Gpu,
    elements: usize,
    tensor: u32,
    scale: f32,
    of: impl Fn(f32) -> T,
) -> Result<Buffer<T>, Error> {
    let mut buffer = gpu.zeros::<T>(elements)?;
    let pattern = noise(NOISE_ELEMENTS.min(elements), tensor, scale);
    let pattern: Vec<T> = pattern.into_iter().map(of).collect();
    for start in (0..elements).step_by(pattern.len().max(1)) {
        let end = elements.min(start + pattern.len());
        buffer.view_mut().part(start..end).upload(&pattern[..end - start])?;
    }
    Ok(buffer)
}

/// Two buffers that take at most a tenth of what is free each.
fn copy(gpu: &Gpu) -> Result<Copy, Error> {
    let bytes = COPY_BYTES.min(gpu.free_bytes()? / 10);
    Ok(Copy::new(gpu, bytes as usize)?)
}

fn eager_ms(
    plan: &Plan,
    gpu: &Gpu,
    optimizer: &mut CudaAdamW,
    buffers: &mut Buffers,
) -> Result<Vec<f64>, Error> {
    bursts_ms(plan, gpu, &mut || {
        optimizer.set_next_update()?;
        optimizer.step(&mut buffers.parameters, &buffers.gradients)
    })
}

fn graph_ms(
    plan: &Plan,
    gpu: &Gpu,
    optimizer: &mut CudaAdamW,
    buffers: &mut Buffers,
    sets_update: bool,
) -> Result<Vec<f64>, Error> {
    optimizer.set_next_update()?;
    optimizer.step(&mut buffers.parameters, &buffers.gradients)?;
    let graph = gpu.record(|| optimizer.step(&mut buffers.parameters, &buffers.gradients))?;
    bursts_ms(plan, gpu, &mut || {
        if sets_update {
            optimizer.set_next_update()?;
        }
        Ok(graph.replay()?)
    })
}

/// The time of one update in each of a plan's bursts.
fn bursts_ms(
    plan: &Plan,
    gpu: &Gpu,
    update: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Vec<f64>, Error> {
    for _ in 0..plan.warm_up.max(1) {
        update()?;
    }
    let one_ms = gpu.elapsed_ms(&mut *update)?;
    let count = (BURST_MS / one_ms.max(1e-3)).ceil().max(1.0) as usize;
    let mut burst = || (0..count).try_for_each(|_| update());
    (0..plan.repeats.max(1)).map(|_| Ok(gpu.elapsed_ms(&mut burst)? / count as f64)).collect()
}
