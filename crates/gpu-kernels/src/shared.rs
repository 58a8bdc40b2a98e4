//! Steps over parts of tensors that others have the rest of: what is left in memory for all to add up, and the
//! launches after that. Launches `cuda/scales.cu`, and `cuda/norm.cu` through [`norm`](crate::norm).

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use formats::{Format, Rules, UState1Q};

use crate::blocks::{SCALES, bias_corrected};
use crate::launch::launch;
use crate::layout::{Layout, first_blocks};
use crate::module::Kernel;
use crate::norm::Places;
use crate::programs::{self, CHUNK_ELEMENTS, SCALES_THREADS};
use crate::table::{Bases, PartRow, Scaled};
use crate::tensor_plan::TensorPlan;
use crate::{Buffer, Error, FusedAdamW, Gpu, Gradients, ParametersMut, Placement};

/// Numbers of a tensor's spread.
const SPREAD_NUMBERS: usize = 3;

/// What a model of parts has besides.
pub(crate) struct Shared {
    parts: Buffer<PartRow>,
    places: Option<Places>,
    scaled: Buffer<Scaled>,
    spreads: Buffer<f64>,
    advance: Kernel,
}

/// What `cuda/scales.cu` is given.
#[repr(C)]
struct Scales {
    tensors: u64,
    spreads: u64,
    control: u64,
    count: u64,
}

impl Shared {
    /// For the parts in `plans`. `measures` says whether there is a norm, and then whether the largest
    /// gradients of chunks are wanted too.
    pub(crate) fn new(
        gpu: &Gpu,
        plans: &[TensorPlan],
        layout: &Layout,
        state: u64,
        measures: Option<bool>,
    ) -> Result<Shared, Error> {
        let scaled_tensors = bias_corrected(layout);
        let row = |(position, plan): (usize, &TensorPlan)| {
            let part = plan.part(position);
            let spreads = scaled_tensors.partition_point(|&tensor| tensor < position) as u32;
            PartRow { start: part.start, tensor: part.tensor, spreads }
        };
        let rows: Vec<PartRow> = plans.iter().enumerate().map(row).collect();
        let scaled = scaled_tensors.iter().map(|&tensor| {
            let counts_all = matches!(
                plans[tensor].kind.format,
                Format::UState1Q(UState1Q { rules: Rules::Published, .. })
            );
            Scaled {
                record: state + layout.section(tensor, SCALES).start as u64 * 4,
                whole: if counts_all { plans[tensor].part(tensor).whole } else { 0 },
                group: plans[tensor].group as u32,
                padding: 0,
            }
        });
        let chunk = u64::from(CHUNK_ELEMENTS);
        let chunks = || {
            let parts = plans.iter().enumerate().map(|(position, plan)| plan.part(position));
            parts.map(|part| part.whole.div_ceil(chunk))
        };
        let places = measures.map(|with_maxima| {
            let whole = first_blocks(chunks());
            let starts = whole.iter().zip(&rows);
            let own = starts.map(|(first, row)| first + (row.start / chunk) as u32);
            let count = chunks().sum::<u64>() as usize;
            Ok::<_, Error>(Places {
                own: gpu.upload(&own.collect::<Vec<u32>>())?,
                whole: gpu.upload(&whole)?,
                count,
                numbers: gpu.zeros(count * (1 + usize::from(with_maxima)) + 1)?,
            })
        });
        Ok(Shared {
            parts: gpu.upload(&rows)?,
            places: places.transpose()?,
            scaled: gpu.upload(&scaled.collect::<Vec<Scaled>>())?,
            spreads: gpu.zeros(scaled_tensors.len() * SPREAD_NUMBERS)?,
            advance: gpu.best_module(&programs::scales())?.kernel("advance_scales")?,
        })
    }

    pub(crate) fn parts_address(&self) -> u64 {
        self.parts.address()
    }

    pub(crate) fn set_stream(&mut self, gpu: &Gpu) {
        self.parts.set_stream(gpu);
        self.scaled.set_stream(gpu);
        self.spreads.set_stream(gpu);
        if let Some(places) = &mut self.places {
            places.own.set_stream(gpu);
            places.whole.set_stream(gpu);
            places.numbers.set_stream(gpu);
        }
    }
}

