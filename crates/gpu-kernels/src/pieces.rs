//! A step whose update is cut into tensors, so that other work may begin when the tensors that it reads are done, and
//! go on beside the rest.
//!
//! The step begins with what has to be known of all gradients; then come the tensors, in any order and on any
//! stream. Every element becomes what it would in one launch.

use std::ops::Range;

use crate::buffer::{check_device, check_length};
use crate::kind::ParameterType;
use crate::table::Bases;
use crate::{Buffer, Error, FusedAdamW, Gpu, Gradients, ParametersMut};

/// Threads that an update beside other work has on each multiprocessor. As few keep a good half of the memory's
/// bandwidth busy, and leave registers, shared memory and issue slots to whatever else is there.
const THREADS_BESIDE: u32 = 512;

/// How a piece of an update is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it can be.
    Alone,
    /// By few blocks, which leave room for other work.
    Beside,
}

impl FusedAdamW {
    /// Has every update also write the parameters, rounded to bf16 (to nearest, ties to even), to `copies`; where
    /// an element keeps its parameter, its copy is kept or written anew. `None` ends that.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and [`Error::OtherType`] unless all parameters are f32.
    ///
    /// # Panics
    ///
    /// If the tensors lie anywhere.
    pub fn set_copies(&mut self, copies: Option<Buffer<u16>>) -> Result<(), Error> {
        if let Some(copies) = &copies {
            assert!(!self.layout.is_placed, "the tensors of this model lie anywhere");
            check_length("copies of parameters", self.layout.elements, copies.len())?;
            check_device("copies of parameters", &self.gpu, copies.gpu())?;
            if self.layout.kinds.iter().any(|kind| kind.parameters != ParameterType::F32) {
                let (expected, found) = ("f32", ParameterType::Split.name());
                return Err(Error::OtherType {
                    what: "parameters that are copied",
                    expected,
                    found,
                });
            }
        }
        self.copies = copies;
        Ok(())
    }

    /// Whether tensors can be updated beside other work: their kernel needs no shared memory.
    #[must_use]
    pub fn can_be_beside(&self) -> bool {
        self.layout.kinds.iter().all(|kind| kind.format.lanes().is_some())
    }

    /// Queues what comes before the update in [`FusedAdamW::step_watching`]; [`FusedAdamW::update_tensors`] of every
    /// tensor follows.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step_watching`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::step_watching`].
    pub fn begin_step(
        &mut self,
        gradients: Gradients<'_>,
        parameters: ParametersMut<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        let bases = self.watched_bases(parameters, gradients, loss)?;
        self.queue_norm(bases, loss)?;
        self.queue_check(bases)
    }

    /// Queues the update of the tensors at these positions on the stream of `gpu`, which may be another than the
    /// step's. Whoever asks for that orders the work of both: the beginning of the step comes before, and the beginning of
    /// the next one behind.
    ///
    /// # Errors
    ///
    /// As [`FusedAdamW::step`].
    ///
    /// # Panics
    ///
    /// As [`FusedAdamW::step`], and if there are no such tensors.
    pub fn update_tensors(
        &mut self,
        gpu: &Gpu,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
        (tensors, pace): (Range<usize>, Pace),
    ) -> Result<(), Error> {
        check_device("the stream", &self.gpu, gpu)?;
        let bases = self.flat_bases(Some(parameters), gradients)?;
        let blocks = self.blocks_of(&tensors);
        let count = blocks.end - blocks.start;
        let (kernel, grid) = match pace {
            Pace::Alone => (self.update.clone(), count),
            Pace::Beside => {
                let of_multiprocessor = (THREADS_BESIDE / self.options.shape.threads).max(1);
                let most = gpu.facts().multiprocessors * of_multiprocessor;
                (self.beside.clone(), count.min(most))
            }
        };
        self.queue_blocks(gpu, &kernel, grid, blocks, (bases, 0))
    }

    /// The blocks of the tensors at these positions.
    fn blocks_of(&self, tensors: &Range<usize>) -> Range<u32> {
        let first_blocks = self.layout.first_blocks();
        let all = self.layout.blocks as u32;
        assert!(tensors.start <= tensors.end && tensors.end <= first_blocks.len(), "{tensors:?}");
        let start = |tensor: usize| first_blocks.get(tensor).copied().unwrap_or(all);
        start(tensors.start)..start(tensors.end)
    }

    /// The bases of a step that also looks at the loss.
    pub(crate) fn watched_bases(
        &self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<Bases, Error> {
        if let Some(loss) = loss {
            assert!(self.options.needs_norm(), "the launch that looks at the loss is the norm's");
            check_length("a loss", 1, loss.len())?;
            check_device("a loss", &self.gpu, loss.gpu())?;
        }
        self.flat_bases(Some(parameters), gradients)
    }
}
