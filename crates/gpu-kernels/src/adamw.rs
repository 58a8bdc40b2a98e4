//! Packed AdamW over all tensors of a model: the table of tensors, the stored moments, and the
//! launches of a step. Launches `cuda/adamw.cu`, and `cuda/norm.cu` through [`norm`](crate::norm).
//!
//! A step is one launch for the update. Before it come, only where they are asked for, a launch
//! for the gradient norm, which clipping and the automatic choice of a bias need, and one
//! that looks for elements that are not finite, so that they can drop the whole update. A step
//! allocates nothing and waits for nothing, so it can be recorded.
//!
//! What changes from one update to the next, and what a step counts, lies in device memory, see `slots`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use std::ops::Range;
use std::sync::Arc;

use formats::{Maps, Section};

use crate::argument::{Argument, Step};
use crate::buffer::{check_device, check_length};
use crate::kind::{BlockOptions, GradientType, Kind, Kinds, ParameterType};
use crate::launch::{checked_blocks, launch, launch_early};
use crate::layout::{Layout, TILE_THREADS_MAX};
use crate::module::{Kernel, KernelFacts};
use crate::norm::GradientNorm;
use crate::placed::Placed;
use crate::programs::Pass;
use crate::shape::Shape;
use crate::shared::Shared;
use crate::slots::Slots;
use crate::table::{BIAS_UNSET, Bases, Tensor};
use crate::tensor_plan::TensorPlan;
use crate::{Buffer, Downloads, Error, Gpu, Pinned, blocks, load, programs};

/// What concerns all tensors of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The norm that gradients are clipped at, if they are.
    pub clip_norm: Option<f64>,
    /// Whether the norm is measured also without clipping, at the cost of reading the gradients
    /// once more. Otherwise it is NaN in an outcome then.
    pub measures_norm: bool,
    /// Whether one element that is not finite drops the update.
    pub skips_nonfinite: bool,
    /// Whether a gradient or a loss that is not finite drops the update and all later ones, and a result
    /// that is not finite all later ones, until [`FusedAdamW::open_gate`]. The norm is measured then.
    pub holds_nonfinite: bool,
    /// How the update is launched.
    pub shape: Shape,
    /// Seed of published random numbers; the others are in the keys of an update.
    pub seed: u64,
}

/// The parameters of all tensors, one after the other.
#[derive(Debug)]
pub enum ParametersMut<'a> {
    /// As f32.
    F32(&'a mut Buffer<f32>),
    /// In halves, see [`formats::split`].
    Split {
        /// The bf16 halves.
        upper: &'a mut Buffer<u16>,
        /// The remainder bits.
        remainders: &'a mut Buffer<u16>,
    },
}

