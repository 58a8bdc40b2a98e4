//! Linear layers on CUDA. Gradients of parameters are computed aside, and those of small layers together.

use std::sync::Arc;

use gpu_kernels::{Activations, LinearUse, ViewMut, Weights};

use super::{Cuda, front};
use crate::ops::{GeluPlace, Linear, LinearShape, LinearStores, Store};
use crate::parts::Part;
use crate::{Error, Purpose};

impl Linear for Cuda {
    fn linear_plan(
        &self,
        shape: LinearShape,
        gelu: Option<GeluPlace>,
        purpose: Purpose,
        layers: usize,
    ) -> Result<(), Error> {
        let wanted = LinearUse {
            is_training: purpose == Purpose::Training,
            gelu_before: gelu == Some(GeluPlace::Before),
            gelu_after: gelu == Some(GeluPlace::After),
            layers,
        };
        self.linear(shape, wanted).map(drop)
    }

    /// Where the gradient of one layer's weight leaves multiprocessors idle, and where the gradients that
    /// are kept for it are few.
    fn linear_joins_layers(&self, shape: LinearShape) -> bool {
        let tiles = shape.inputs.div_ceil(TILE) * shape.outputs.div_ceil(TILE);
        tiles < self.gpu().facts().multiprocessors as usize && shape.rows <= JOINED_ROWS_MAX
    }

    fn linear_forward(
        &self,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, LinearUse::default())?;
            self.settle(&[y.address(), weight_bias.product_addresses().start])?;
            Ok(linear.forward(self.lane(), y, x, weight_bias)?)
        })
    }

    fn linear_forward_gelu(
        &self,
        activated: &mut Activations,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, LinearUse::default())?;
            let weights = weight_bias.product_addresses().start;
            self.settle(&[activated.address(), y.address(), weights])?;
            Ok(linear.forward_gelu(self.lane(), activated, y, x, weight_bias)?)
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
            let linear = self.linear(shape, TRAINING)?;
            self.settle(&[d_x.address(), weight_bias.product_addresses().start])?;
            Ok(linear.backward_input(self.lane(), d_x, d_y, weight_bias)?)
        })
    }

    fn linear_backward_input_gelu(
        &self,
        d_z: &mut Activations,
        d_y: &Activations,
        z: &Activations,
        weight_bias: Weights<'_>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, TRAINING)?;
            self.settle(&[d_z.address(), weight_bias.product_addresses().start])?;
            Ok(linear.backward_input_gelu(self.lane(), d_z, d_y, z, weight_bias)?)
        })
    }

    fn linear_backward_parameters(
        &self,
        d_weight_bias: ViewMut<'_, f32>,
        d_y: &Activations,
        x: &Activations,
        shape: LinearShape,
        stores: LinearStores,
    ) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            let linear = self.linear(shape, TRAINING)?;
            let LinearStores { weight, bias } = stores;
            assert!(bias.is_none_or(|bias| bias == weight), "one store for both gradients");
            let (with_bias, adds) = (bias.is_some(), weight == Store::Add);
            if linear.layers_at_once() > 1 || self.postpones_all() {
                let gradient = linear.layer_gradient(&d_weight_bias, d_y, x)?;
                return self.postpone_layer(linear, gradient, with_bias, adds);
            }
            let touched = [d_weight_bias.address(), d_y.address(), x.address()].map(front);
            Ok(self.inner.lanes.aside(&touched, |lane| {
                linear.backward_parameters(lane, d_weight_bias, d_y, x, with_bias, adds)
            })?)
        })
    }
}

/// What a backward pass asks for.
const TRAINING: LinearUse =
    LinearUse { is_training: true, gelu_before: false, gelu_after: false, layers: 1 };

/// Outputs along a side of a tile that a multiprocessor works on in a product.
const TILE: usize = 128;

/// Most rows of activations whose gradients are kept for all layers.
const JOINED_ROWS_MAX: usize = 8192;

impl Cuda {
    /// A layer that covers a use.
    fn linear(
        &self,
        shape: LinearShape,
        wanted: LinearUse,
    ) -> Result<Arc<gpu_kernels::Linear>, Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        let shape = gpu_kernels::LinearShape { rows, inputs, outputs };
        let covers = |linear: &gpu_kernels::Linear| linear.covers(wanted);
        let make = || gpu_kernels::Linear::new(self.lane(), &self.inner.products, shape, wanted);
        self.inner.linears.get(shape, covers, make)
    }
}
