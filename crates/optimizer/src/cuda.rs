//! AdamW on a CUDA device.
//!
//! This file is the contract; the memory of the moments, the launches of a step and their
//! kernels are `gpu_kernels`. Everything has the bits of [`CpuAdamW`](crate::CpuAdamW): parameters,
//! moments, reports and what is saved, so a state saved on one device goes on on the other.

mod advance;
mod quantized;
mod queued;
mod report;
mod settings;
mod shared;

use std::borrow::Cow;
use std::collections::BTreeMap;

use formats::{Bias, Section};
use gpu_kernels::{
    Buffer, FusedAdamW, Gpu, Gradients, KernelFacts, ParametersMut, Placement, TensorPart,
    TensorPlan,
};

use crate::cpu::Stage;
use crate::cpu::decode;
use crate::cpu::norm::{CHUNK_ELEMENTS, square_sum};
use crate::groups::Layout;
use crate::saved::{SavedArray, SavedState, accept, metadata, section_name};
use crate::scalars::{BlockScalars, Scalars};
use crate::{AdamW, DecodedMoments, Error, Group, OnNonfinite, Options, Part, Report, TensorSpec};
pub use quantized::{CudaQuantizedAdamW, CudaQuantizedMoment};
pub use settings::{CudaSettings, TensorTypes};

/// AdamW whose parameters, gradients and moments are in the memory of a CUDA device.
///
/// A step is queued on the stream of its [`Gpu`], allocates nothing and waits for nothing, so it
/// can be recorded with [`Gpu::record`]. Only `set_update` changes what a step does, and it is not
/// recorded: it is called before every replay.
pub struct CudaAdamW {
    layout: Layout,
    fused: FusedAdamW,
    /// The last update set, saved or loaded; 0 at first.
    update: u64,
    is_update_set: bool,
    has_stepped: bool,
    stage: Stage,
}

impl CudaAdamW {
    /// An optimizer with fresh state, over flat f32 buffers: all moments zero, no update set.
    ///
    /// # Errors
    ///
    /// If a hyperparameter is out of range, a tensor names no group, or names are empty or not
    /// distinct; and what the device refuses, such as more memory than it has.
    pub fn new(
        gpu: &Gpu,
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
    ) -> Result<CudaAdamW, Error> {
        CudaAdamW::with_settings(gpu, tensors, groups, options, &CudaSettings::default())
    }

    /// [`CudaAdamW::new`] over tensors of other types or places, or with other launches.
    ///
    /// # Errors
    ///
    /// As [`CudaAdamW::new`], and if types are given that are not as many as the tensors.
    pub fn with_settings(
        gpu: &Gpu,
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
        settings: &CudaSettings,
    ) -> Result<CudaAdamW, Error> {
        let layout = Layout::new(tensors, groups, options)?;
        let types = settings.types_of(tensors)?;
        let plans = tensors.iter().zip(types).enumerate();
        let plans = plans.map(|(position, (&TensorSpec { length, group, part, .. }, types))| {
            let bias = groups[group].initial_bias().map(Bias::get);
            let kind = types.kind(layout.format_of(position));
            let own = layout.parts[position];
            let published = gpu_kernels::published_key(own.place(group));
            let Part { tensor, start, whole, .. } = own;
            let part = part.map(|_| TensorPart { tensor, start, whole });
            TensorPlan { length, group, kind, bias, published, part }
        });
        let plans: Vec<TensorPlan> = plans.collect();
        let fused_options = gpu_kernels::Options {
            clip_norm: options.clip_norm,
            measures_norm: settings.measures_norm,
            skips_nonfinite: options.on_nonfinite == OnNonfinite::Skip,
            holds_nonfinite: options.on_nonfinite == OnNonfinite::Hold,
            shape: settings.shape,
            seed: options.seed,
        };
        let is_placed = settings.is_placed;
        let fused = FusedAdamW::new(
            gpu,
            &plans,
            groups.len(),
            fused_options,
            is_placed,
            layout.any_maps(),
        )?;
        Ok(CudaAdamW {
            layout,
            fused,
            update: 0,
            is_update_set: false,
            has_stepped: false,
            stage: Stage::Finished,
        })
    }

