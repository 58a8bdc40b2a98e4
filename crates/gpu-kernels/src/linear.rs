//! Linear layers, `y = x W + b`, also with GELU behind them: matrix products, and the sums that make
//! the gradient of b.
//!
//! The library can compute GELU, its gradient and the gradient of b within a product. Whether that is
//! faster than kernels of our own is timed once and kept in the kernel cache, like the choice of an
//! algorithm, since the two round differently.

#![expect(unsafe_code, reason = "queues products over addresses")]

mod layers;

pub use layers::LayerGradient;

use crate::blas;
use crate::buffer::check_length;
use crate::columns::{ColumnRuns, Matrix, PendingSum, RunSums};
use crate::product::{Epilogue, Lane, Operands, Product, ProductShape, Products, Side};
use crate::{Activations, Buffer, Error, Gelu, Precision, ViewMut, Weights, graph, timing};

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

/// What a layer is planned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearUse {
    /// Whether there is a backward pass.
    pub is_training: bool,
    /// Whether its input comes from GELU.
    pub gelu_before: bool,
    /// Whether its output goes to GELU.
    pub gelu_after: bool,
    /// Layers of this shape whose gradients of parameters are computed at once; below two, none are.
    pub layers: usize,
}

/// A linear layer of one shape, planned. W is `[inputs, outputs]` and b lies directly behind it.
pub struct Linear {
    forward: Product,
    /// With GELU behind it, where the library is faster.
    forward_gelu: Option<Product>,
    backward: Option<Backward>,
    gelu: Gelu,
    shape: LinearShape,
    planned: LinearUse,
    precision: Precision,
}

struct Backward {
    input: Product,
    /// With the gradient of GELU behind it, where the library is faster.
    input_gelu: Option<Product>,
    weight: Product,
    /// With the gradient of b beside it, where the library is faster; it cannot add to gradients.
    weight_bias: Option<Product>,
    /// Of several layers at once, where the library can.
    weights: Option<Product>,
    runs: ColumnRuns,
    sums: RunSums,
    /// The sums of runs, of as many layers as are computed at once.
    partials: Buffer<f32>,
}

