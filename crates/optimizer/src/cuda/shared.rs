//! A step over parts of tensors that others have the rest of, on the device: every stage queues launches, and
//! nothing is waited for.

use gpu_kernels::{Buffer, Gradients, ParametersMut, Placement};

use crate::cpu::Stage;
use crate::{CudaAdamW, Error, OnNonfinite, SharedAdamW};

impl CudaAdamW {
    /// [`SharedAdamW::measure`] of tensors that lie anywhere; [`update_placed_parts`](Self::update_placed_parts) is
    /// about the same.
    ///
    /// # Errors
    ///
    /// As [`CudaAdamW::step_placed`].
    pub fn measure_placed(&mut self, placement: &Placement) -> Result<(), Error> {
        self.begin_shared()?;
        self.fused.measure_placed(placement)?;
        self.stage = Stage::Measured;
        Ok(())
    }

    /// [`SharedAdamW::update_parts`] of the tensors that were measured.
    ///
    /// # Errors
    ///
    /// As [`SharedAdamW::update_parts`].
    pub fn update_placed_parts(&mut self) -> Result<(), Error> {
        self.check_measured()?;
        self.fused.update_placed_parts()?;
        (self.stage, self.has_stepped) = (Stage::Updated, true);
        Ok(())
    }

    /// [`SharedAdamW::measure`] of flat gradients of any type.
    ///
    /// # Errors
    ///
    /// As [`SharedAdamW::measure`], and if the type is not that of the tensors.
    pub fn measure_any(
        &mut self,
        gradients: Gradients<'_>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        self.begin_shared()?;
        let loss = loss.filter(|_| self.layout.options.on_nonfinite == OnNonfinite::Hold);
        self.fused.measure(gradients, loss)?;
        self.stage = Stage::Measured;
        Ok(())
    }

    /// [`SharedAdamW::update_parts`] over flat buffers of any types.
    ///
    /// # Errors
    ///
    /// As [`SharedAdamW::update_parts`], and if the types are not those of the tensors.
    pub fn update_any_parts(
        &mut self,
        parameters: ParametersMut<'_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        self.check_measured()?;
        self.fused.update_parts(parameters, gradients)?;
        (self.stage, self.has_stepped) = (Stage::Updated, true);
        Ok(())
    }

    fn begin_shared(&self) -> Result<(), Error> {
        if self.layout.has_parts() { self.check_update_set() } else { Err(Error::NoParts) }
    }

    fn check_measured(&self) -> Result<(), Error> {
        let found = "update before measure";
        if self.stage == Stage::Measured { Ok(()) } else { Err(Error::StageOrder { found }) }
    }
}

impl SharedAdamW for CudaAdamW {
    type Sums = Buffer<f64>;

    fn measure(
        &mut self,
        gradients: &Buffer<f32>,
        loss: Option<&Buffer<f64>>,
    ) -> Result<(), Error> {
        self.measure_any(Gradients::F32(gradients), loss)
    }

    fn measured(&mut self) -> Option<&mut Buffer<f64>> {
        self.fused.measured()
    }

    fn update_parts(
        &mut self,
        parameters: &mut Buffer<f32>,
        gradients: &Buffer<f32>,
    ) -> Result<(), Error> {
        self.update_any_parts(ParametersMut::F32(parameters), Gradients::F32(gradients))
    }

    fn spreads(&mut self) -> Option<&mut Buffer<f64>> {
        self.fused.spreads()
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.stage != Stage::Updated {
            return Err(Error::StageOrder { found: "finish before update" });
        }
        self.fused.finish()?;
        self.stage = Stage::Finished;
        Ok(())
    }
}
