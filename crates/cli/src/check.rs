//! `check`: this machine's optimizers against the authority.
//!
//! The processor's optimizer is compared with crate `reference`, and every CUDA device with the processor, which
//! is thereby as good as the authority: parameters, state words and counters, bit for bit. Passes of the network
//! are held against f64, within bounds.

use anyhow::{Result, bail};
use formats::published_random::Place;
use formats::{Format, RandomStream};
use gpu_kernels::{Gpu, Precision};
use optimizer::check::CheckRow;
use optimizer::{AdamW as _, CpuAdamW, Group, Options, TensorSpec};
use reference::{Hyperparameters, Model, Tensor};
use serde_json::{Value, json};
use trainer::{Device, Distances, Trained};

use crate::args::Check;
use crate::devices::{self, Name};
use crate::output::{self, grouped, note};
use crate::table;

/// Lengths of the tensors compared on the processor: none, one, odd ones, and more than a chunk.
const LENGTHS: [usize; 6] = [0, 1, 3, 129, 1023, 20_001];

/// Updates of each comparison on the processor.
const UPDATES: u64 = 4;

/// The global norm that gradients are clipped at on the processor, so that some updates are and some are not.
const CLIP_NORM: f64 = 1.0;

pub fn run(args: &Check) -> Result<()> {
    let name = devices::parse(&args.device)?;
    let mut rows: Vec<(String, CheckRow)> = Vec::new();
    if matches!(name, Name::Auto | Name::Cpu) {
        rows.extend(Format::ALL.map(|format| ("cpu".to_owned(), processor(format))));
    }
    let gpus = match name {
        Name::Auto => devices::open_all()?,
        Name::Cpu => Vec::new(),
        Name::Cuda(ordinal) => vec![devices::open(ordinal)?],
    };
    for gpu in &gpus {
        let device = format!("cuda:{}", gpu.facts().ordinal);
        let found = optimizer::check::run_cuda(gpu, args.elements)?;
        rows.extend(found.into_iter().map(|row| (device.clone(), row)));
    }
    let passes = passes(name, &gpus)?;
    if args.json {
        let passes = passes.iter().flat_map(Pass::rows).map(|row| row.describe());
        output::json(&rows.iter().map(describe).chain(passes).collect())?;
    } else {
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let head = ["device", "comparison", "format", "updates of a parameter", "differing words"];
        output::data(&format!("{}\n", table::columns(&head, &cells)))?;
        let cells: Vec<_> = passes.iter().flat_map(Pass::rows).map(|row| row.cells()).collect();
        let head = ["device", "pass", "against f64", "distance", "bound"];
        output::data(&format!("\n{}\n", table::columns(&head, &cells)))?;
    }
    let differing: u64 = rows.iter().map(|(_, row)| row.differing).sum();
    if differing > 0 {
        bail!(
            "{} words differ from the authority; do not train on this machine",
            grouped(differing)
        );
    }
    if let Some(pass) = passes.iter().find(|pass| !pass.is_good()) {
        bail!(
            "a pass in {} on {} is further from f64 than its bound; do not train on this machine",
            pass.precision,
            pass.device
        );
    }
    note("every bit is as it should be, and every pass within its bounds");
    Ok(())
}

/// How far passes in one precision on one device are from f64.
struct Pass {
    device: String,
    precision: Precision,
    found: Distances,
}

/// One of the distances, and its bound.
struct PassRow<'a> {
    pass: &'a Pass,
    what: &'static str,
    distance: f64,
    bound: f64,
}

impl Pass {
    fn on(device: &Device, trained: &Trained) -> Result<Self> {
        let found = trained.distances(device)?;
        Ok(Self { device: device.name(), precision: device.precision(), found })
    }

    fn rows(&self) -> impl Iterator<Item = PassRow<'_>> {
        let bounds = Distances::bounds(self.precision).named();
        self.found.named().into_iter().zip(bounds).map(|((what, distance), (_, bound))| PassRow {
            pass: self,
            what,
            distance,
            bound,
        })
    }

    fn is_good(&self) -> bool {
        self.found.are_within(&Distances::bounds(self.precision))
    }
}

