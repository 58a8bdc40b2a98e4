//! One model twice: on the device and in the authority, compared bit for bit.

use std::ops::Range;

use formats::counter_hash::UpdateKeys;
use formats::published_random::Place;
use formats::split::Split;
use formats::{Bias, Format, Maps, RandomStream};
use gpu_kernels::{
    Buffer, FusedAdamW, Gpu, GradientType, Gradients, Group, Kind, Options, Outcome, ParameterType,
    ParametersMut, Placement, Shape, TensorPlace, TensorPlan, published_key,
};
use reference::{BlockScalars, Hyperparameters, Model, Report, Scalars, State, Tensor};

/// A group of tensors.
#[derive(Clone, Copy, Debug)]
pub struct GroupSpec {
    pub kind: Kind,
    pub hyperparameters: Hyperparameters,
    /// `None` to choose one.
    pub bias: Option<u32>,
}

/// What both are made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Length and group of every tensor.
    pub tensors: Vec<(usize, usize)>,
    pub groups: Vec<GroupSpec>,
    pub options: Options,
    pub seed: u64,
    /// Where tensors lie apart: how many elements each array begins after a border of 16 bytes,
    /// by tensor and array.
    pub shifts: Option<fn(usize, usize) -> usize>,
}

/// Both, with the memory of the device.
pub struct Pair {
    pub fused: FusedAdamW,
    pub authority: Model,
    setup: Setup,
    memory: Memory,
    /// The gradients of the last step as the device has them.
    gradients: Vec<Vec<f32>>,
}

/// Parameters and gradients on the device.
enum Memory {
    F32 { parameters: Buffer<f32>, gradients: Buffer<f32> },
    F32Bf16 { parameters: Buffer<f32>, gradients: Buffer<u16> },
    Split { upper: Buffer<u16>, remainders: Buffer<u16>, gradients: Buffer<f32> },
    SplitBf16 { upper: Buffer<u16>, remainders: Buffer<u16>, gradients: Buffer<u16> },
    Placed { bytes: Buffer<u8>, placement: Placement },
}

pub fn group(format: Format) -> GroupSpec {
    let hyperparameters = Hyperparameters {
        learning_rate: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    GroupSpec { kind: Kind::plain(format), hyperparameters, bias: Some(16) }
}

pub fn options() -> Options {
    Options {
        clip_norm: None,
        measures_norm: true,
        skips_nonfinite: false,
        holds_nonfinite: false,
        shape: Shape::default(),
        seed: 0,
    }
}

impl Setup {
    pub fn of(format: Format, lengths: &[usize]) -> Setup {
        Setup {
            tensors: lengths.iter().map(|&length| (length, 0)).collect(),
            groups: vec![group(format)],
            options: options(),
            seed: 0,
            shifts: None,
        }
    }

    pub fn elements(&self) -> usize {
        self.tensors.iter().map(|&(length, _)| length).sum()
    }

    pub fn build(&self, gpu: &Gpu) -> Pair {
        let parameters = noise(self.elements(), 1000, 1.0);
        let places = self.places();
        let plans = self.tensors.iter().zip(&places).map(|(&(length, group), &place)| {
            let GroupSpec { kind, bias, .. } = self.groups[group];
            let bias = if kind.format.has_bias() { bias } else { Some(16) };
            let kind = Kind { format: kind.format.for_length(length as u64), ..kind };
            let published = published_key(place);
            TensorPlan { length, group, kind, bias, published, part: None }
        });
        let plans: Vec<TensorPlan> = plans.collect();
        let is_placed = self.shifts.is_some();
        let rules = self.groups.iter().find_map(|group| match group.kind.format {
            Format::Block8(block8) => Some(block8.rules),
            _ => None,
        });
        let maps = rules.map(Maps::dynamic);
        let options = Options { seed: self.seed, ..self.options };
        let groups = self.groups.len();
        let fused = FusedAdamW::new(gpu, &plans, groups, options, is_placed, maps.as_deref());
        let authority = Model {
            tensors: self.authority_tensors(&parameters),
            seed: self.seed,
            clip_norm: self.options.clip_norm,
            skip_nonfinite: self.options.skips_nonfinite,
            maps: None,
            written: 0,
        };
        let memory = Memory::new(gpu, self, &parameters);
        let gradients = Vec::new();
        Pair { fused: fused.unwrap(), authority, setup: self.clone(), memory, gradients }
    }

    /// What an update is set with.
    pub fn scalars(&self, update: u64) -> (UpdateKeys, Vec<Group>) {
        let scalars = self.groups.iter().map(|group| {
            let s = Scalars::at(group.hyperparameters, update);
            Group {
                beta1: s.beta1,
                one_minus_beta1: s.one_minus_beta1,
                beta2: s.beta2,
                one_minus_beta2: s.one_minus_beta2,
                eps: s.eps,
                decay: s.decay,
                step: s.step,
                rms_scale: s.rms_scale,
                blocks: block_scalars(BlockScalars::at(group.hyperparameters, update, update)),
            }
        });
        (UpdateKeys::new(self.seed, update), scalars.collect())
    }

    /// The place of every tensor in its group.
    fn places(&self) -> Vec<Place> {
        let mut counts = vec![0; self.groups.len()];
        let place = |&(_, group): &(usize, usize)| {
            counts[group] += 1;
            Place { group: group as u32, parameter: counts[group] - 1 }
        };
        self.tensors.iter().map(place).collect()
    }

    fn authority_tensors(&self, parameters: &[f32]) -> Vec<Tensor> {
        let mut rest = parameters;
        let tensors = self.tensors.iter().map(|&(length, group)| {
            let GroupSpec { kind, hyperparameters, bias } = self.groups[group];
            let (own, later) = rest.split_at(length);
            rest = later;
            let bias = bias.map(|bias| Bias::new(bias).unwrap());
            let bias = if kind.format.has_bias() { bias } else { Some(Bias::DEFAULT) };
            Tensor::new(own.to_vec(), kind.format, bias, hyperparameters)
        });
        let tensors = tensors.zip(self.places());
        tensors.map(|(tensor, place)| Tensor { place, ..tensor }).collect()
    }

    /// Cuts a flat slice at the borders of tensors.
    fn cut<'a, T>(&self, flat: &'a [T]) -> Vec<&'a [T]> {
        let mut rest = flat;
        let cuts = self.tensors.iter().map(|&(length, _)| {
            let (own, later) = rest.split_at(length);
            rest = later;
            own
        });
        cuts.collect()
    }
}

