//! LayerNorm on CUDA. The gradients of gain and bias come in two stages: every block leaves the sums
//! of its rows, and these are added up in order, aside. So that the next backward pass need not wait
//! for that, there are several buffers for such sums, used in turn.

use std::sync::{Arc, Mutex, PoisonError};

use gpu_kernels::{Activations, Buffer, ViewMut, Weights};

use super::Cuda;
use super::postponed::PARTIALS;
use crate::Error;
use crate::ops::{LayerNorm, LayerNormInputs, LayerNormShape, Store};
use crate::parts::Part;

impl LayerNorm for Cuda {
    fn layernorm_plan(&self, shape: LayerNormShape) -> Result<(), Error> {
        self.layernorm(shape).map(drop)
    }

    /// None: the sums of blocks have memory of their own.
    fn layernorm_workspace_length(&self, _: LayerNormShape) -> usize {
        0
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
            self.settle(&[out.address(), statistics.address()])?;
            Ok(norm.kernels.forward(self.gpu(), out, statistics, x, gain_bias, shape.rows)?)
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
            self.settle(&[out.address(), statistics.address(), x.address()])?;
            let outputs = (out, statistics, x);
            Ok(norm.kernels.forward_residual(self.gpu(), outputs, terms, gain_bias, shape.rows)?)
        })
    }

    fn layernorm_backward(
        &self,
        d_x: &mut Activations,
        d_parameters: ViewMut<'_, f32>,
        forward: LayerNormInputs<'_, '_, Self>,
        _: &mut Buffer<f32>,
        shape: LayerNormShape,
        store: Store,
    ) -> Result<(), Error> {
        self.timed(Part::LayerNorm, || {
            let (norm, rows) = (self.layernorm(shape)?, shape.rows);
            let LayerNormInputs { d_out, x, statistics, gain_bias, d_residual } = forward;
            let gain_bias = gain_bias.floats();
            let inputs =
                gpu_kernels::LayerNormInputs { d_out, x, statistics, gain_bias, d_residual };
            let mut partials = norm.partials.lock().unwrap_or_else(PoisonError::into_inner);
            partials.rotate_left(1);
            let partials = &mut partials[0];
            self.settle(&[d_x.address(), partials.address()])?;
            norm.kernels.backward_input(self.gpu(), d_x, partials, inputs, rows)?;
            let (kernels, adds) = (&norm.kernels, store == Store::Add);
            let sum =
                kernels.backward_parameters(self.gpu(), &d_parameters, partials, rows, adds)?;
            self.postpone_sum(sum)?;
            // The gradient of the residual stream, which all wait for, is on its way.
            self.compute_table_part(true)
        })
    }
}

/// LayerNorm of one shape.
pub(super) struct Norm {
    kernels: gpu_kernels::LayerNorm,
    /// Sums of blocks, the latest first.
    partials: Mutex<Vec<Buffer<f32>>>,
}

impl Cuda {
    fn layernorm(&self, shape: LayerNormShape) -> Result<Arc<Norm>, Error> {
        let LayerNormShape { rows, channels } = shape;
        let make = || {
            let length = gpu_kernels::LayerNorm::workspace_length(self.gpu(), rows, channels);
            let partials: Result<_, _> = (0..PARTIALS).map(|_| self.gpu().zeros(length)).collect();
            Ok(Norm {
                kernels: gpu_kernels::LayerNorm::new(self.gpu(), self.precision(), channels)?,
                partials: Mutex::new(partials?),
            })
        };
        self.inner.layernorms.get(shape, |_| true, make)
    }
}
