//! Work on parameters beside a pass on CUDA: on the second stream, behind which operations wait for what they read.

use std::ops::Range;

use gpu_kernels::{Buffer, Gpu};

use super::Cuda;
use crate::Error;
use crate::ops::Beside;

impl Beside for Cuda {
    type Stream = Gpu;
    type Copy = Buffer<u16>;

    fn stream(&self) -> &Gpu {
        self.gpu()
    }

    fn parameter_copy(&self, parameters: &Buffer<f32>) -> Option<Buffer<u16>> {
        self.inner.shadows.copy(parameters)
    }

    fn begin_beside(&self) -> Result<&Gpu, Error> {
        Ok(self.inner.lanes.begin_aside()?.gpu())
    }

    fn end_beside(&self, parameters: &Buffer<f32>, range: Range<usize>) -> Result<(), Error> {
        let weights = self.inner.shadows.view(parameters, range);
        Ok(self.inner.lanes.note(&weights.ranges())?)
    }

    fn settle_beside(&self) -> Result<(), Error> {
        Ok(self.inner.lanes.join()?)
    }
}