impl Memory {
    fn new(gpu: &Gpu, setup: &Setup, parameters: &[f32]) -> Memory {
        if let Some(shifts) = setup.shifts {
            let (bytes, placement) = placed(gpu, setup, shifts);
            let mut memory = Memory::Placed { bytes, placement };
            memory.set_parameters(setup, parameters);
            return memory;
        }
        let length = parameters.len();
        let kind = setup.groups.first().map_or(Kind::plain(Format::E4), |group| group.kind);
        let (upper, remainders) = halves(parameters);
        let zeros = || gpu.zeros(length).unwrap();
        let words = || gpu.upload(parameters).unwrap();
        let bits = |halves: &[u16]| gpu.upload(halves).unwrap();
        match (kind.parameters, kind.gradients) {
            (ParameterType::F32, GradientType::F32) => {
                Memory::F32 { parameters: words(), gradients: gpu.zeros(length).unwrap() }
            }
            (ParameterType::F32, GradientType::Bf16) => {
                Memory::F32Bf16 { parameters: words(), gradients: zeros() }
            }
            (ParameterType::Split, GradientType::F32) => {
                let gradients = gpu.zeros(length).unwrap();
                Memory::Split { upper: bits(&upper), remainders: bits(&remainders), gradients }
            }
            (ParameterType::Split, GradientType::Bf16) => {
                let gradients = zeros();
                Memory::SplitBf16 { upper: bits(&upper), remainders: bits(&remainders), gradients }
            }
        }
    }

    /// Changes parameters everywhere.
    fn set_parameters(&mut self, setup: &Setup, numbers: &[f32]) {
        let (upper, remainders) = halves(numbers);
        match self {
            Memory::F32 { parameters, .. } | Memory::F32Bf16 { parameters, .. } => {
                parameters.upload(numbers).unwrap();
            }
            Memory::Split { upper: u, remainders: r, .. }
            | Memory::SplitBf16 { upper: u, remainders: r, .. } => {
                u.upload(&upper).unwrap();
                r.upload(&remainders).unwrap();
            }
            Memory::Placed { bytes, placement } => {
                for (place, own) in placement.tensors().iter().zip(setup.cut(numbers)) {
                    if place.parameter_type == ParameterType::F32 {
                        write(bytes, place.parameters, own);
                    } else {
                        let (upper, remainders) = halves(own);
                        write(bytes, place.parameters, &upper);
                        write(bytes, place.remainders, &remainders);
                    }
                }
            }
        }
    }

