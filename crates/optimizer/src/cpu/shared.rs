//! A step over parts of tensors that others have the rest of: the passes of [`step`](super::step), with sums
//! over all parts in between.
//!
//! What is measured: the square sum of every chunk of the whole model, the largest gradient of
//! every chunk if a bias is chosen, and how much is not finite. Then, for each tensor in `ustate1q`, the three
//! pieces of a square sum and the number of live elements.

use formats::Bias;

use super::kernel::{GradientMax, Mode};
use super::norm::{CHUNK_ELEMENTS, clip_scale, square_sum};
use super::slices::{Gradients, Parameters};
use super::step::{Context, Step, counted};
use super::ustate1q::{SPREAD_NUMBERS, Spread};
use crate::groups::Layout;
use crate::{CpuAdamW, Error, OnNonfinite, Report, SharedAdamW};

/// What a shared step keeps between its stages.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) stage: Stage,
    /// Chunks of all whole tensors.
    chunks: usize,
    measured: Vec<f64>,
    spreads: Vec<f64>,
}

/// What was done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Measured,
    Updated,
    Finished,
}

impl Shared {
    pub(crate) fn new(layout: &Layout) -> Shared {
        let mut shared =
            Shared { stage: Stage::Finished, chunks: 0, measured: Vec::new(), spreads: Vec::new() };
        if !layout.has_parts() {
            return shared;
        }
        let holds = layout.options.on_nonfinite == OnNonfinite::Hold;
        let chooses_bias = layout.chooses_bias();
        if layout.options.clip_norm.is_some() || holds || chooses_bias {
            shared.chunks = layout.whole_chunks().sum();
            shared.measured = vec![0.0; shared.chunks * (1 + usize::from(chooses_bias)) + 1];
        }
        shared.spreads = vec![0.0; layout.scaled_tensors().count() * SPREAD_NUMBERS];
        shared
    }
}

impl CpuAdamW {
    fn shared_step<'a, 'b>(
        &'a mut self,
        parameters: Parameters<'a, 'b>,
        gradients: Gradients<'a>,
    ) -> (Step<'a, 'b>, &'a mut Shared) {
        let context = Context {
            layout: &self.layout,
            scalars: &self.scalars,
            block_scalars: &self.block_scalars,
            update: self.update,
            instructions: self.instructions,
        };
        let (tensors, results) = (&mut self.tensors[..], &mut self.results[..]);
        (Step { context, tensors, parameters, gradients, results }, &mut self.shared)
    }

    /// [`SharedAdamW::measure`] over slices.
    ///
    /// # Errors
    ///
    /// As [`SharedAdamW::measure`].
    pub fn measure_slices(&mut self, gradients: &[&[f32]]) -> Result<(), Error> {
        self.measure_any(Gradients::Separate(gradients), None)
    }

    /// [`SharedAdamW::update_parts`] over slices.
    ///
    /// # Errors
    ///
    /// As [`SharedAdamW::update_parts`].
    pub fn update_slices(
        &mut self,
        parameters: &mut [&mut [f32]],
        gradients: &[&[f32]],
    ) -> Result<(), Error> {
        self.update_any(Parameters::Separate(parameters), Gradients::Separate(gradients))
    }

    fn measure_any(&mut self, gradients: Gradients<'_>, loss: Option<f64>) -> Result<(), Error> {
        if !self.layout.has_parts() {
            return Err(Error::NoParts);
        }
        if !self.is_update_set {
            return Err(Error::NoUpdateSet);
        }
        gradients.check(&self.layout.tensors, self.layout.elements)?;
        self.shared.stage = Stage::Measured;
        if self.shared.measured.is_empty() {
            return Ok(());
        }
        let is_bad = self.is_held || loss.is_some_and(|loss| !loss.is_finite());
        let (step, shared) = self.shared_step(Parameters::Absent, gradients);
        step.measure(shared, is_bad);
        Ok(())
    }

    fn update_any(
        &mut self,
        parameters: Parameters<'_, '_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        if self.shared.stage != Stage::Measured {
            return Err(Error::StageOrder { found: "update before measure" });
        }
        parameters.check(&self.layout.tensors, self.layout.elements)?;
        gradients.check(&self.layout.tensors, self.layout.elements)?;
        self.shared.stage = Stage::Updated;
        let (step, shared) = self.shared_step(parameters, gradients);
        let report = step.update_parts(shared);
        let holds = self.layout.options.on_nonfinite == OnNonfinite::Hold;
        self.is_held |= holds && (report.skipped || report.nonfinite > 0);
        self.report = Some(report);
        Ok(())
    }
}