    /// The same optimizer, with other maps for its `block8` tensors: 256 finite entries each, in
    /// ascending order. It must not have stepped yet.
    ///
    /// # Errors
    ///
    /// If they are not that; and what the device refuses.
    pub fn with_maps(mut self, first: &[f32], second: &[f32]) -> Result<CudaAdamW, Error> {
        self.layout.set_maps(first, second)?;
        if let Some(maps) = self.layout.any_maps() {
            self.fused.set_maps(maps)?;
        }
        Ok(self)
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

    /// [`AdamW::step`] over flat buffers of any types.
    ///
    /// # Errors
    ///
    /// As [`AdamW::step`], and if the types are not those of the tensors.
    pub fn step_any(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        self.check_update_set()?;
        self.layout.check_alone()?;
        self.fused.step(parameters, gradients)?;
        self.has_stepped = true;
        Ok(())
    }

    /// [`AdamW::step`] over tensors that lie anywhere, for an optimizer that was made for such.
    ///
    /// # Errors
    ///
    /// If no update is set, the places are not as many or as long as the tensors, or of other types;
    /// and what the device refuses.
    pub fn step_placed(&mut self, placement: &Placement) -> Result<(), Error> {
        self.check_update_set()?;
        self.layout.check_alone()?;
        self.fused.step_placed(placement)?;
        self.has_stepped = true;
        Ok(())
    }

    /// The moments of the tensor at `position`, decoded.
    ///
    /// # Errors
    ///
    /// If there is no such tensor, and what the device refuses.
    pub fn moments(&self, position: usize) -> Result<DecodedMoments, Error> {
        let tensors = self.layout.tensors.len();
        if position >= tensors {
            return Err(Error::TensorOutOfRange { tensors, found: position });
        }
        let bias = self.bias(position)?;
        let spec = &self.layout.tensors[position];
        let written = match self.fused.written()? {
            Some(written) => written,
            None => self.fused.update_number()?,
        };
        let sections = self.sections(position)?;
        Ok(decode::moments_of(&self.layout, position, spec.length, bias, written, &sections))
    }

    /// The bytes of every array of a tensor's state.
    fn sections(&self, position: usize) -> Result<Vec<Vec<u8>>, Error> {
        let sections = self.layout.arrays_of(position).enumerate();
        let bytes = |(number, section): (usize, Section)| {
            Ok(bytes_of(section, &self.fused.state(position, number)?))
        };
        sections.map(bytes).collect()
    }

    /// The exponent bias of the tensor at `position`: `None` if its format has none, if it is
    /// not chosen yet, or if there is no such tensor.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn bias(&self, position: usize) -> Result<Option<Bias>, Error> {
        if position >= self.layout.tensors.len()
            || !self.layout.group_of(position).format.has_bias()
        {
            return Ok(None);
        }
        Ok(self.biases()?[position])
    }

