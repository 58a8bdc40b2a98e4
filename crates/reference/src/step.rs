//! One update of a whole model through its state formats: clipping, the choice of
//! biases, the update, encoding, and every counter.
//!
//! The order of a step:
//!
//! 1. the norm of all gradients and the clip scale (1 without clipping); every
//!    gradient element is multiplied by the scale, in f32, before all else;
//! 2. when non-finite elements drop the update: if any element would be one,
//!    nothing at all is written, and the report has no saturation;
//! 3. tensors without a bias choose one from their clipped gradient, if it has a
//!    finite element other than zero;
//! 4. every element: decode, update in f32, encode. An element whose new m, v or
//!    parameter is not finite (as a gradient that is not finite makes it) keeps
//!    its parameter and its state, and is counted. In a format of blocks its moments enter the new
//!    blocks as they were decoded.

use std::sync::OnceLock;

use formats::published_random::Place;
use formats::{
    Bias, Block8, E4Word, E4sWord, Format, Fp16Word, Maps, Moments, Packed, RandomStream, Rules,
    WordCodec,
};

use crate::adamw::{BlockScalars, Hyperparameters, Parameter, Scalars, update_f32};
use crate::blocks::{self, Context, Random};
use crate::norm::{clip_scale, gradient_norm};

/// A model under optimisation.
#[derive(Clone, Debug)]
pub struct Model {
    /// The tensors, in the order of their ids.
    pub tensors: Vec<Tensor>,
    /// Seed of stochastic rounding.
    pub seed: u64,
    /// The norm that the gradient is clipped at, if it is.
    pub clip_norm: Option<f64>,
    /// Whether one non-finite element drops the whole update.
    pub skip_nonfinite: bool,
    /// The maps of `block8` tensors; `None` for the dynamic ones.
    pub maps: Option<Box<Maps>>,
    /// The update that wrote the state; 0 at first.
    pub written: u64,
}

/// A tensor with its state.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The parameters.
    pub parameters: Vec<f32>,
    /// How the moments are stored.
    pub format: Format,
    /// The exponent bias; `None` until it is chosen from a gradient.
    pub bias: Option<Bias>,
    /// The stored moments.
    pub state: State,
    /// What the updates of this tensor follow.
    pub hyperparameters: Hyperparameters,
    /// Its group, and its place in that: what published random numbers depend on.
    pub place: Place,
}

/// Stored moments.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Both moments of each parameter as they are.
    F32(Vec<[f32; 2]>),
    /// One state word for each parameter.
    Words(Vec<u32>),
    /// The arrays of a format of blocks, byte by byte as they are saved.
    Arrays(Vec<Vec<u8>>),
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The norm of the gradients before clipping, over finite elements.
    pub gradient_norm: f64,
    /// What the gradients were multiplied by.
    pub clip_scale: f32,
    /// Elements that were left alone because something was not finite.
    pub nonfinite: u64,
    /// Elements whose first moment was clamped at the largest finite code.
    pub saturated_m: u64,
    /// Elements whose RMS was clamped at the largest finite code.
    pub saturated_r: u64,
    /// The first of the non-finite elements.
    pub first_nonfinite: Option<Location>,
    /// Whether the update was dropped.
    pub skipped: bool,
}

/// An element of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The tensor's position in the model.
    pub tensor: usize,
    /// The element's position in the tensor.
    pub index: usize,
}

impl Tensor {
    /// A tensor with a fresh state.
    #[must_use]
    pub fn new(
        parameters: Vec<f32>,
        format: Format,
        bias: Option<Bias>,
        hyperparameters: Hyperparameters,
    ) -> Tensor {
        let elements = parameters.len();
        let format = format.for_length(elements as u64);
        let state = match format {
            Format::Fp32 => State::F32(vec![[0.0; 2]; elements]),
            Format::Fp16 | Format::E4 | Format::E4s => State::Words(vec![0; elements]),
            Format::Block8(_) | Format::UState1Q(_) | Format::N4l4(_) => {
                let fresh = |section: formats::Section| {
                    let bytes = section.fresh.iter().copied().cycle();
                    bytes.take(section.bytes() as usize).collect()
                };
                State::Arrays(format.sections(elements as u64).map(fresh).collect())
            }
        };
        Tensor { parameters, format, bias, state, hyperparameters, place: Place::default() }
    }