impl Step<'_, '_> {
    /// Leaves what the own parts add to what is measured.
    fn measure(mut self, shared: &mut Shared, is_bad: bool) {
        let (layout, chunks) = (self.context.layout, shared.chunks);
        let measures_max = shared.measured.len() > chunks + 1;
        self.pass(|context, chunk| {
            context.look(chunk);
            if measures_max {
                let kernel = GradientMax { gradients: chunk.gradients, clip_scale: 1.0 };
                chunk.result().gradient_max = context.instructions.run(kernel);
            }
        });
        shared.measured.fill(0.0);
        let (mut results, mut first, mut nonfinite) = (self.results.iter(), 0, 0);
        for (position, whole_chunks) in layout.whole_chunks().enumerate() {
            let start = first + layout.parts[position].start as usize / CHUNK_ELEMENTS;
            let own = results.by_ref().take(self.tensors[position].chunk_count());
            for (at, result) in (start..).zip(own) {
                shared.measured[at] = result.square_sum;
                if measures_max {
                    shared.measured[chunks + at] = f64::from(result.gradient_max);
                }
                nonfinite += u64::from(result.counts.nonfinite);
            }
            first += whole_chunks;
        }
        if let Some(last) = shared.measured.last_mut() {
            *last = nonfinite as f64 + f64::from(u8::from(is_bad));
        }
    }

    /// The update, once `shared` holds what all parts measured.
    fn update_parts(mut self, shared: &mut Shared) -> Report {
        let options = self.context.layout.options;
        let sums = &shared.measured[..shared.chunks];
        let norm = square_sum(sums.iter().copied()).sqrt();
        let scale = options.clip_norm.map_or(1.0, |clip_norm| clip_scale(clip_norm, norm));
        shared.spreads.fill(0.0);
        let is_measured = !shared.measured.is_empty();
        let report_of = |step: &Self| {
            let own = step.report(scale);
            if is_measured { Report { gradient_norm: norm, ..own } } else { own }
        };
        let is_bad = shared.measured.last().is_some_and(|&nonfinite| nonfinite > 0.0);
        if options.on_nonfinite == OnNonfinite::Hold && is_bad {
            return Report { skipped: true, ..report_of(&self) };
        }
        self.choose_biases_of_all(shared, scale);
        self.visit_elements(Mode::Update, scale, !is_measured);
        let layout = self.context.layout;
        let mut numbers = shared.spreads.chunks_exact_mut(SPREAD_NUMBERS);
        let mut rest = &self.results[..];
        for (position, tensor) in self.tensors.iter().enumerate() {
            let (chunks, later) = rest.split_at(tensor.chunk_count());
            rest = later;
            if !layout.format_of(position).is_bias_corrected() {
                continue;
            }
            let spread = chunks.iter().fold(Spread::NONE, |sum, chunk| sum.plus(chunk.spread));
            let own = numbers.next().expect("every scaled tensor has its numbers");
            own.copy_from_slice(&spread.numbers());
        }
        report_of(&self)
    }

    fn choose_biases_of_all(&mut self, shared: &Shared, clip_scale: f32) {
        if shared.measured.len() <= shared.chunks + 1 {
            return;
        }
        let mut rest = &shared.measured[shared.chunks..];
        for (tensor, chunks) in self.tensors.iter_mut().zip(self.context.layout.whole_chunks()) {
            let (own, later) = rest.split_at(chunks);
            rest = later;
            if tensor.bias.is_none() {
                let gradient_max = own.iter().copied().fold(0.0, f64::max) as f32;
                tensor.bias = Bias::for_max_gradient(gradient_max * clip_scale);
            }
        }
    }
}

impl SharedAdamW for CpuAdamW {
    type Sums = [f64];

    fn measure(&mut self, gradients: &Vec<f32>, loss: Option<&f64>) -> Result<(), Error> {
        self.measure_any(Gradients::Flat(gradients), loss.copied())
    }

    fn measured(&mut self) -> Option<&mut [f64]> {
        Some(&mut self.shared.measured[..]).filter(|numbers| !numbers.is_empty())
    }

    fn update_parts(
        &mut self,
        parameters: &mut Vec<f32>,
        gradients: &Vec<f32>,
    ) -> Result<(), Error> {
        self.update_any(Parameters::Flat(parameters), Gradients::Flat(gradients))
    }

    fn spreads(&mut self) -> Option<&mut [f64]> {
        Some(&mut self.shared.spreads[..]).filter(|numbers| !numbers.is_empty())
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.shared.stage != Stage::Updated {
            return Err(Error::StageOrder { found: "finish before update" });
        }
        self.shared.stage = Stage::Finished;
        if self.report.is_some_and(|report| report.skipped) {
            return Ok(());
        }
        let (numbers, _) = self.shared.spreads.as_chunks::<SPREAD_NUMBERS>();
        for (position, &numbers) in self.layout.scaled_tensors().zip(numbers) {
            let spread = counted(&self.layout, position, Spread::of_numbers(numbers));
            self.tensors[position].arrays.advance_scales(|scale| spread.next_scale(scale));
        }
        self.written = self.update;
        Ok(())
    }
}