    /// The norm of each tensor's gradient in the last step, before clipping; empty if the norm is
    /// not measured, or tensors are parts.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn tensor_gradient_norms(&self) -> Result<Vec<f64>, Error> {
        let sums = if self.layout.has_parts() { None } else { self.fused.chunk_sums()? };
        let Some(sums) = sums else { return Ok(Vec::new()) };
        let mut rest = sums.into_iter();
        let norm = |tensor: &TensorSpec| {
            let chunks = tensor.length.div_ceil(CHUNK_ELEMENTS);
            square_sum(rest.by_ref().take(chunks)).sqrt()
        };
        Ok(self.layout.tensors.iter().map(norm).collect())
    }

    /// The bytes of device memory that moments lie in: those of the arrays, each filled up to 64 bytes in formats
    /// of blocks.
    #[must_use]
    pub fn allocated_state_bytes(&self) -> u64 {
        self.fused.allocated_state_bytes()
    }

    /// What the kernels of a step take of a multiprocessor.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn kernel_facts(&self) -> Result<Vec<KernelFacts>, Error> {
        Ok(self.fused.kernel_facts()?)
    }

    /// The device and stream of its steps.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        self.fused.gpu()
    }

    /// What is saved beside the state.
    fn metadata(&self) -> Result<BTreeMap<String, String>, Error> {
        let update = self.fused.update_number()?;
        let written = self.fused.written()?.unwrap_or(update);
        Ok(metadata(&self.layout, update, written, &self.biases()?))
    }

    fn biases(&self) -> Result<Vec<Option<Bias>>, Error> {
        let to_bias = |bias: u32| Bias::new(bias).expect("only biases are stored or chosen");
        let biases = self.fused.biases()?;
        Ok(biases.into_iter().map(|bias| bias.map(to_bias)).collect())
    }

    fn check_update_set(&self) -> Result<(), Error> {
        if self.is_update_set { Ok(()) } else { Err(Error::NoUpdateSet) }
    }

    fn check_flat(&self, parameters: &Buffer<f32>, gradients: &Buffer<f32>) -> Result<(), Error> {
        self.check_update_set()?;
        for (buffer, found) in [("parameters", parameters.len()), ("gradients", gradients.len())] {
            let expected = self.layout.elements;
            if found != expected {
                return Err(Error::BufferLength { buffer: buffer.to_owned(), expected, found });
            }
        }
        Ok(())
    }

    /// The loss, if a step of these buffers looks at it.
    fn watched<'l>(
        &self,
        parameters: &Buffer<f32>,
        gradients: &Buffer<f32>,
        loss: &'l Buffer<f64>,
    ) -> Result<Option<&'l Buffer<f64>>, Error> {
        self.check_flat(parameters, gradients)?;
        self.layout.check_alone()?;
        Ok(Some(loss).filter(|_| self.layout.options.on_nonfinite != OnNonfinite::Stop))
    }

    fn check_stepped(&self) -> Result<(), Error> {
        if self.has_stepped { Ok(()) } else { Err(Error::NoStepTaken) }
    }
}

impl AdamW for CudaAdamW {
    type Buffer = Buffer<f32>;
    type Scalar = Buffer<f64>;

    fn tensors(&self) -> &[TensorSpec] {
        &self.layout.tensors
    }

    fn set_group(&mut self, position: usize, group: Group) -> Result<(), Error> {
        self.layout.set_group(position, group)
    }

    fn set_update(&mut self, update: u64, learning_rates: &[f64]) -> Result<(), Error> {
        self.set_numbered(update, &[learning_rates])
    }

    fn step(&mut self, parameters: &mut Buffer<f32>, gradients: &Buffer<f32>) -> Result<(), Error> {
        self.check_flat(parameters, gradients)?;
        self.step_any(ParametersMut::F32(parameters), Gradients::F32(gradients))
    }

    /// The loss is looked at by the launch that measures the norm, so settings without one do not have this.
    fn step_watching(
        &mut self,
        parameters: &mut Buffer<f32>,
        gradients: &Buffer<f32>,
        loss: &Buffer<f64>,
    ) -> Result<(), Error> {
        let loss = self.watched(parameters, gradients, loss)?;
        let (parameters, gradients) = (ParametersMut::F32(parameters), Gradients::F32(gradients));
        self.fused.step_watching(parameters, gradients, loss)?;
        self.has_stepped = true;
        Ok(())
    }

    fn report(&mut self) -> Result<Report, Error> {
        self.check_stepped()?;
        let outcome = self.fused.outcome()?;
        Ok(report::of(&self.layout, &outcome))
    }

    /// Of a replayed step too: what all replays since the last `set_update` found.
    fn queue_report(&mut self) -> Result<(), Error> {
        self.check_stepped()?;
        Ok(self.fused.queue_outcome()?)
    }

