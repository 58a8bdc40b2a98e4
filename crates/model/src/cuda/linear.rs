//! Linear layers on CUDA. Gradients of parameters are computed aside.

use std::sync::Arc;

use gpu_kernels::{Activations, ViewMut, Weights};

use super::{Cuda, front};
use crate::ops::{Linear, LinearShape, Store};
use crate::parts::Part;
use crate::{Error, Purpose};

impl Linear for Cuda {
    fn linear_plan(&self, shape: LinearShape, purpose: Purpose) -> Result<(), Error> {
        self.linear(shape, purpose).map(drop)
    }

    fn linear_forward(
        &self,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, Purpose::Evaluation)?;
            self.settle(&[y.address(), weight_bias.product_addresses().start])?;
            Ok(linear.forward(self.lane(), y, x, weight_bias)?)
        })
    }

    fn linear_backward_input(
        &self,
        d_x: &mut Activations,
        d_y: &Activations,
        weight_bias: Weights<'_>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, Purpose::Training)?;
            self.settle(&[d_x.address(), weight_bias.product_addresses().start])?;
            Ok(linear.backward_input(self.lane(), d_x, d_y, weight_bias)?)
        })
    }

    fn linear_backward_parameters(
        &self,
        d_weight_bias: ViewMut<'_, f32>,
        d_y: &Activations,
        x: &Activations,
        shape: LinearShape,
        store: Store,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, Purpose::Training)?;
            let adds = store == Store::Add;
            let touched = [d_weight_bias.address(), d_y.address(), x.address()].map(front);
            Ok(self.inner.lanes.aside(&touched, |lane| {
                linear.backward_parameters(lane, d_weight_bias, d_y, x, adds)
            })?)
        })
    }
}

impl Cuda {
    /// A layer that can do what the purpose asks for.
    fn linear(
        &self,
        shape: LinearShape,
        purpose: Purpose,
    ) -> Result<Arc<gpu_kernels::Linear>, Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        let shape = gpu_kernels::LinearShape { rows, inputs, outputs };
        let is_training = purpose == Purpose::Training;
        let is_enough = |linear: &gpu_kernels::Linear| linear.is_training() || !is_training;
        let make =
            || gpu_kernels::Linear::new(self.lane(), &self.inner.products, shape, is_training);
        self.inner.linears.get(shape, is_enough, make)
    }
}
