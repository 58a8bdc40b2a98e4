//! GELU on CUDA.

use gpu_kernels::Activations;

use super::Cuda;
use crate::Error;
use crate::ops::Gelu;
use crate::parts::Part;

impl Gelu for Cuda {
    fn gelu_forward(
        &self,
        y: &mut Activations,
        x: &Activations,
        length: usize,
    ) -> Result<(), Error> {
        self.timed(Part::Gelu, || {
            self.settle(&[y.address()])?;
            Ok(self.inner.gelu.forward(self.gpu(), y, x, length)?)
        })
    }

    fn gelu_backward(
        &self,
        gradient: &mut Activations,
        x: &Activations,
        length: usize,
    ) -> Result<(), Error> {
        self.timed(Part::Gelu, || {
            self.settle(&[gradient.address()])?;
            Ok(self.inner.gelu.backward(self.gpu(), gradient, x, length)?)
        })
    }
}