    fn parameters(&self) -> Vec<Vec<f32>> {
        match self {
            Memory::F32 { parameters, .. } | Memory::F32Bf16 { parameters, .. } => {
                vec![parameters.to_vec().unwrap()]
            }
            Memory::Split { upper, remainders, .. }
            | Memory::SplitBf16 { upper, remainders, .. } => {
                vec![whole(&upper.to_vec().unwrap(), &remainders.to_vec().unwrap())]
            }
            Memory::Placed { bytes, placement } => {
                let read_one = |place: &TensorPlace| match place.parameter_type {
                    ParameterType::F32 => read::<f32>(bytes, place.parameters, place.length),
                    ParameterType::Split => whole(
                        &read::<u16>(bytes, place.parameters, place.length),
                        &read::<u16>(bytes, place.remainders, place.length),
                    ),
                };
                placement.tensors().iter().map(read_one).collect()
            }
        }
    }

    /// Overwrites the gradients; returns what the device then has, tensor by tensor.
    fn set_gradients(&mut self, setup: &Setup, flat: &[f32]) -> Vec<Vec<f32>> {
        let bf16: Vec<u16> = flat.iter().map(|&g| to_bf16(g)).collect();
        match self {
            Memory::F32 { gradients, .. } | Memory::Split { gradients, .. } => {
                gradients.upload(flat).unwrap();
            }
            Memory::F32Bf16 { gradients, .. } | Memory::SplitBf16 { gradients, .. } => {
                gradients.upload(&bf16).unwrap();
            }
            Memory::Placed { bytes, placement } => {
                let cuts = setup.cut(flat).into_iter().zip(setup.cut(&bf16));
                for (place, (words, halves)) in placement.tensors().iter().zip(cuts) {
                    match place.gradient_type {
                        GradientType::F32 => write(bytes, place.gradients, words),
                        GradientType::Bf16 => write(bytes, place.gradients, halves),
                    }
                }
            }
        }
        let cuts = setup.cut(flat).into_iter().zip(&setup.tensors);
        cuts.map(|(own, &(_, group))| match setup.groups[group].kind.gradients {
            GradientType::F32 => own.to_vec(),
            GradientType::Bf16 => own.iter().map(|&g| from_bf16(to_bf16(g))).collect(),
        })
        .collect()
    }
}

impl Pair {
    /// Queues the step on the device alone.
    pub fn queue_step(&mut self) {
        match &mut self.memory {
            Memory::F32 { parameters, gradients } => {
                self.fused.step(ParametersMut::F32(parameters), Gradients::F32(gradients))
            }
            Memory::F32Bf16 { parameters, gradients } => {
                self.fused.step(ParametersMut::F32(parameters), Gradients::Bf16(gradients))
            }
            Memory::Split { upper, remainders, gradients } => {
                let parameters = ParametersMut::Split { upper, remainders };
                self.fused.step(parameters, Gradients::F32(gradients))
            }
            Memory::SplitBf16 { upper, remainders, gradients } => {
                let parameters = ParametersMut::Split { upper, remainders };
                self.fused.step(parameters, Gradients::Bf16(gradients))
            }
            Memory::Placed { placement, .. } => self.fused.step_placed(placement),
        }
        .unwrap();
    }

    /// The same updated in pieces, the last piece first.
    #[track_caller]
    pub fn queue_step_in_pieces(&mut self, gpu: &Gpu, pieces: &[Range<usize>]) {
        let Memory::F32 { parameters, gradients } = &mut self.memory else { panic!("f32 alone") };
        let gradients = Gradients::F32(gradients);
        let parameters = ParametersMut::F32(parameters);
        let later = self.fused.step_but(parameters, gradients, None, pieces).unwrap();
        assert_eq!(later.len(), pieces.len());
        for update in later.iter().rev() {
            update.queue(gpu).unwrap();
        }
    }