impl Linear {
    /// Plans the products of a layer.
    ///
    /// # Errors
    ///
    /// What the library, the compiler or the driver refuses, and [`Error::Recording`].
    pub fn new(
        lane: &Lane,
        products: &Products,
        shape: LinearShape,
        planned: LinearUse,
    ) -> Result<Linear, Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        let precision = products.precision();
        let side = |is_transposed, row| Side { is_transposed, row };
        let forward = ProductShape {
            m: rows,
            n: outputs,
            k: inputs,
            a: side(false, inputs),
            b: side(false, outputs),
            out_row: outputs,
            precision,
            is_bf16_out: precision.is_bf16(),
            epilogue: Epilogue::Bias,
            alignment_bytes: alignment_bytes(precision, &[inputs, outputs]),
            count: 1,
        };
        let input = ProductShape {
            n: inputs,
            k: outputs,
            a: side(false, outputs),
            b: side(true, outputs),
            out_row: inputs,
            epilogue: Epilogue::None,
            ..forward.clone()
        };
        let weight = ProductShape {
            m: inputs,
            n: outputs,
            k: rows,
            a: side(true, inputs),
            b: side(false, outputs),
            out_row: outputs,
            is_bf16_out: false,
            ..input.clone()
        };
        let mut linear = Linear {
            forward: Product::new(lane, products, forward)?,
            forward_gelu: None,
            backward: None,
            gelu: Gelu::new(lane.gpu(), precision)?,
            shape,
            planned,
            precision,
        };
        if planned.gelu_after {
            linear.forward_gelu = linear.choose_forward_gelu(lane, products)?;
        }
        if planned.is_training {
            let shapes = [input, weight];
            linear.backward = Some(Backward::new(lane, products, &linear, shapes)?);
        }
        Ok(linear)
    }

    /// Whether it was planned for all of this.
    #[must_use]
    pub fn covers(&self, wanted: LinearUse) -> bool {
        let LinearUse { is_training, gelu_before, gelu_after, layers } = self.planned;
        (is_training || !wanted.is_training)
            && (layers == wanted.layers || wanted.layers < 2)
            && (gelu_before || !wanted.gelu_before)
            && (gelu_after || !wanted.gelu_after)
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
        let operands = self.forward_operands(y, x, weight_bias)?;
        // SAFETY: 1. All are as long as was checked. 2. y was borrowed mutably.
        unsafe { self.forward.queue(lane, operands, false) }
    }

    /// Overwrites y as [`Linear::forward`] does, and `activated` `[rows, outputs]` with its GELU.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    pub fn forward_gelu(
        &self,
        lane: &Lane,
        activated: &mut Activations,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<(), Error> {
        let length = self.shape.rows * self.shape.outputs;
        activated.check("output of GELU", self.precision, length)?;
        let operands = self.forward_operands(y, x, weight_bias)?;
        let Some(fused) = &self.forward_gelu else {
            // SAFETY: as in `forward`.
            unsafe { self.forward.queue(lane, operands, false)? };
            return self.gelu.forward(lane.gpu(), activated, y, length);
        };
        let operands = Operands { out: activated.address(), aux: operands.out, ..operands };
        // SAFETY: as in `forward`, and `activated` too was checked and borrowed mutably.
        unsafe { fused.queue(lane, operands, false) }
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
        let operands = self.input_operands(d_x, d_y, weight_bias)?;
        // SAFETY: as in `forward`.
        unsafe { self.backward().input.queue(lane, operands, false) }
    }

    /// Overwrites `d_z = (d_y W^T) gelu'(z)`, for a layer whose input was `gelu(z)`.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training.
    pub fn backward_input_gelu(
        &self,
        lane: &Lane,
        d_z: &mut Activations,
        d_y: &Activations,
        z: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<(), Error> {
        let length = self.shape.rows * self.shape.inputs;
        z.check("input of GELU", self.precision, length)?;
        let operands = self.input_operands(d_z, d_y, weight_bias)?;
        let Backward { input, input_gelu, .. } = self.backward();
        let Some(fused) = input_gelu else {
            // SAFETY: as in `forward`.
            unsafe { input.queue(lane, operands, false)? };
            return self.gelu.backward(lane.gpu(), d_z, z, length);
        };
        // SAFETY: as in `forward`, and z too was checked.
        unsafe { fused.queue(lane, Operands { aux: z.address(), ..operands }, false) }
    }

    /// Stores `d_W = x^T d_y` and, `with_bias`, `d_b = sum_rows d_y`, the latter by way of memory of the
    /// layer's own: a layer's calls are all on one stream, or wait for each other.
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
        with_bias: bool,
        adds: bool,
    ) -> Result<(), Error> {
        let LinearShape { inputs, outputs, .. } = self.shape;
        let layer = self.layer_gradient(&d_weight_bias, d_y, x)?;
        let Backward { weight, weight_bias, sums, .. } = self.backward();
        let operands = layer.operands();
        let out = operands.out;
        if let Some(fused) = weight_bias.as_ref().filter(|_| with_bias && !adds) {
            let bias = out + 4 * (inputs * outputs) as u64;
            // SAFETY: as in `forward`.
            return unsafe { fused.queue(lane, Operands { bias, ..operands }, false) };
        }
        // SAFETY: as in `forward`.
        unsafe { weight.queue(lane, operands, adds)? };
        if !with_bias {
            return Ok(());
        }
        // SAFETY: as in `forward`.
        let pending = unsafe { self.queue_run(lane, &layer, 0, adds)? };
        sums.queue(lane.gpu(), &[pending])
    }

    fn backward(&self) -> &Backward {
        self.backward.as_ref().expect("a backward pass is planned for")
    }

    fn forward_operands(
        &self,
        y: &mut Activations,
        x: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<Operands, Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        y.check("output of a linear layer", self.precision, rows * outputs)?;
        x.check("input of a linear layer", self.precision, rows * inputs)?;
        self.check_weights(weight_bias.floats().len())?;
        Ok(Operands {
            out: y.address(),
            a: x.address(),
            b: weight_bias.address(self.precision, 0)?,
            bias: weight_bias.address(self.precision, inputs * outputs)?,
            ..Operands::default()
        })
    }

    fn input_operands(
        &self,
        d_x: &mut Activations,
        d_y: &Activations,
        weight_bias: Weights<'_>,
    ) -> Result<Operands, Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        d_x.check("gradient of a linear layer's input", self.precision, rows * inputs)?;
        d_y.check("gradient of a linear layer's output", self.precision, rows * outputs)?;
        self.check_weights(weight_bias.floats().len())?;
        let b = weight_bias.address(self.precision, 0)?;
        Ok(Operands { out: d_x.address(), a: d_y.address(), b, ..Operands::default() })
    }

    fn check_weights(&self, found: usize) -> Result<(), Error> {
        let LinearShape { inputs, outputs, .. } = self.shape;
        check_length("weight and bias", (inputs + 1) * outputs, found)
    }

    fn choose_forward_gelu(
        &self,
        lane: &Lane,
        products: &Products,
    ) -> Result<Option<Product>, Error> {
        let shape = ProductShape { epilogue: Epilogue::Gelu, ..self.forward.shape().clone() };
        choose(lane, products, shape, |operands, [y, x]| {
            // SAFETY: the operands are scratch matrices of the product's sizes.
            unsafe { self.forward.queue(lane, operands, false)? };
            let length = y.len();
            self.gelu.forward(lane.gpu(), y, x, length)
        })
    }
}

