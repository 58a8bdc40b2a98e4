//! AdamW on the CPU.
//!
//! This file is the contract; beneath it, in reading order: `step` (which passes a
//! step makes), `pass` (all chunks in parallel), `kernel` (the update of a chunk) with
//! `codec` (how it reads and writes moments), `blocks` (the update of a chunk in a format of blocks)
//! with `update`, `ahead`, `block8`, `maps`, `ustate1q`, `n4l4`, `grid`, `random` and `tiles`, `norm`, `arrays` and `slices`
//! (memory), `shared` (a step over parts of tensors), and `decode` (moments for whoever asks).

pub(crate) mod ahead;
pub(crate) mod arrays;
pub(crate) mod block8;
pub(crate) mod blocks;
mod codec;
mod codecs;
pub(crate) mod decode;
mod firsts;
mod grid;
mod kernel;
mod levels;
pub(crate) mod maps;
mod n4l4;
pub(crate) mod norm;
mod pass;
mod random;
mod shared;
mod slices;
mod step;
pub(crate) mod tiles;
mod update;
mod ustate1q;

use std::collections::VecDeque;

use formats::Bias;

use crate::groups::Layout;
use crate::saved::{SavedArray, SavedState, accept, metadata, section_name};
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::Instructions;
use crate::{AdamW, Error, Group, OnNonfinite, Options, Report, TensorSpec};
use arrays::Arrays;
use norm::square_sum;
use pass::{ChunkResult, TensorState};
use shared::Shared;
pub(crate) use shared::Stage;
use slices::{Gradients, Parameters};
use step::{Context, Step};

/// AdamW whose parameters, gradients and moments are in this machine's memory.
///
/// A step runs on the current rayon pool and allocates nothing. Parameters, moments
/// and reports have the same bits for any number of threads and any
/// [`Instructions`].
#[derive(Clone, Debug)]
pub struct CpuAdamW {
    layout: Layout,
    tensors: Vec<TensorState>,
    /// One for every chunk of every tensor, of the last step.
    results: Vec<ChunkResult>,
    /// The last update set, saved or loaded; 0 at first.
    update: u64,
    /// The update that wrote the state; 0 at first.
    written: u64,
    /// The scalars of every group, once an update is set.
    scalars: Vec<Scalars>,
    block_scalars: Vec<BlockScalars>,
    is_update_set: bool,
    /// Whether steps do nothing any more.
    is_held: bool,
    report: Option<Report>,
    shared: Shared,
    queued: VecDeque<Report>,
    instructions: Instructions,
}

/// The moments of a tensor as an update would read them.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedMoments {
    /// The first moments.
    pub m: Vec<f32>,
    /// The second moments.
    pub v: Vec<f32>,
}

impl CpuAdamW {
    /// An optimizer with fresh state: all moments zero, no update set.
    ///
    /// # Errors
    ///
    /// If a hyperparameter is out of range, a tensor names no group, or names are
    /// empty or not distinct.
    pub fn new(
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
    ) -> Result<CpuAdamW, Error> {
        let layout = Layout::new(tensors, groups, options)?;
        let tensors: Vec<TensorState> = tensors
            .iter()
            .enumerate()
            .map(|(position, &TensorSpec { length, group, .. })| {
                let arrays = Arrays::fresh(layout.format_of(position), length);
                TensorState { arrays, bias: groups[group].initial_bias(), length }
            })
            .collect();
        let chunks = tensors.iter().map(TensorState::chunk_count).sum();
        let shared = Shared::new(&layout);
        Ok(CpuAdamW {
            layout,
            tensors,
            shared,
            results: vec![ChunkResult::NONE; chunks],
            update: 0,
            written: 0,
            scalars: Vec::with_capacity(groups.len()),
            block_scalars: Vec::with_capacity(groups.len()),
            is_update_set: false,
            is_held: false,
            report: None,
            queued: VecDeque::new(),
            instructions: Instructions::best(),
        })
    }

    /// The same optimizer, with its loops compiled for `instructions`.
    #[must_use]
    pub fn with_instructions(self, instructions: Instructions) -> CpuAdamW {
        CpuAdamW { instructions, ..self }
    }

    /// The same optimizer, with other maps for its `block8` tensors: 256 finite entries each, in
    /// ascending order.
    ///
    /// # Errors
    ///
    /// If they are not that.
    pub fn with_maps(mut self, first: &[f32], second: &[f32]) -> Result<CpuAdamW, Error> {
        self.layout.set_maps(first, second)?;
        Ok(self)
    }