/// The gradients of all tensors, one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Gradients<'a> {
    /// As f32.
    F32(&'a Buffer<f32>),
    /// As the bits of bf16.
    Bf16(&'a Buffer<u16>),
}

/// Packed AdamW over the tensors of one model, with their stored moments.
pub struct FusedAdamW {
    pub(crate) gpu: Gpu,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    update: Kernel,
    /// Where one element that is not finite drops the update.
    check: Option<Kernel>,
    pub(crate) norm: Option<GradientNorm>,
    pub(crate) table: Buffer<Tensor>,
    pub(crate) first_blocks: Buffer<u32>,
    pub(crate) argument: Argument,
    pub(crate) state: Buffer<u32>,
    /// Copies of it on the host.
    pub(crate) states: Downloads<u32>,
    /// The tables of the maps of `block8`.
    pub(crate) maps: Buffer<u32>,
    maps_are_fine: bool,
    pub(crate) biases: Buffer<i32>,
    pub(crate) gradient_maxima: Buffer<u32>,
    /// The control and the groups of the update that is worked on, as words: one of the slots.
    pub(crate) control: Buffer<u32>,
    pub(crate) slots: Slots,
    /// The parameters rounded to bf16, where somebody wants them.
    pub(crate) copies: Option<Buffer<u16>>,
    /// Not zero once updates are dropped for good.
    pub(crate) gate: Buffer<u32>,
    pub(crate) placed: Placed,
    pub(crate) shared: Option<Shared>,
}

impl FusedAdamW {
    /// A model with fresh state whose tensors lie one after the other, or anywhere if
    /// `is_placed`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::TooLarge`], what the compiler refuses of the kernels, and what
    /// the driver refuses.
    ///
    /// # Panics
    ///
    /// If a tensor names a group beyond `groups`, or the shape is not one.
    pub fn new(
        gpu: &Gpu,
        tensors: &[TensorPlan],
        groups: usize,
        options: Options,
        is_placed: bool,
        maps: Option<&Maps>,
    ) -> Result<FusedAdamW, Error> {
        let kinds: Vec<Kind> = tensors.iter().map(|tensor| tensor.kind).collect();
        let block_options = BlockOptions::of(&kinds)?;
        let kinds = kinds.into_iter().fold(Kinds::default(), Kinds::with);
        let threads = options.shape.threads.max(block_options.threads_min(kinds));
        let options = Options { shape: Shape { threads, ..options.shape }, ..options };
        assert!(threads.is_power_of_two() && (32..=1024).contains(&threads), "{threads} threads");
        let tiles = options.shape.tiles.unwrap_or(1);
        assert!(tiles.is_power_of_two() && tiles * threads <= TILE_THREADS_MAX, "{tiles} tiles");
        assert!(tensors.iter().all(|tensor| tensor.group < groups), "every tensor has a group");
        let layout = Layout::new(tensors, options.shape, is_placed)?;
        checked_blocks(layout.blocks)?;
        let passes: &[Pass] =
            if options.skips_nonfinite { &[Pass::Update, Pass::Check] } else { &[Pass::Update] };
        let chooses_bias = tensors.iter().any(|tensor| tensor.bias.is_none());
        let sums = options.needs_norm();
        let beside = if sums || chooses_bias { programs::norm() } else { Vec::new() };
        let (kernels, argument) =
            load::kernels(gpu, &layout, block_options, options.shape, passes, &beside)?;
        let mut kernels = kernels.into_iter();
        let (maps, maps_are_fine) = blocks::upload_maps(gpu, maps)?;
        let has_parts = tensors.iter().any(|tensor| tensor.part.is_some());
        let norm = (sums || chooses_bias)
            .then(|| {
                GradientNorm::new(gpu, &layout.lengths(), options.clip_norm, sums || has_parts)
            })
            .transpose()?;
        let biases: Vec<i32> =
            tensors.iter().map(|t| t.bias.map_or(BIAS_UNSET, u32::cast_signed)).collect();
        let slots = Slots::new(gpu, groups)?;
        let state = blocks::fresh_state(gpu, &layout)?;
        let reads_table = norm.is_some() || argument.tensors() == 0;
        let measures = norm.is_some().then_some(chooses_bias);
        let shared = has_parts
            .then(|| Shared::new(gpu, tensors, &layout, state.address(), measures))
            .transpose()?;
        Ok(FusedAdamW {
            gpu: gpu.clone(),
            shared,
            options,
            update: kernels.next().expect("every pass has a kernel"),
            check: kernels.next(),
            norm,
            table: gpu.upload(&layout.tensors)?,
            first_blocks: gpu.upload(&layout.first_blocks())?,
            argument,
            state,
            states: Downloads::default(),
            maps,
            maps_are_fine,
            biases: gpu.upload(&biases)?,
            gradient_maxima: gpu.zeros(tensors.len())?,
            control: slots.of(0),
            slots,
            copies: None,
            gate: gpu.zeros(1)?,
            placed: Placed::new(gpu, &layout, reads_table)?,
            layout,
        })
    }

    /// Loads the kernels that write copies of parameters, or those that do not.
    pub(crate) fn load(&mut self, copies: bool) -> Result<(), Error> {
        let options = BlockOptions::of(&self.layout.kinds)?;
        let update = if copies { Pass::UpdateAndCopy } else { Pass::Update };
        let both = [update, Pass::Check];
        let passes = &both[..1 + usize::from(self.check.is_some())];
        let (kernels, argument) =
            load::kernels(&self.gpu, &self.layout, options, self.options.shape, passes, &[])?;
        let mut kernels = kernels.into_iter();
        self.update = kernels.next().expect("every pass has a kernel");
        (self.check, self.argument) = (kernels.next(), argument);
        Ok(())
    }

    /// Replaces the maps of `block8` tensors, before the first step.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn set_maps(&mut self, maps: &Maps) -> Result<(), Error> {
        (self.maps, self.maps_are_fine) = blocks::upload_maps(&self.gpu, Some(maps))?;
        Ok(())
    }

    /// The norm of a step that launches nothing to measure it.
    pub(crate) fn unmeasured_norm(&self) -> f64 {
        // Without any element there is no launch, and the norm is that of nothing.
        if self.options.needs_norm() { 0.0 } else { f64::NAN }
    }

    /// Where steps look whether updates are dropped; 0 if they never are.
    pub(crate) fn gate_address(&self) -> u64 {
        if self.options.holds_nonfinite { self.gate.address() } else { 0 }
    }

    /// Queues a step over tensors that lie one after the other. Between two steps without
    /// [`set_update`](Self::set_update) the counters are set to zero all the same, unless the
    /// steps are recorded: a replay adds to what was counted since the last `set_update`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], [`Error::OtherType`], and what the driver refuses.
    ///
    /// # Panics
    ///
    /// If the model was made for tensors that lie anywhere.
    pub fn step(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        self.step_watching(parameters, gradients, None)
    }

    /// [`FusedAdamW::step`] that also looks at the loss, one number, which drops the update if it is not
    /// finite.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::step`], and if there is a loss but no norm is measured.
    pub fn step_watching(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        let bases = self.check_and_measure(parameters, gradients, loss)?;
        self.queue_blocks(bases, 0, 0..self.layout.blocks as u32, true)
    }

    /// All of a step over flat buffers before the update.
    pub(crate) fn check_and_measure(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<Bases, Error> {
        if let Some(loss) = loss {
            assert!(self.options.needs_norm(), "the launch that looks at the loss is the norm's");
            check_buffer("a loss", &self.gpu, 1, loss)?;
        }
        let bases = self.flat_bases(Some(parameters), gradients)?;
        self.queue_norm(bases, loss)?;
        Ok(bases)
    }

    /// The bases of flat buffers, once checked; parameters may be absent.
    pub(crate) fn flat_bases(
        &self,
        parameters: Option<ParametersMut<'_>>,
        gradients: Gradients<'_>,
    ) -> Result<Bases, Error> {
        assert!(!self.layout.is_placed, "the tensors of this model lie anywhere");
        let length = self.layout.elements;
        let is_all = |kind: fn(&Kind) -> bool| self.layout.kinds.iter().all(kind);
        let (parameters, remainders) = match parameters {
            None => (0, 0),
            Some(ParametersMut::F32(buffer)) => {
                let fits = is_all(|kind| kind.parameters == ParameterType::F32);
                check_type("parameters", fits, ParameterType::Split.name(), "f32")?;
                check_buffer("parameters", &self.gpu, length, buffer)?;
                (buffer.address(), 0)
            }
            Some(ParametersMut::Split { upper, remainders }) => {
                let fits = is_all(|kind| kind.parameters == ParameterType::Split);
                check_type("parameters", fits, "f32", ParameterType::Split.name())?;
                check_buffer("parameters", &self.gpu, length, upper)?;
                check_buffer("remainders", &self.gpu, length, remainders)?;
                (upper.address(), remainders.address())
            }
        };
        let gradients = match gradients {
            Gradients::F32(buffer) => {
                let fits = is_all(|kind| kind.gradients == GradientType::F32);
                check_type("gradients", fits, "bf16", "f32")?;
                check_buffer("gradients", &self.gpu, length, buffer)?;
                buffer.address()
            }
            Gradients::Bf16(buffer) => {
                let fits = is_all(|kind| kind.gradients == GradientType::Bf16);
                check_type("gradients", fits, "f32", "bf16")?;
                check_buffer("gradients", &self.gpu, length, buffer)?;
                buffer.address()
            }
        };
        let state = self.state.address();
        Ok(Bases { parameters, remainders, gradients, state })
    }

    /// All of a step.
    pub(crate) fn queue(&mut self, bases: Bases, loss: Option<&Buffer<f64>>) -> Result<(), Error> {
        self.queue_norm(bases, loss)?;
        self.queue_blocks(bases, 0, 0..self.layout.blocks as u32, true)
    }

    /// The norm of a step, if it is wanted.
    fn queue_norm(&mut self, bases: Bases, loss: Option<&Buffer<f64>>) -> Result<(), Error> {
        self.begin()?;
        if let Some(norm) = &self.norm {
            // SAFETY: 2. and 3. for the gradients, the table and the tensors' biases and maxima as
            // in `queue_update`; the control is this model's.
            unsafe {
                norm.queue(
                    &self.gpu,
                    bases,
                    (&self.table, &self.biases, &mut self.gradient_maxima, &mut self.control),
                    loss,
                    None,
                )?;
            }
        }
        Ok(())
    }

    /// The update; blocks leave what scales follow from at `spreads`, if that is not 0.
    pub(crate) fn queue_update(&mut self, bases: Bases, spreads: u64) -> Result<(), Error> {
        self.queue_blocks(bases, spreads, 0..self.layout.blocks as u32, false)
    }

    /// The update of some blocks of all, right behind the norm if `follows_norm`.
    pub(crate) fn queue_blocks(
        &mut self,
        bases: Bases,
        spreads: u64,
        blocks: Range<u32>,
        follows_norm: bool,
    ) -> Result<(), Error> {
        let begins_early = follows_norm
            && self.norm.is_some()
            && self.check.is_none()
            && self.update.can_begin_early(&self.gpu)?;
        let step = self.step_of(bases, spreads, blocks.start);
        let (blocks, threads) = (blocks.end - blocks.start, self.options.shape.threads);
        let argument = self.argument.with_step(step);
        let kernels = [self.check.as_ref(), Some(&self.update)];
        for kernel in kernels.into_iter().flatten() {
            // SAFETY: 1. `Argument` is laid out as in adamw.cu, and both kernels were compiled for its
            // tensors and these threads. 2. The table, the first blocks and the state belong to this model and fit each other
            // by construction; parameters and gradients are as long as the table says, as `step`
            // checked, or as whoever made the placement vouched for; copies are as long as parameters. 3. Parameters are borrowed
            // mutably, or vouched for likewise; the rest is this model's.
            // 4. What a block reads before it waits are parameters, gradients and moments, with which the norm before it is
            // content too.
            unsafe {
                match begins_early {
                    true => launch_early(&self.gpu, kernel, (blocks, threads, 0), argument)?,
                    false => launch(&self.gpu, kernel, blocks, threads, argument)?,
                }
            }
        }
        Ok(())
    }

    /// What a launch is given whose first block is this one.
    pub(crate) fn step_of(&self, bases: Bases, spreads: u64, first_block: u32) -> Step {
        Step {
            bases,
            tensors: self.table.address(),
            first_blocks: self.first_blocks.address(),
            biases: self.biases.address(),
            gradient_maxima: self.gradient_maxima.address(),
            control: self.control.address(),
            maps: self.maps.address(),
            parts: self.shared.as_ref().map_or(0, Shared::parts_address),
            spreads,
            copies: self.copies.as_ref().map_or(0, Buffer::address),
            tensor_count: self.table.len() as u32,
            skips: u32::from(self.options.skips_nonfinite),
            maps_are_fine: u32::from(self.maps_are_fine),
            tiles: self.layout.tiles,
            first_block,
            padding: [0; 3],
        }
    }

    /// The kernel of an update.
    pub(crate) fn update_kernel(&self) -> &Kernel {
        &self.update
    }

    /// Whether nothing goes over all elements before the update but the norm.
    pub(crate) fn checks_nothing(&self) -> bool {
        self.check.is_none()
    }

    /// Lets updates happen again after one was dropped for good.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn open_gate(&mut self) -> Result<(), Error> {
        self.gate.fill_zero()
    }

    /// The biases of all tensors: `None` where none is chosen yet.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub fn biases(&self) -> Result<Vec<Option<u32>>, Error> {
        let biases = self.biases.to_vec()?;
        Ok(biases.into_iter().map(|bias| u32::try_from(bias).ok()).collect())
    }

    /// Overwrites the biases of all tensors.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn set_biases(&mut self, biases: &[Option<u32>]) -> Result<(), Error> {
        let to_number = |bias: &Option<u32>| bias.map_or(BIAS_UNSET, u32::cast_signed);
        let numbers: Vec<i32> = biases.iter().map(to_number).collect();
        self.gradient_maxima.fill_zero()?;
        self.biases.upload(&numbers)
    }

    /// The words of one array of a tensor's state, in the order of its format's sections.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or array.
    pub fn state(&self, tensor: usize, section: usize) -> Result<Vec<u32>, Error> {
        self.state.view().part(self.layout.section(tensor, section)).to_vec()
    }

    /// Queues a copy of the words of all tensors' states to the host; [`FusedAdamW::place_of_state`] says where which are.
    ///
    /// # Errors
    ///
    /// As [`Downloads::queue`].
    pub fn queue_state(&mut self) -> Result<Arc<Pinned<u32>>, Error> {
        self.states.queue(&self.state)
    }

    /// Where the words of one array of a tensor's state are among those of all.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or array.
    #[must_use]
    pub fn place_of_state(&self, tensor: usize, section: usize) -> Range<usize> {
        self.layout.section(tensor, section)
    }

    /// Overwrites one array of a tensor's state.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or array.
    pub fn set_state(&mut self, tensor: usize, section: usize, words: &[u32]) -> Result<(), Error> {
        self.state.view_mut().part(self.layout.section(tensor, section)).upload(words)
    }

    /// The bytes of the stored moments. In formats of blocks an array is filled up to 64 bytes
    /// beside them.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let tensors = self.layout.tensors.iter().zip(&self.layout.kinds);
        let arrays = tensors.flat_map(|(tensor, kind)| kind.format.arrays(tensor.length));
        arrays.map(Section::bytes).sum()
    }

    /// The bytes of device memory that they lie in.
    #[must_use]
    pub fn allocated_state_bytes(&self) -> u64 {
        (self.state.len() * size_of::<u32>()) as u64
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn state_buffer(&self) -> &Buffer<u32> {
        &self.state
    }

    pub(crate) fn state_and_layout(&mut self) -> (&mut Buffer<u32>, &Layout) {
        (&mut self.state, &self.layout)
    }

    /// The square sums of the chunks of all tensors in the last step, in order, if the norm was
    /// measured.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub fn chunk_sums(&self) -> Result<Option<Vec<f64>>, Error> {
        match &self.norm {
            Some(norm) if self.options.needs_norm() => norm.chunk_sums().map(Some),
            _ => Ok(None),
        }
    }

    /// What the kernels of a step take of a multiprocessor.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn kernel_facts(&self) -> Result<Vec<KernelFacts>, Error> {
        let norm = self.norm.as_ref().map(GradientNorm::kernel);
        let kernels = [Some(&self.update), self.check.as_ref(), norm];
        kernels.into_iter().flatten().map(|kernel| kernel.facts(&self.gpu)).collect()
    }

    /// The device and stream that steps are queued on.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Options {
    /// Whether the norm has to be known before an update.
    fn needs_norm(&self) -> bool {
        self.measures_norm || self.clip_norm.is_some() || self.holds_nonfinite
    }
}

fn check_type(
    what: &'static str,
    fits: bool,
    expected: &'static str,
    found: &'static str,
) -> Result<(), Error> {
    if fits { Ok(()) } else { Err(Error::OtherType { what, expected, found }) }
}

fn check_buffer<T: bytemuck::Pod>(
    what: &'static str,
    gpu: &Gpu,
    length: usize,
    buffer: &Buffer<T>,
) -> Result<(), Error> {
    check_length(what, length, buffer.len())?;
    check_device(what, gpu, buffer.gpu())
}