impl FusedAdamW {
    /// Queues the first stage of a step over parts: what is measured of gradients, and of their loss.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step`].
    ///
    /// # Panics
    ///
    /// If the tensors are no parts, or lie anywhere.
    pub fn measure(
        &mut self,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        let bases = self.flat_bases(None, gradients)?;
        self.queue_measure(bases, loss)
    }

    /// [`FusedAdamW::measure`] of gradients that lie anywhere.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step_placed`].
    ///
    /// # Panics
    ///
    /// If the tensors are no parts, or lie one after the other.
    pub fn measure_placed(&mut self, placement: &Placement) -> Result<(), Error> {
        let bases = self.placed_bases(placement)?;
        self.queue_measure(bases, None)
    }

    /// What was measured, for all who have parts to add up; `None` if nothing is, for all of them.
    pub fn measured(&mut self) -> Option<&mut Buffer<f64>> {
        Some(&mut self.shared.as_mut()?.places.as_mut()?.numbers)
    }

    /// Queues the second stage: the update of the own parts.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::measure`].
    pub fn update_parts(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let bases = self.flat_bases(Some(parameters), gradients)?;
        self.queue_update_of_parts(bases)
    }

    /// [`FusedAdamW::update_parts`] where the last placement says.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::measure_placed`].
    pub fn update_placed_parts(&mut self) -> Result<(), Error> {
        let bases = Bases { state: self.state.address(), ..Bases::default() };
        self.queue_update_of_parts(bases)
    }

    /// What scales follow from, for all who have parts to add up; `None` if there is no scale.
    pub fn spreads(&mut self) -> Option<&mut Buffer<f64>> {
        let spreads = &mut self.shared.as_mut()?.spreads;
        (!spreads.is_empty()).then_some(spreads)
    }

    /// Queues the last stage: scales move on.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Panics
    ///
    /// If the tensors are no parts.
    pub fn finish(&mut self) -> Result<(), Error> {
        let shared = self.shared.as_mut().expect("tensors are parts");
        let count = shared.scaled.len() as u64;
        let scales = Scales {
            tensors: shared.scaled.address(),
            spreads: shared.spreads.address(),
            control: self.control.address(),
            count,
        };
        let blocks = count.div_ceil(u64::from(SCALES_THREADS)) as u32;
        // SAFETY: 1. `Scales` is laid out as in scales.cu, which was compiled for these threads. 2. and 3. The
        // records lie in the state of this model, whose steps are on one stream.
        unsafe { launch(&self.gpu, &shared.advance, blocks, SCALES_THREADS, &scales) }
    }

    fn queue_measure(&mut self, bases: Bases, loss: Option<&Buffer<f64>>) -> Result<(), Error> {
        self.begin()?;
        let shared = self.shared.as_mut().expect("tensors are parts");
        let (Some(norm), Some(places)) = (&self.norm, &mut shared.places) else { return Ok(()) };
        places.numbers.fill_zero()?;
        let model = (&self.table, &self.biases, &mut self.gradient_maxima, &mut self.control);
        // SAFETY: 2. and 3. Gradients are as long as the table says, as was checked or vouched for; the rest
        // is this model's.
        unsafe { norm.queue(&self.gpu, bases, model, loss, Some(places)) }
    }

    fn queue_update_of_parts(&mut self, bases: Bases) -> Result<(), Error> {
        let shared = self.shared.as_mut().expect("tensors are parts");
        if let (Some(norm), Some(places)) = (&self.norm, &mut shared.places) {
            let model =
                (&self.table, &mut self.biases, &mut self.gradient_maxima, &mut self.control);
            norm.queue_finish(&self.gpu, model, places)?;
        }
        shared.spreads.fill_zero()?;
        let spreads = if shared.spreads.is_empty() { 0 } else { shared.spreads.address() };
        self.queue_update(bases, spreads)
    }
}
