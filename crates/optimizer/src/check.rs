//! Whether a CUDA device really has the bits of the CPU: the same updates on both, every word
//! compared. For the self-check of the command line, on the user's own device.

use formats::{Format, Fp16Word, RandomStream};
use gpu_kernels::{Buffer, Gpu, Kind};

use crate::{
    AdamW, BiasChoice, CpuAdamW, CudaAdamW, Error, Group, OnNonfinite, Options, SavedState,
    TensorSpec,
};

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRow {
    /// What was done.
    pub what: &'static str,
    /// The state format.
    pub format: Format,
    /// Parameters that were updated, all updates together.
    pub elements: u64,
    /// Words of parameters and state, and entries of reports, that differ.
    pub differing: u64,
}

/// Both optimizers, with their memory.
struct Twins {
    cpu: CpuAdamW,
    cuda: CudaAdamW,
    parameters: Vec<f32>,
    device_parameters: Buffer<f32>,
    device_gradients: Buffer<f32>,
    elements: u64,
    differing: u64,
}

/// What is done to both.
struct Case {
    what: &'static str,
    options: Options,
    bias: BiasChoice,
    /// The largest gradient of each update.
    largest: &'static [f32],
    /// Whether some gradients have any bits at all.
    has_any_bits: bool,
    /// Whether the state begins with every code of every lane.
    has_every_code: bool,
    /// Whether the device's steps are replayed from a recording.
    replays: bool,
}

/// Compares the device with the CPU in every format, on models of about `elements` parameters.
///
/// # Errors
///
/// What the device refuses. A difference is no error; the rows tell.
pub fn run_cuda(gpu: &Gpu, elements: usize) -> Result<Vec<CheckRow>, Error> {
    let mut rows = Vec::new();
    for format in Kind::FORMATS {
        for case in cases() {
            let has_words = format.lanes().is_some() && format != Format::Fp32;
            if case.has_every_code && !has_words {
                continue;
            }
            rows.push(case.run(gpu, format, elements)?);
        }
        rows.push(handover(gpu, format, elements)?);
    }
    Ok(rows)
}

fn cases() -> Vec<Case> {
    let plain = Options::default();
    let clipped = Options { clip_norm: Some(1.0), ..plain };
    let skipping = Options { on_nonfinite: OnNonfinite::Skip, ..clipped };
    let base = Case {
        what: "random gradients",
        options: plain,
        bias: Group::default().bias,
        largest: &[0.1, 0.1, 0.1, 0.1, 0.1],
        has_any_bits: false,
        has_every_code: false,
        replays: false,
    };
    vec![
        Case { what: "clipped gradients", options: clipped, ..base },
        Case { what: "automatic bias", bias: BiasChoice::Auto, ..base },
        Case { what: "saturating gradients", largest: &[1e6, 1e-6, 1e3], ..base },
        Case { what: "gradients of any bits", has_any_bits: true, options: clipped, ..base },
        Case { what: "dropped updates", has_any_bits: true, options: skipping, ..base },
        Case { what: "every stored code", has_every_code: true, ..base },
        Case { what: "replayed steps", replays: true, options: clipped, ..base },
        base,
    ]
}

impl Case {
    fn run(&self, gpu: &Gpu, format: Format, elements: usize) -> Result<CheckRow, Error> {
        let mut twins = Twins::new(gpu, format, elements, self.options, self.bias)?;
        if self.has_every_code {
            twins.store_every_code(format)?;
        }
        let graph = if self.replays {
            let first = noise(twins.parameters.len(), 99, 0.1);
            twins.step(100, &first)?;
            Some(twins.record(gpu)?)
        } else {
            None
        };
        for (update, &largest) in (101..).zip(self.largest) {
            let mut gradients = noise(twins.parameters.len(), update, largest);
            // In every other update, so that dropped ones are followed by others.
            if self.has_any_bits && update % 2 == 1 {
                put_any_bits(&mut gradients, update);
            }
            match &graph {
                None => twins.step(update, &gradients)?,
                Some(graph) => twins.replay(update, &gradients, graph)?,
            }
        }
        Ok(twins.into_row(self.what, format))
    }
}

/// A state that is saved on one device goes on on the other.
fn handover(gpu: &Gpu, format: Format, elements: usize) -> Result<CheckRow, Error> {
    let options = Options { clip_norm: Some(1.0), ..Options::default() };
    let mut twins = Twins::new(gpu, format, elements, options, BiasChoice::Auto)?;
    let gradients = noise(twins.parameters.len(), 1, 0.1);
    twins.step(1, &gradients)?;
    let (saved_cpu, saved_cuda) = (twins.cpu.save()?.into_owned(), twins.cuda.save()?.into_owned());
    twins.differing += u64::from(saved_cpu != saved_cuda);
    twins.cpu.load(&saved_cuda)?;
    twins.cuda.load(&saved_cpu)?;
    for update in 2..4 {
        let gradients = noise(twins.parameters.len(), update, 0.1);
        twins.step(update, &gradients)?;
    }
    Ok(twins.into_row("saved and loaded", format))
}