    /// Sets update and gradients of the next step on the device.
    pub fn prepare(&mut self, update: u64, flat: &[f32]) {
        self.gradients = self.memory.set_gradients(&self.setup, flat);
        let (keys, scalars) = self.setup.scalars(update);
        self.fused.set_update(update, keys, scalars.into_iter()).unwrap();
    }

    /// The same step in both; everything that it leaves is compared.
    #[track_caller]
    pub fn step(&mut self, update: u64, flat: &[f32]) -> Outcome {
        self.prepare(update, flat);
        self.queue_step();
        self.compare(update)
    }

    /// Steps the authority, and compares what the device has done with it.
    #[track_caller]
    pub fn compare(&mut self, update: u64) -> Outcome {
        let found = self.fused.outcome().unwrap();
        let gradients: Vec<&[f32]> = self.gradients.iter().map(|g| &g[..]).collect();
        let expected = self.authority.step(update, &gradients);
        self.compare_outcome(update, &found, &expected);
        self.compare_parameters();
        self.compare_state();
        found
    }

    #[track_caller]
    fn compare_outcome(&self, update: u64, found: &Outcome, expected: &Report) {
        assert_eq!(found.update, update);
        let options = self.setup.options;
        if options.measures_norm || options.clip_norm.is_some() {
            assert_eq!(found.gradient_norm.to_bits(), expected.gradient_norm.to_bits());
            let gradients = self.gradients.iter().flatten();
            let nonfinite = gradients.filter(|g| !g.is_finite()).count() as u64;
            assert_eq!(found.nonfinite_gradients, nonfinite);
        } else {
            assert!(found.gradient_norm.is_nan());
        }
        assert_eq!(found.clip_scale.to_bits(), expected.clip_scale.to_bits());
        assert_eq!(
            (found.nonfinite, found.saturated_m, found.saturated_r),
            (expected.nonfinite, expected.saturated_m, expected.saturated_r)
        );
        let before = |tensor: usize| -> usize {
            self.setup.tensors[..tensor].iter().map(|&(length, _)| length).sum()
        };
        let first = expected.first_nonfinite.map(|at| (before(at.tensor) + at.index) as u64);
        assert_eq!(found.first_nonfinite, first);
    }

    #[track_caller]
    fn compare_parameters(&self) {
        let parts = self.memory.parameters();
        let tensors: Vec<&[f32]> = if matches!(self.memory, Memory::Placed { .. }) {
            parts.iter().map(|part| &part[..]).collect()
        } else {
            self.setup.cut(&parts[0])
        };
        for (position, (found, tensor)) in tensors.iter().zip(&self.authority.tensors).enumerate() {
            let difference = reference::first_difference(found, &tensor.parameters);
            assert_eq!(difference, None, "parameters of tensor {position}");
        }
    }

    #[track_caller]
    fn compare_state(&self) {
        let biases = self.fused.biases().unwrap();
        for (position, tensor) in self.authority.tensors.iter().enumerate() {
            if tensor.format.has_bias() {
                assert_eq!(biases[position], tensor.bias.map(Bias::get), "tensor {position}");
            }
            let words = |section| self.fused.state(position, section).unwrap();
            match &tensor.state {
                State::F32(moments) => {
                    let bits = |which: usize| moments.iter().map(move |pair| pair[which].to_bits());
                    assert!(bits(0).eq(words(0)), "m of tensor {position}");
                    assert!(bits(1).eq(words(1)), "v of tensor {position}");
                }
                State::Words(expected) => {
                    assert!(*expected == words(0), "words of tensor {position}");
                }
                State::Arrays(arrays) => {
                    let length = tensor.parameters.len() as u64;
                    let sections = tensor.format.sections(length).zip(arrays).enumerate();
                    for (number, (section, expected)) in sections {
                        let found: Vec<u8> =
                            words(number).into_iter().flat_map(u32::to_le_bytes).collect();
                        let pairs = found.iter().zip(expected).enumerate();
                        let first = pairs.clone().find(|(_, (found, expected))| found != expected);
                        let (format, name) = (tensor.format, section.name);
                        assert_eq!(first, None, "{name} of tensor {position} in {format}");
                    }
                }
            }
        }
    }

    /// Changes some parameters in both.
    pub fn set_parameters(&mut self, change: impl Fn(usize, f32) -> f32) {
        let mut position = 0;
        let mut flat = Vec::new();
        for tensor in &mut self.authority.tensors {
            for parameter in &mut tensor.parameters {
                *parameter = change(position, *parameter);
                flat.push(*parameter);
                position += 1;
            }
        }
        self.memory.set_parameters(&self.setup, &flat);
    }

