//! LayerNorm on CUDA. The gradients of gain and bias come in two stages: every block leaves the sums
//! of its rows in the workspace, and these are added up in order.

use std::sync::Arc;

use gpu_kernels::{Activations, Buffer, ViewMut, Weights};

use super::Cuda;
use crate::Error;
use crate::ops::{LayerNorm, LayerNormInputs, LayerNormShape, LayerNormStores, Store};
use crate::parts::Part;

impl LayerNorm for Cuda {
    fn layernorm_plan(&self, shape: LayerNormShape) -> Result<(), Error> {
        self.layernorm(shape).map(drop)
    }

    fn layernorm_workspace_length(&self, shape: LayerNormShape) -> usize {
        gpu_kernels::LayerNorm::workspace_length(self.gpu(), shape.rows, shape.channels)
    }

    fn layernorm_forward(
        &self,
        out: &mut Activations,
        statistics: &mut Buffer<f32>,
        x: &Activations,
        gain_bias: Weights<'_>,
        shape: LayerNormShape,
    ) -> Result<(), Error> {
        self.timed(Part::LayerNorm, || {
            let (norm, gain_bias) = (self.layernorm(shape)?, gain_bias.floats());
            Ok(norm.forward(self.gpu(), out, statistics, x, gain_bias, shape.rows)?)
        })
    }

    fn layernorm_forward_residual(
        &self,
        out: &mut Activations,
        statistics: &mut Buffer<f32>,
        x: &mut Activations,
        terms: [&Activations; 2],
        gain_bias: Weights<'_>,
        shape: LayerNormShape,
    ) -> Result<(), Error> {
        self.timed(Part::LayerNorm, || {
            let (norm, gain_bias) = (self.layernorm(shape)?, gain_bias.floats());
            let outputs = (out, statistics, x);
            Ok(norm.forward_residual(self.gpu(), outputs, terms, gain_bias, shape.rows)?)
        })
    }

    fn layernorm_backward(
        &self,
        d_x: &mut Activations,
        d_gain_bias: ViewMut<'_, f32>,
        forward: LayerNormInputs<'_, Self>,
        workspace: &mut Buffer<f32>,
        shape: LayerNormShape,
        stores: LayerNormStores,
    ) -> Result<(), Error> {
        self.timed(Part::LayerNorm, || {
            let (norm, rows) = (self.layernorm(shape)?, shape.rows);
            let LayerNormInputs { d_out, x, statistics, gain_bias } = forward;
            let inputs = gpu_kernels::LayerNormInputs {
                d_out,
                x,
                statistics,
                gain_bias: gain_bias.floats(),
            };
            let adds = stores.input == Store::Add;
            norm.backward_input(self.gpu(), d_x, workspace, inputs, rows, adds)?;
            let adds = stores.parameters == Store::Add;
            Ok(norm.backward_parameters(self.gpu(), d_gain_bias, workspace, rows, adds)?)
        })
    }
}

impl Cuda {
    fn layernorm(&self, shape: LayerNormShape) -> Result<Arc<gpu_kernels::LayerNorm>, Error> {
        let channels = shape.channels;
        let make = || gpu_kernels::LayerNorm::new(self.gpu(), self.precision(), channels);
        self.inner.layernorms.get(channels, |_| true, make)
    }
}