    /// All parameters with their decoded moments.
    fn decode(&self, context: &Context<'_>) -> Vec<Parameter<f32>> {
        let moments: Vec<[f32; 2]> = match &self.state {
            State::F32(moments) => moments.clone(),
            State::Words(words) => words.iter().map(|&word| self.decode_word(word)).collect(),
            State::Arrays(arrays) => {
                blocks::decode(self.format, arrays, self.parameters.len(), context)
            }
        };
        let parameters = self.parameters.iter().zip(moments);
        parameters.map(|(&p, [m, v])| Parameter { p, m, v }).collect()
    }

    fn decode_word(&self, word: u32) -> [f32; 2] {
        let bias = self.bias.unwrap_or_default();
        let Moments { m, r } = match self.format {
            Format::Fp16 => Fp16Word::new().decode(word),
            _ => E4Word::new(bias).decode(word),
        };
        [m, r * r]
    }

    /// What an element becomes, if all of it is finite.
    fn finite_update(
        &self,
        scalars: Scalars,
        before: Parameter<f32>,
        g: f32,
    ) -> Option<Parameter<f32>> {
        let after = match self.format {
            // The published format decays last.
            Format::Block8(Block8 { rules: Rules::Published, .. }) => {
                let after = update_f32(Scalars { decay: 1.0, ..scalars }, before, g);
                Parameter { p: after.p * scalars.decay, ..after }
            }
            _ => update_f32(scalars, before, g),
        };
        let is_finite = after.p.is_finite() && after.m.is_finite() && after.v.is_finite();
        is_finite.then_some(after)
    }

    /// Stores what all elements became, `None` for those that stay, and adds up the lanes that
    /// saturated.
    fn encode(
        &mut self,
        before: &[Parameter<f32>],
        after: &[Option<Parameter<f32>>],
        context: &Context<'_>,
        report: &mut Report,
    ) {
        for (parameter, after) in self.parameters.iter_mut().zip(after) {
            *parameter = after.map_or(*parameter, |after| after.p);
        }
        let bias = self.bias.unwrap_or_default();
        let changed = after.iter().enumerate();
        let changed = changed.filter_map(|(index, after)| Some((index, (*after)?)));
        match &mut self.state {
            State::F32(moments) => changed.for_each(|(i, after)| moments[i] = [after.m, after.v]),
            State::Words(words) => {
                for (index, after) in changed {
                    let moments = Moments { m: after.m, r: after.v.sqrt() };
                    let Packed { word, saturated_m, saturated_r } =
                        encode_word(self.format, bias, moments, index, context.random);
                    words[index] = word;
                    report.saturated_m += u64::from(saturated_m);
                    report.saturated_r += u64::from(saturated_r);
                }
            }
            State::Arrays(arrays) => {
                let moments = after.iter().zip(before);
                let moments = moments.map(|(after, before)| after.unwrap_or(*before));
                let moments: Vec<[f32; 2]> = moments.map(|one| [one.m, one.v]).collect();
                blocks::encode(self.format, arrays, &moments, context);
            }
        }
    }

    /// Chooses the bias from the clipped gradient, if there is none yet.
    fn choose_bias(&mut self, gradient: &[f32], clip_scale: f32) {
        if self.bias.is_none() {
            let clipped = gradient.iter().map(|g| (g * clip_scale).abs());
            let gradient_max = clipped.filter(|g| g.is_finite()).fold(0.0, f32::max);
            self.bias = Bias::for_max_gradient(gradient_max);
        }
    }
}