impl Twins {
    /// Tensors of even and of odd lengths, `elements` together or a few more.
    fn new(
        gpu: &Gpu,
        format: Format,
        elements: usize,
        options: Options,
        bias: BiasChoice,
    ) -> Result<Twins, Error> {
        let large = elements.saturating_sub(elements / 4).next_multiple_of(1024).max(0x1_0000);
        let lengths = [large, 0, 5, elements / 4, 1021];
        let tensors: Vec<TensorSpec> = lengths
            .iter()
            .enumerate()
            .map(|(position, &length)| {
                TensorSpec::new(format!("tensor.{position}"), length, position % 2)
            })
            .collect();
        let base =
            Group { learning_rate: 1e-2, betas: [0.9, 0.95], format, bias, ..Group::default() };
        let groups = [Group { weight_decay: 0.1, ..base }, base];
        let parameters = noise(lengths.iter().sum(), 1000, 1.0);
        Ok(Twins {
            cpu: CpuAdamW::new(&tensors, &groups, options)?,
            cuda: CudaAdamW::new(gpu, &tensors, &groups, options)?,
            device_parameters: gpu.upload(&parameters)?,
            device_gradients: gpu.zeros(parameters.len())?,
            parameters,
            elements: 0,
            differing: 0,
        })
    }

    /// The same update on both, compared.
    fn step(&mut self, update: u64, gradients: &Vec<f32>) -> Result<(), Error> {
        self.prepare(update, gradients)?;
        self.cuda.step(&mut self.device_parameters, &self.device_gradients)?;
        self.compare()
    }

    fn record(&mut self, gpu: &Gpu) -> Result<gpu_kernels::Graph, Error> {
        gpu.record(|| self.cuda.step(&mut self.device_parameters, &self.device_gradients))
    }

    fn replay(
        &mut self,
        update: u64,
        gradients: &Vec<f32>,
        graph: &gpu_kernels::Graph,
    ) -> Result<(), Error> {
        self.prepare(update, gradients)?;
        graph.replay()?;
        self.compare()
    }

    /// Does the update on the CPU and sets it on the device.
    fn prepare(&mut self, update: u64, gradients: &Vec<f32>) -> Result<(), Error> {
        self.cpu.set_update(update, &[1e-2, 1e-3])?;
        self.cpu.step(&mut self.parameters, gradients)?;
        self.device_gradients.upload(gradients)?;
        self.cuda.set_update(update, &[1e-2, 1e-3])?;
        self.elements += gradients.len() as u64;
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Error> {
        let found = self.device_parameters.to_vec()?;
        let parameters = found.iter().zip(&self.parameters);
        self.differing += parameters.filter(|(a, b)| a.to_bits() != b.to_bits()).count() as u64;
        let (cpu, cuda) = (self.cpu.save()?, self.cuda.save()?);
        self.differing += differing_words(&cpu, &cuda);
        self.differing += u64::from(cpu.metadata != cuda.metadata);
        self.differing += u64::from(self.cpu.report()? != self.cuda.report()?);
        Ok(())
    }

    /// Fills the state of the first tensor, on both, with every code of every lane.
    fn store_every_code(&mut self, format: Format) -> Result<(), Error> {
        let mut saved = self.cpu.save()?.into_owned();
        let bytes = saved.arrays[0].bytes.to_mut();
        for (code, word) in (0u32..).zip(bytes.chunks_exact_mut(4)) {
            let lanes = (code & 0xFFFF) | (code.wrapping_mul(0x9E37) & 0xFFFF) << 16;
            let is_stored = format != Format::Fp16 || Fp16Word::is_valid(lanes);
            // Cleared exponent bits make any word one that binary16 halves can have.
            let stored = if is_stored { lanes } else { lanes & 0x3BFF_BBFF };
            word.copy_from_slice(&stored.to_le_bytes());
        }
        self.cpu.load(&saved)?;
        self.cuda.load(&saved)
    }

    fn into_row(self, what: &'static str, format: Format) -> CheckRow {
        CheckRow { what, format, elements: self.elements, differing: self.differing }
    }
}

/// How many words of the arrays of two states differ.
fn differing_words(one: &SavedState<'_>, other: &SavedState<'_>) -> u64 {
    let differing = |array: usize| {
        let (one, other) = (&one.arrays[array].bytes, &other.arrays[array].bytes);
        one.chunks(4).zip(other.chunks(4)).filter(|(a, b)| a != b).count() as u64
    };
    (0..one.arrays.len()).map(differing).sum()
}

/// Numbers of both signs over twelve decades, up to about `largest`.
fn noise(count: usize, seed: u64, largest: f32) -> Vec<f32> {
    let stream = RandomStream::new(seed, 0, 0, 0);
    let number = |i: u32| {
        let (mantissa, exponent) = (stream.word(2 * i), stream.word(2 * i + 1));
        // Powers of two from 1 to 2^-40, the large ones more often.
        let depth = (u64::from(exponent >> 16) * u64::from(exponent & 0xFFFF)) >> 16;
        let scale = f32::from_bits((127 - ((depth * 40) >> 16) as u32) << 23);
        mantissa as i32 as f32 / 2f32.powi(31) * scale * largest
    };
    (0..count as u32).map(number).collect()
}

/// Replaces every hundredth number by any bits, some of them NaN and infinities.
fn put_any_bits(numbers: &mut [f32], seed: u64) {
    let stream = RandomStream::new(seed, 1, 0, 0);
    for (index, number) in (0u32..).zip(numbers).step_by(100) {
        let word = stream.word(index);
        *number = f32::from_bits(if index % 300 == 0 { word | 0x7F80_0000 } else { word });
    }
}
