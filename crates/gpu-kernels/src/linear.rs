//! Linear layers, `y = x W + b`: three matrix products and the sums that make the gradient of b.

#![expect(unsafe_code, reason = "queues products over addresses")]

use crate::buffer::check_length;
use crate::columns::ColumnSums;
use crate::product::{Lane, Operands, Product, ProductShape, Products, Side};
use crate::{Activations, Buffer, Error, Precision, ViewMut, Weights};

/// Shape of a [`Linear`] layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearShape {
    /// Rows, B T.
    pub rows: usize,
    /// Width of x.
    pub inputs: usize,
    /// Width of y.
    pub outputs: usize,
}

/// A linear layer of one shape, planned. W is `[inputs, outputs]` and b lies directly behind it.
pub struct Linear {
    forward: Product,
    backward: Option<Backward>,
    shape: LinearShape,
    precision: Precision,
}

struct Backward {
    input: Product,
    weight: Product,
    sums: ColumnSums,
    partials: Buffer<f32>,
}

impl Linear {
    /// Plans the products of a layer; those of the backward pass only for training.
    ///
    /// # Errors
    ///
    /// What the library, the compiler or the driver refuses, and [`Error::Recording`].
    pub fn new(
        lane: &Lane,
        products: &Products,
        shape: LinearShape,
        is_training: bool,
    ) -> Result<Linear, Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        let precision = products.precision();
        let plain = |row| Side { is_transposed: false, row };
        let transposed = |row| Side { is_transposed: true, row };
        let forward = ProductShape {
            m: rows,
            n: outputs,
            k: inputs,
            a: plain(inputs),
            b: plain(outputs),
            out_row: outputs,
            precision,
            is_bf16_out: precision.is_bf16(),
            has_bias: true,
            alignment_bytes: alignment_bytes(precision, &[inputs, outputs]),
        };
        let input = ProductShape {
            n: inputs,
            k: outputs,
            a: plain(outputs),
            b: transposed(outputs),
            out_row: inputs,
            has_bias: false,
            ..forward.clone()
        };
        let weight = ProductShape {
            m: inputs,
            n: outputs,
            k: rows,
            a: transposed(inputs),
            b: plain(outputs),
            out_row: outputs,
            is_bf16_out: false,
            ..input.clone()
        };
        let backward = || -> Result<Backward, Error> {
            Ok(Backward {
                input: Product::new(lane, products, input)?,
                weight: Product::new(lane, products, weight)?,
                sums: ColumnSums::new(lane.gpu(), precision, outputs)?,
                partials: lane.gpu().zeros(ColumnSums::workspace_length(rows, outputs))?,
            })
        };
        Ok(Linear {
            backward: if is_training { Some(backward()?) } else { None },
            forward: Product::new(lane, products, forward)?,
            shape,
            precision,
        })
    }

    /// Whether the backward pass is planned too.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.backward.is_some()
    }

    /// Overwrites y `[rows, outputs]` from x `[rows, inputs]`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the library or the driver refuses.
    pub fn forward(
        &self,
        lane: &Lane,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        y.check("output of a linear layer", self.precision, rows * outputs)?;
        x.check("input of a linear layer", self.precision, rows * inputs)?;
        self.check_weights(weight_bias.floats().len())?;
        let operands = Operands {
            out: y.address(),
            a: x.address(),
            b: weight_bias.address(self.precision, 0)?,
            bias: weight_bias.address(self.precision, inputs * outputs)?,
        };
        // SAFETY: 1. All are as long as was checked. 2. y was borrowed mutably.
        unsafe { self.forward.queue(lane, operands, false) }
    }

    /// Overwrites `d_x = d_y W^T`.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training.
    pub fn backward_input(
        &self,
        lane: &Lane,
        d_x: &mut Activations,
        d_y: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        d_x.check("gradient of a linear layer's input", self.precision, rows * inputs)?;
        d_y.check("gradient of a linear layer's output", self.precision, rows * outputs)?;
        self.check_weights(weight_bias.floats().len())?;
        let operands = Operands {
            out: d_x.address(),
            a: d_y.address(),
            b: weight_bias.address(self.precision, 0)?,
            bias: 0,
        };
        // SAFETY: as in `forward`.
        unsafe { self.backward().input.queue(lane, operands, false) }
    }

    /// Stores `d_W = x^T d_y` and `d_b = sum_rows d_y`, the latter by way of memory of the layer's own:
    /// a layer's calls are all on one stream, or wait for each other.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training.
    pub fn backward_parameters(
        &self,
        lane: &Lane,
        d_weight_bias: ViewMut<'_, f32>,
        d_y: &Activations,
        x: &Activations,
        adds: bool,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        d_y.check("gradient of a linear layer's output", self.precision, rows * outputs)?;
        x.check("input of a linear layer", self.precision, rows * inputs)?;
        self.check_weights(d_weight_bias.len())?;
        let operands =
            Operands { out: d_weight_bias.address(), a: x.address(), b: d_y.address(), bias: 0 };
        let Backward { weight, sums, partials, .. } = self.backward();
        // SAFETY: as in `forward`.
        unsafe { weight.queue(lane, operands, adds)? };
        let d_bias = d_weight_bias.part(inputs * outputs..(inputs + 1) * outputs);
        sums.of_matrix(lane.gpu(), d_bias, d_y, rows, partials, adds)
    }

    fn backward(&self) -> &Backward {
        self.backward.as_ref().expect("a backward pass is planned for")
    }

    fn check_weights(&self, found: usize) -> Result<(), Error> {
        let LinearShape { inputs, outputs, .. } = self.shape;
        check_length("weight and bias", (inputs + 1) * outputs, found)
    }
}

/// The largest power of two up to 16 that divides rows of these lengths in bytes, and so every
/// multiple of them.
pub(crate) fn alignment_bytes(precision: Precision, lengths: &[usize]) -> usize {
    let bytes = lengths.iter().map(|length| length * precision.activation_bytes());
    bytes.map(|bytes| 1 << bytes.trailing_zeros().min(4)).min().unwrap_or(1)
}