impl Model {
    /// Update number `update`, counted from 1, with one gradient per tensor.
    ///
    /// # Panics
    ///
    /// If a gradient has another length than its tensor.
    pub fn step(&mut self, update: u64, gradients: &[&[f32]]) -> Report {
        assert_eq!(self.tensors.len(), gradients.len(), "one gradient per tensor");
        let norm = gradient_norm(gradients).norm;
        let clip_scale = self.clip_norm.map_or(1.0, |clip_norm| clip_scale(clip_norm, norm));
        let mut report = Report {
            gradient_norm: norm,
            clip_scale,
            nonfinite: 0,
            saturated_m: 0,
            saturated_r: 0,
            first_nonfinite: None,
            skipped: false,
        };

        for (position, (tensor, gradient)) in self.tensors.iter().zip(gradients).enumerate() {
            assert_eq!(tensor.parameters.len(), gradient.len(), "lengths of tensor {position}");
            let context = self.context(update, position, self.maps_of(position));
            for (index, before) in tensor.decode(&context).into_iter().enumerate() {
                let g = gradient[index] * clip_scale;
                if tensor.finite_update(context.scalars, before, g).is_none() {
                    let location = Location { tensor: position, index };
                    report.first_nonfinite.get_or_insert(location);
                    report.nonfinite += 1;
                }
            }
        }
        if self.skip_nonfinite && report.nonfinite > 0 {
            return Report { skipped: true, ..report };
        }
        for (position, gradient) in gradients.iter().enumerate() {
            self.tensors[position].choose_bias(gradient, clip_scale);
            let mut tensor = self.tensors[position].clone();
            let context = self.context(update, position, self.maps_of(position));
            let before = tensor.decode(&context);
            let pairs = before.iter().zip(*gradient);
            let finite_update = |(&before, &g): (&Parameter<f32>, &f32)| {
                tensor.finite_update(context.scalars, before, g * clip_scale)
            };
            let after: Vec<Option<Parameter<f32>>> = pairs.map(finite_update).collect();
            tensor.encode(&before, &after, &context, &mut report);
            self.tensors[position] = tensor;
        }
        self.written = update;
        report
    }

    /// The moments of a tensor as update `update` would read them: m, v.
    ///
    /// # Panics
    ///
    /// If there is no such tensor.
    #[must_use]
    pub fn decoded(&self, update: u64, position: usize) -> (Vec<f32>, Vec<f32>) {
        let context = self.context(update, position, self.maps_of(position));
        let elements = self.tensors[position].decode(&context);
        elements.into_iter().map(|element| (element.m, element.v)).unzip()
    }

    /// What the moments of a tensor are read and written with.
    fn context<'a>(&self, update: u64, position: usize, maps: Option<&'a Maps>) -> Context<'a> {
        let Tensor { hyperparameters, place, .. } = self.tensors[position];
        let random = Random { seed: self.seed, update, tensor: position as u32, place };
        Context {
            scalars: Scalars::at(hyperparameters, update),
            block: BlockScalars::at(hyperparameters, update, self.written),
            maps,
            random,
        }
    }

    /// The maps of a `block8` tensor.
    fn maps_of(&self, position: usize) -> Option<&Maps> {
        static DYNAMIC: [OnceLock<Box<Maps>>; 2] = [OnceLock::new(), OnceLock::new()];
        match self.tensors[position].format {
            Format::Block8(Block8 { rules, .. }) => {
                Some(self.maps.as_deref().unwrap_or_else(|| {
                    DYNAMIC[rules as usize].get_or_init(|| Maps::dynamic(rules))
                }))
            }
            _ => None,
        }
    }
}

/// The word of an element, and what saturated.
fn encode_word(
    format: Format,
    bias: Bias,
    moments: Moments,
    index: usize,
    random: Random,
) -> Packed {
    let index_low = index as u32;
    match format {
        Format::Fp16 => Fp16Word::new().encode(moments, index_low),
        Format::E4s => {
            let index_high = (index as u64 >> 32) as u32;
            let stream = RandomStream::new(random.seed, random.update, random.tensor, index_high);
            E4sWord::new(bias, stream).encode(moments, index_low)
        }
        _ => E4Word::new(bias).encode(moments, index_low),
    }
}
