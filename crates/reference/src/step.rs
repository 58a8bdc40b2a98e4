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
//!    its parameter and its state, and is counted.

use formats::{Bias, E4Word, E4sWord, Format, Fp16Word, Moments, Packed, RandomStream, WordCodec};

use crate::adamw::{Hyperparameters, Parameter, Scalars, update_f32};
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
}

/// Stored moments.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Both moments of each parameter as they are.
    F32(Vec<[f32; 2]>),
    /// One state word for each parameter.
    Words(Vec<u32>),
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
        let state = match format {
            Format::Fp32 => State::F32(vec![[0.0; 2]; parameters.len()]),
            Format::Fp16 | Format::E4 | Format::E4s => State::Words(vec![0; parameters.len()]),
        };
        Tensor { parameters, format, bias, state, hyperparameters }
    }

    /// The parameter at `index` with its decoded moments.
    fn decode(&self, index: usize) -> Parameter<f32> {
        let p = self.parameters[index];
        match &self.state {
            State::F32(moments) => {
                let [m, v] = moments[index];
                Parameter { p, m, v }
            }
            State::Words(words) => {
                let bias = self.bias.unwrap_or_default();
                let Moments { m, r } = match self.format {
                    Format::Fp16 => Fp16Word::new().decode(words[index]),
                    _ => E4Word::new(bias).decode(words[index]),
                };
                Parameter { p, m, v: r * r }
            }
        }
    }

    /// What the element at `index` becomes, if all of it is finite.
    fn finite_update(&self, scalars: Scalars, index: usize, g: f32) -> Option<Parameter<f32>> {
        let after = update_f32(scalars, self.decode(index), g);
        let is_finite = after.p.is_finite() && after.m.is_finite() && after.v.is_finite();
        is_finite.then_some(after)
    }

    /// Stores a finite result and says which lanes saturated.
    fn encode(
        &mut self,
        index: usize,
        after: Parameter<f32>,
        stream: RandomStream,
    ) -> (bool, bool) {
        self.parameters[index] = after.p;
        match &mut self.state {
            State::F32(moments) => {
                moments[index] = [after.m, after.v];
                (false, false)
            }
            State::Words(words) => {
                let bias = self.bias.unwrap_or_default();
                let moments = Moments { m: after.m, r: after.v.sqrt() };
                let index_low = index as u32;
                let Packed { word, saturated_m, saturated_r } = match self.format {
                    Format::Fp16 => Fp16Word::new().encode(moments, index_low),
                    Format::E4s => E4sWord::new(bias, stream).encode(moments, index_low),
                    _ => E4Word::new(bias).encode(moments, index_low),
                };
                words[index] = word;
                (saturated_m, saturated_r)
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

        self.count_nonfinite(update, gradients, &mut report);
        if self.skip_nonfinite && report.nonfinite > 0 {
            return Report { skipped: true, ..report };
        }
        for (position, (tensor, gradient)) in self.tensors.iter_mut().zip(gradients).enumerate() {
            tensor.choose_bias(gradient, clip_scale);
            let scalars = Scalars::at(tensor.hyperparameters, update);
            for (index, &g) in gradient.iter().enumerate() {
                if let Some(after) = tensor.finite_update(scalars, index, g * clip_scale) {
                    let index_high = (index as u64 >> 32) as u32;
                    let stream = RandomStream::new(self.seed, update, position as u32, index_high);
                    let (saturated_m, saturated_r) = tensor.encode(index, after, stream);
                    report.saturated_m += u64::from(saturated_m);
                    report.saturated_r += u64::from(saturated_r);
                }
            }
        }
        report
    }

    /// Counts the elements that the update would make non-finite, and writes
    /// nothing but the report.
    fn count_nonfinite(&self, update: u64, gradients: &[&[f32]], report: &mut Report) {
        for (position, (tensor, gradient)) in self.tensors.iter().zip(gradients).enumerate() {
            assert_eq!(tensor.parameters.len(), gradient.len(), "lengths of tensor {position}");
            let scalars = Scalars::at(tensor.hyperparameters, update);
            for (index, &g) in gradient.iter().enumerate() {
                if tensor.finite_update(scalars, index, g * report.clip_scale).is_none() {
                    let location = Location { tensor: position, index };
                    report.first_nonfinite.get_or_insert(location);
                    report.nonfinite += 1;
                }
            }
        }
    }
}