impl PassRow<'_> {
    fn cells(&self) -> Vec<String> {
        vec![
            self.pass.device.clone(),
            self.pass.precision.to_string(),
            self.what.to_owned(),
            format!("{:.1e}", self.distance),
            format!("{:.0e}", self.bound),
        ]
    }

    fn describe(&self) -> Value {
        json!({
            "device": self.pass.device,
            "what": format!("{} against f64", self.what),
            "precision": self.pass.precision.name(),
            "distance": self.distance,
            "bound": self.bound,
        })
    }
}

/// The passes of the devices that are checked.
fn passes(name: Name, gpus: &[Gpu]) -> Result<Vec<Pass>> {
    let trained = Trained::new()?;
    let mut passes = Vec::new();
    if matches!(name, Name::Auto | Name::Cpu) {
        passes.push(Pass::on(&Device::Cpu, &trained)?);
    }
    for gpu in gpus {
        for precision in Precision::ALL {
            passes.push(Pass::on(&Device::on(gpu, precision)?, &trained)?);
        }
    }
    Ok(passes)
}

fn cells((device, row): &(String, CheckRow)) -> Vec<String> {
    vec![
        device.clone(),
        row.what.to_owned(),
        row.format.to_string(),
        grouped(row.elements),
        grouped(row.differing),
    ]
}

fn describe((device, row): &(String, CheckRow)) -> Value {
    json!({
        "device": device,
        "what": row.what,
        "format": row.format.to_string(),
        "elements": row.elements,
        "differing": row.differing,
    })
}

/// The processor's optimizer against the authority, in one format.
fn processor(format: Format) -> CheckRow {
    let group = Group { format, weight_decay: 0.1, ..Group::default() };
    let tensor =
        |(index, &length): (usize, &usize)| TensorSpec::new(format!("tensor.{index}"), length, 0);
    let tensors: Vec<TensorSpec> = LENGTHS.iter().enumerate().map(tensor).collect();
    let options = Options { clip_norm: Some(CLIP_NORM), ..Options::default() };
    let mut optimizer = CpuAdamW::new(&tensors, &[group], options).expect("the group is valid");
    let elements = LENGTHS.iter().sum();
    let mut parameters = noise(elements, 0, 1.0);
    let mut authority = authority(&parameters, &group, options.seed);
    for update in 1..=UPDATES {
        // The norm of these gradients passes the one they are clipped at on the way.
        let gradients = noise(elements, update as u32, 3e-3 * update as f32);
        optimizer.set_update(update, &[group.learning_rate]).expect("the rate is valid");
        optimizer.step(&mut parameters, &gradients).expect("the buffers fit");
        authority.step(update, &split(&gradients));
    }
    let expected = authority.tensors.iter().flat_map(|tensor| &tensor.parameters);
    let differs = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
    CheckRow {
        what: "processor and authority",
        format,
        elements: UPDATES * elements as u64,
        differing: parameters.iter().zip(expected).filter(differs).count() as u64,
    }
}

fn authority(parameters: &[f32], group: &Group, seed: u64) -> Model {
    let [beta1, beta2] = group.betas;
    let &Group { learning_rate, eps, weight_decay, format, .. } = group;
    let hyperparameters = Hyperparameters { learning_rate, beta1, beta2, eps, weight_decay };
    let tensor = |(position, own): (u32, &[f32])| Tensor {
        place: Place { group: 0, parameter: position },
        ..Tensor::new(own.to_vec(), format, Some(formats::Bias::DEFAULT), hyperparameters)
    };
    let tensors = (0..).zip(split(parameters)).map(tensor).collect();
    Model {
        tensors,
        seed,
        clip_norm: Some(CLIP_NORM),
        skip_nonfinite: false,
        maps: None,
        written: 0,
    }
}

/// The parts of a flat buffer that are the tensors.
fn split(flat: &[f32]) -> Vec<&[f32]> {
    let mut rest = flat;
    LENGTHS
        .iter()
        .map(|&length| {
            let (own, later) = rest.split_at(length);
            rest = later;
            own
        })
        .collect()
}

/// Numbers of both signs up to `largest`.
fn noise(count: usize, stream: u32, largest: f32) -> Vec<f32> {
    let words = RandomStream::new(1, 0, stream, 0);
    (0..count as u32).map(|i| words.word(i) as i32 as f32 / 2f32.powi(31) * largest).collect()
}