    /// The last update set, saved or loaded; 0 at first.
    #[must_use]
    pub fn update(&self) -> u64 {
        self.update
    }

    /// Sets the update after the last one, at each group's own learning rate.
    ///
    /// # Errors
    ///
    /// As [`AdamW::set_update`].
    pub fn set_next_update(&mut self) -> Result<(), Error> {
        let rates: Vec<f64> = self.layout.groups.iter().map(|group| group.learning_rate).collect();
        self.set_update(self.update + 1, &rates)
    }

    /// [`AdamW::step`] over tensors that lie anywhere: one slice of parameters and
    /// one of gradients for each, in order.
    ///
    /// # Errors
    ///
    /// If no update is set, or the slices are not as many or as long as the
    /// tensors. Nothing is changed then.
    pub fn step_slices(
        &mut self,
        parameters: &mut [&mut [f32]],
        gradients: &[&[f32]],
    ) -> Result<(), Error> {
        self.step_any(Parameters::Separate(parameters), Gradients::Separate(gradients), None)
    }

    /// The moments of the tensor at `position`, decoded.
    ///
    /// # Errors
    ///
    /// If there is no such tensor.
    pub fn moments(&self, position: usize) -> Result<DecodedMoments, Error> {
        let Some(tensor) = self.tensors.get(position) else {
            return Err(Error::TensorOutOfRange { tensors: self.tensors.len(), found: position });
        };
        Ok(decode::moments(&self.layout, position, tensor, self.written))
    }

    /// Replaces the moments of a tensor, as if update `written` had left them: how states move between
    /// formats. A tensor without a bias gets the default one.
    ///
    /// # Errors
    ///
    /// If there is no such tensor, the moments are not as many as its elements, or it is a part whose scale is
    /// that of all parts.
    pub fn set_moments(
        &mut self,
        position: usize,
        written: u64,
        moments: &DecodedMoments,
    ) -> Result<(), Error> {
        let alone = self.layout.check_scale_alone(position);
        self.set_moments_shared(position, written, moments, |_| alone.clone())
    }

    /// The same for a part of a tensor, while others do so with the rest: `add` replaces numbers by their sums over
    /// all who share, as in [`SharedAdamW::step_shared`](crate::SharedAdamW::step_shared). It is called alike for all of
    /// them.
    ///
    /// # Errors
    ///
    /// As above, and those of `add`, after which the moments are of no use.
    pub fn set_moments_shared<E: From<Error>>(
        &mut self,
        position: usize,
        written: u64,
        moments: &DecodedMoments,
        add: impl FnMut(&mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let tensors = self.tensors.len();
        let Some(tensor) = self.tensors.get_mut(position) else {
            return Err(Error::TensorOutOfRange { tensors, found: position }.into());
        };
        let expected = tensor.length;
        for (name, found) in [("first", moments.m.len()), ("second", moments.v.len())] {
            if found != expected {
                let buffer = format!("{name} moments of {:?}", self.layout.tensors[position].name);
                return Err(Error::BufferLength { buffer, expected, found }.into());
            }
        }
        tensor.bias = tensor.bias.or(Some(Bias::DEFAULT));
        decode::set_moments(&self.layout, position, tensor, written, moments, add)?;
        (self.update, self.written, self.is_update_set) = (written, written, false);
        Ok(())
    }

    /// The exponent bias of the tensor at `position`: `None` if its format has none,
    /// if it is not chosen yet, or if there is no such tensor.
    #[must_use]
    pub fn bias(&self, position: usize) -> Option<Bias> {
        let bias = self.tensors.get(position)?.bias;
        if self.layout.group_of(position).format.has_bias() { bias } else { None }
    }

    /// The norm of each tensor's gradient in the last step, before clipping.
    pub fn tensor_gradient_norms(&self) -> impl Iterator<Item = f64> {
        let mut results = self.results.iter();
        self.tensors.iter().map(move |tensor| {
            let chunks = results.by_ref().take(tensor.chunk_count());
            square_sum(chunks.map(|chunk| chunk.square_sum)).sqrt()
        })
    }

    fn step_any(
        &mut self,
        parameters: Parameters<'_, '_>,
        gradients: Gradients<'_>,
        loss: Option<f64>,
    ) -> Result<(), Error> {
        if !self.is_update_set {
            return Err(Error::NoUpdateSet);
        }
        self.layout.check_alone()?;
        parameters.check(&self.layout.tensors, self.layout.elements)?;
        gradients.check(&self.layout.tensors, self.layout.elements)?;
        let context = Context {
            layout: &self.layout,
            scalars: &self.scalars,
            block_scalars: &self.block_scalars,
            update: self.update,
            instructions: self.instructions,
        };
        let (tensors, results) = (&mut self.tensors[..], &mut self.results[..]);
        let step = Step { context, tensors, parameters, gradients, results };
        let is_loss_bad = loss.is_some_and(|loss| !loss.is_finite());
        let report = step.run(self.is_held, is_loss_bad);
        let holds = self.layout.options.on_nonfinite == OnNonfinite::Hold;
        self.is_held |= holds && (report.skipped || report.nonfinite > 0);
        if !report.skipped {
            self.written = self.update;
        }
        self.report = Some(report);
        Ok(())
    }
}

impl AdamW for CpuAdamW {
    type Buffer = Vec<f32>;
    type Scalar = f64;