    /// Overwrites the words of a tensor in both.
    pub fn set_words(&mut self, tensor: usize, words: &[u32]) {
        self.fused.set_state(tensor, 0, words).unwrap();
        self.authority.tensors[tensor].state = State::Words(words.to_vec());
    }
}

/// Tensors apart from each other in one block of bytes.
fn placed(gpu: &Gpu, setup: &Setup, shifts: fn(usize, usize) -> usize) -> (Buffer<u8>, Placement) {
    let mut next = 0;
    let mut places = Vec::new();
    for (position, &(length, group)) in setup.tensors.iter().enumerate() {
        let kind = setup.groups[group].kind;
        let mut array = |which: usize, bytes: u64| {
            let start = next + shifts(position, which) * bytes as usize;
            // A gap, so that a stray write meets bytes that nobody compares.
            next = (start + length * bytes as usize + 64).next_multiple_of(16);
            start as u64
        };
        let is_split = kind.parameters == ParameterType::Split;
        places.push(TensorPlace {
            parameters: array(0, kind.parameters.bytes()),
            remainders: if is_split { array(1, 2) } else { 0 },
            gradients: array(2, kind.gradients.bytes()),
            length,
            parameter_type: kind.parameters,
            gradient_type: kind.gradients,
        });
    }
    let bytes = gpu.zeros::<u8>(next).unwrap();
    for place in &mut places {
        place.parameters += bytes.address();
        place.gradients += bytes.address();
        if place.parameter_type == ParameterType::Split {
            place.remainders += bytes.address();
        }
    }
    // SAFETY: 1. and 2. the buffer goes with the placement, and tests use it through both in turn.
    #[expect(unsafe_code, reason = "vouches for the buffer above")]
    let placement = unsafe { Placement::new(places) }.unwrap();
    (bytes, placement)
}

fn write<T: bytemuck::Pod>(bytes: &mut Buffer<u8>, address: u64, elements: &[T]) {
    let start = (address - bytes.address()) as usize;
    let elements: &[u8] = bytemuck::cast_slice(elements);
    bytes.view_mut().part(start..start + elements.len()).upload(elements).unwrap();
}

fn read<T: bytemuck::Pod>(bytes: &Buffer<u8>, address: u64, length: usize) -> Vec<T> {
    let start = (address - bytes.address()) as usize;
    let part = bytes.view().part(start..start + length * size_of::<T>());
    let bytes = part.to_vec().unwrap();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn block_scalars(blocks: BlockScalars) -> gpu_kernels::BlockScalars {
    gpu_kernels::BlockScalars {
        ratio_max: blocks.ratio_max,
        ratio_max_before: blocks.ratio_max_before,
        inverse_ratio_max_before: blocks.inverse_ratio_max_before,
        normalised_max: blocks.normalised_max,
        inverse_correction: blocks.inverse_correction,
        correction: blocks.correction_before,
        padding: [0.0; 2],
    }
}

fn halves(numbers: &[f32]) -> (Vec<u16>, Vec<u16>) {
    let halves = numbers.iter().map(|&number| Split::of(number));
    halves.map(|half| (half.upper, half.remainder)).unzip()
}

fn whole(upper: &[u16], remainders: &[u16]) -> Vec<f32> {
    let halves = upper.iter().zip(remainders);
    halves.map(|(&upper, &remainder)| Split { upper, remainder }.recombine()).collect()
}

/// Cut to bf16, NaN staying NaN.
fn to_bf16(number: f32) -> u16 {
    let upper = (number.to_bits() >> 16) as u16;
    if number.is_nan() { upper | 0x40 } else { upper }
}

fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Numbers of both signs from 1e-12 to about `largest`, from a counter.
pub fn noise(count: usize, seed: u64, largest: f32) -> Vec<f32> {
    let stream = RandomStream::new(seed, 0, 0, 0);
    let number = |i: u32| {
        let (mantissa, exponent) = (stream.word(2 * i), stream.word(2 * i + 1));
        let scale = 10f32.powf(-12.0 * (exponent as f32 / u32::MAX as f32).powi(2));
        mantissa as i32 as f32 / 2f32.powi(31) * scale * largest
    };
    (0..count as u32).map(number).collect()
}
