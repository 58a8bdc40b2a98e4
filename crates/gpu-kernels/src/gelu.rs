//! GELU and its gradient. Launches `cuda/gelu.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::launch::{launch, striding_blocks};
use crate::module::Kernel;
use crate::programs::network::{self, THREADS};
use crate::{Activations, Error, Gpu, Precision};

/// GELU in its tanh form.
pub struct Gelu {
    forward: Kernel,
    backward: Kernel,
    precision: Precision,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Elements {
    y: u64,
    x: u64,
    length: u64,
}

impl Gelu {
    /// The kernels on a device.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Gelu, Error> {
        let module = gpu.module(&network::gelu(precision.activation_bytes()))?;
        let (forward, backward) = (module.kernel("gelu_forward")?, module.kernel("gelu_backward")?);
        Ok(Gelu { forward, backward, precision })
    }

    /// Overwrites the front of `y` with `gelu(x)`, `length` elements.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub fn forward(
        &self,
        gpu: &Gpu,
        y: &mut Activations,
        x: &Activations,
        length: usize,
    ) -> Result<(), Error> {
        self.queue(gpu, &self.forward, y, x, length)
    }

    /// Multiplies the front of a gradient with `gelu'(x)`.
    ///
    /// # Errors
    ///
    /// As [`Gelu::forward`].
    pub fn backward(
        &self,
        gpu: &Gpu,
        gradient: &mut Activations,
        x: &Activations,
        length: usize,
    ) -> Result<(), Error> {
        self.queue(gpu, &self.backward, gradient, x, length)
    }

    fn queue(
        &self,
        gpu: &Gpu,
        kernel: &Kernel,
        y: &mut Activations,
        x: &Activations,
        length: usize,
    ) -> Result<(), Error> {
        y.check("output of GELU", self.precision, length)?;
        x.check("input of GELU", self.precision, length)?;
        let argument = Elements { y: y.address(), x: x.address(), length: length as u64 };
        let accesses = length.div_ceil(16 / self.precision.activation_bytes());
        let blocks = striding_blocks(gpu, accesses, THREADS);
        // SAFETY: 1. `Elements` is laid out as `Gelu` in gelu.cu, which was compiled for these threads.
        // 2. Both have `length` elements. 3. `y` was borrowed mutably.
        unsafe { launch(gpu, kernel, blocks, THREADS, &argument) }
    }
}