    fn tensors(&self) -> &[TensorSpec] {
        &self.layout.tensors
    }

    fn set_group(&mut self, position: usize, group: Group) -> Result<(), Error> {
        self.layout.set_group(position, group)
    }

    fn set_update(&mut self, update: u64, learning_rates: &[f64]) -> Result<(), Error> {
        self.layout.check_update(update, learning_rates)?;
        let groups = self.layout.groups.iter().zip(learning_rates);
        self.scalars.clear();
        self.scalars.extend(groups.map(|(group, &rate)| Scalars::at(group, update, rate)));
        self.block_scalars.clear();
        let groups = self.layout.groups.iter();
        self.block_scalars
            .extend(groups.map(|group| BlockScalars::at(group, update, self.written)));
        self.update = update;
        self.is_update_set = true;
        Ok(())
    }

    fn step(&mut self, parameters: &mut Vec<f32>, gradients: &Vec<f32>) -> Result<(), Error> {
        self.step_any(Parameters::Flat(parameters), Gradients::Flat(gradients), None)
    }

    fn step_watching(
        &mut self,
        parameters: &mut Vec<f32>,
        gradients: &Vec<f32>,
        loss: &f64,
    ) -> Result<(), Error> {
        let (parameters, gradients) = (Parameters::Flat(parameters), Gradients::Flat(gradients));
        self.step_any(parameters, gradients, Some(*loss))
    }

    fn report(&mut self) -> Result<Report, Error> {
        self.report.ok_or(Error::NoStepTaken)
    }

    fn queue_report(&mut self) -> Result<(), Error> {
        let report = self.report()?;
        self.queued.push_back(report);
        Ok(())
    }

    fn take_report(&mut self, _: bool) -> Result<Option<Report>, Error> {
        Ok(self.queued.pop_front())
    }

    fn state_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.arrays.bytes()).sum()
    }

    fn save(&self) -> Result<SavedState<'_>, Error> {
        let biases: Vec<Option<Bias>> = self.tensors.iter().map(|tensor| tensor.bias).collect();
        let mut arrays = Vec::new();
        for (position, (spec, state)) in self.layout.tensors.iter().zip(&self.tensors).enumerate() {
            let sections = self.layout.arrays_of(position);
            for (section, bytes) in sections.zip(state.arrays.sections()) {
                arrays.push(SavedArray {
                    name: section_name(&spec.name, section.name),
                    element: section.element,
                    shape: vec![section.count as usize],
                    bytes,
                });
            }
        }
        Ok(SavedState {
            arrays,
            metadata: metadata(&self.layout, self.update, self.written, &biases),
        })
    }

    fn load(&mut self, state: &SavedState<'_>) -> Result<(), Error> {
        let accepted = accept(&self.layout, state)?;
        let saved = accepted.biases.into_iter().zip(accepted.sections);
        for (tensor, (bias, sections)) in self.tensors.iter_mut().zip(saved) {
            tensor.bias = bias;
            for (section, bytes) in sections.into_iter().enumerate() {
                tensor.arrays.overwrite(section, bytes);
            }
        }
        self.update = accepted.update;
        self.written = accepted.written;
        self.is_update_set = false;
        self.is_held = false;
        self.report = None;
        self.shared.stage = Stage::Finished;
        Ok(())
    }
}