    fn take_report(&mut self, waits: bool) -> Result<Option<Report>, Error> {
        let outcome = self.fused.take_outcome(waits)?;
        Ok(outcome.map(|outcome| report::of(&self.layout, &outcome)))
    }

    fn state_bytes(&self) -> u64 {
        self.fused.state_bytes()
    }

    fn save(&self) -> Result<SavedState<'_>, Error> {
        let mut arrays = Vec::new();
        for (position, spec) in self.layout.tensors.iter().enumerate() {
            for (number, section) in self.layout.arrays_of(position).enumerate() {
                let words = self.fused.state(position, number)?;
                let name = section_name(&spec.name, section.name);
                arrays.push(saved_array(name, section, &words));
            }
        }
        Ok(SavedState { arrays, metadata: self.metadata()? })
    }

    fn load(&mut self, state: &SavedState<'_>) -> Result<(), Error> {
        let accepted = accept(&self.layout, state)?;
        for (tensor, sections) in accepted.sections.into_iter().enumerate() {
            for (section, bytes) in sections.into_iter().enumerate() {
                let word = |part: &[u8]| {
                    let mut word = [0; 4];
                    word[..part.len()].copy_from_slice(part);
                    u32::from_le_bytes(word)
                };
                let words: Vec<u32> = bytes.chunks(4).map(word).collect();
                self.fused.set_state(tensor, section, &words)?;
            }
        }
        let biases: Vec<Option<u32>> =
            accepted.biases.into_iter().map(|bias| bias.map(Bias::get)).collect();
        self.fused.set_biases(&biases)?;
        self.fused.open_gate()?;
        let layout = &self.layout;
        self.fused.set_written(accepted.written, |tensor| {
            let scalars = BlockScalars::at(layout.group_of(tensor), 1, accepted.written);
            gpu_kernels::WrittenUnits {
                correction: scalars.correction_before,
                rms_scale: scalars.rms_scale_before,
                normalised_max: scalars.normalised_max_before,
            }
        })?;
        self.fused.set_update_number(accepted.update)?;
        self.update = accepted.update;
        self.is_update_set = false;
        self.has_stepped = false;
        self.stage = Stage::Finished;
        Ok(())
    }
}

impl std::fmt::Debug for CudaAdamW {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tensors, gpu) = (self.layout.tensors.len(), self.gpu());
        write!(f, "CudaAdamW({tensors} tensors, update {}, {gpu:?})", self.update)
    }
}

/// An array of a tensor's state whose words came from a device.
fn saved_array(name: String, section: Section, words: &[u32]) -> SavedArray<'static> {
    let (element, shape) = (section.element, vec![section.count as usize]);
    SavedArray { name, element, shape, bytes: Cow::Owned(bytes_of(section, words)) }
}

/// The bytes of an array out of words, the last of which may be filled up.
fn bytes_of(section: Section, words: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(words)];
    for (bytes, word) in bytes.chunks_exact_mut(size_of::<u32>()).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(section.bytes() as usize);
    bytes
}

/// The scalars of a group as a device reads them. The update that wrote the state is known to the
/// device, so its units are not among them: `blocks` were made as if this update had.
fn device_scalars(s: Scalars, blocks: BlockScalars) -> gpu_kernels::Group {
    gpu_kernels::Group {
        beta1: s.beta1,
        one_minus_beta1: s.one_minus_beta1,
        beta2: s.beta2,
        one_minus_beta2: s.one_minus_beta2,
        eps: s.eps,
        decay: s.decay,
        step: s.step,
        rms_scale: s.rms_scale,
        blocks: gpu_kernels::BlockScalars {
            ratio_max: blocks.ratio_max,
            ratio_max_before: blocks.ratio_max_before,
            inverse_ratio_max_before: blocks.inverse_ratio_max_before,
            normalised_max: blocks.normalised_max,
            inverse_correction: blocks.inverse_correction,
            correction: blocks.correction_before,
            padding: [0.0; 2],
        },
    }
}