impl Backward {
    fn new(
        lane: &Lane,
        products: &Products,
        linear: &Linear,
        [input, weight]: [ProductShape; 2],
    ) -> Result<Backward, Error> {
        let LinearShape { rows, outputs, .. } = linear.shape;
        let (gpu, layers) = (lane.gpu(), linear.layers_at_once());
        let weights = ProductShape { count: layers, ..weight.clone() };
        let mut backward = Backward {
            input: Product::new(lane, products, input)?,
            input_gelu: None,
            weight: Product::new(lane, products, weight)?,
            weight_bias: None,
            weights: match layers {
                1 => None,
                _ => Product::fused(lane, products, weights)?,
            },
            runs: ColumnRuns::new(gpu, linear.precision, outputs)?,
            sums: RunSums::new(gpu)?,
            partials: gpu.zeros(layers * ColumnRuns::workspace_length(rows, outputs))?,
        };
        if linear.planned.gelu_before {
            backward.input_gelu = backward.choose_input_gelu(lane, products, &linear.gelu)?;
        }
        backward.weight_bias = backward.choose_weight_bias(lane, products, linear.shape)?;
        Ok(backward)
    }

    fn choose_input_gelu(
        &self,
        lane: &Lane,
        products: &Products,
        gelu: &Gelu,
    ) -> Result<Option<Product>, Error> {
        let shape = ProductShape { epilogue: Epilogue::GeluGradient, ..self.input.shape().clone() };
        choose(lane, products, shape, |operands, [y, x]| {
            // SAFETY: the operands are scratch matrices of the product's sizes.
            unsafe { self.input.queue(lane, operands, false)? };
            let length = y.len();
            gelu.backward(lane.gpu(), y, x, length)
        })
    }

    fn choose_weight_bias(
        &self,
        lane: &Lane,
        products: &Products,
        shape: LinearShape,
    ) -> Result<Option<Product>, Error> {
        let LinearShape { rows, outputs, .. } = shape;
        let fused = ProductShape { epilogue: Epilogue::ColumnSums, ..self.weight.shape().clone() };
        let d_bias = lane.gpu().zeros::<f32>(outputs)?;
        let d_y = Activations::zeros(lane.gpu(), fused.precision, rows * outputs)?;
        let address = d_y.address();
        let matrix = Matrix { address, rows, columns: outputs };
        choose(lane, products, fused, |operands, _| {
            // SAFETY: the operands are scratch matrices of the product's sizes, and so is d_y.
            unsafe {
                self.weight.queue(lane, operands, false)?;
                self.runs.queue(lane.gpu(), &self.partials, 0, matrix)?;
            }
            let (partials, sums) = (&self.partials, d_bias.held());
            let pending = PendingSum::of_runs(partials, 0, sums, [rows, outputs], false);
            self.sums.queue(lane.gpu(), &[pending])
        })
    }
}

/// A product with an epilogue, if that is faster than `separate`, which is given the
/// operands of the same product without it and two activations as large as its output.
fn choose(
    lane: &Lane,
    products: &Products,
    shape: ProductShape,
    mut separate: impl FnMut(Operands, [&mut Activations; 2]) -> Result<(), Error>,
) -> Result<Option<Product>, Error> {
    let (gpu, cache) = (lane.gpu(), &lane.gpu().device.cache);
    // Without a place to keep it, a choice by time might differ from run to run. In exact f32 there is
    // nothing to gain: products take far longer than what could be fused with them.
    let has_place = cache.folder().is_some() || products.prefers_tiles();
    if !has_place || shape.precision == Precision::Fp32 {
        return Ok(None);
    }
    let Some(fused) = Product::fused(lane, products, shape)? else { return Ok(None) };
    if products.prefers_tiles() || fused.is_by_tiles() && fused.shape().is_beside_others() {
        return Ok(Some(fused));
    }
    let key = blas::key(gpu, &format!("whether {} is faster", fused.shape()));
    let is_faster = match cache.load(&key).as_deref() {
        Some([answer]) => *answer == 1,
        _ => {
            let shape = fused.shape();
            let (_scratch, operands) = blas::scratch(gpu, shape)?;
            let length = shape.m * shape.out_row;
            let activations = || Activations::zeros(gpu, shape.precision, length);
            let (mut y, mut x) = (activations()?, activations()?);
            // SAFETY: the operands are scratch matrices of the shape's sizes.
            let together = || unsafe { fused.queue(lane, operands, false) };
            let apart = || separate(operands, [&mut y, &mut x]);
            let is_faster = graph::alone(|| timing::is_faster(gpu, together, apart));
            // What cannot be timed is not chosen.
            cache.keep_first(&key, vec![u8::from(is_faster.unwrap_or(false))]) == [1]
        }
    };
    Ok(is_faster.then_some(fused))
}

/// The largest power of two up to 16 that divides rows of these lengths in bytes, and so every
/// multiple of them.
pub(crate) fn alignment_bytes(precision: Precision, lengths: &[usize]) -> usize {
    let bytes = lengths.iter().map(|length| length * precision.activation_bytes());
    bytes.map(|bytes| 1 << bytes.trailing_zeros().min(4)).min().unwrap_or(1)
}
