//! The two ends of a branch of a block, each in one kernel: the last linear layer with the residual sum and the
//! LayerNorm that follows, and on the way back the gradient of the first linear layer's input with those
//! of the LayerNorm before it and of the residual sum. Launches `cuda/branch_forward.cu` and
//! `cuda/branch_backward.cu`.
//!
//! There is such a kernel for shapes whose tiles leave multiprocessors idle, on devices that have the
//! instructions; all others take one operation after the other. In between, these kernels round less.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::check_length;
use crate::columns::PendingSum;
use crate::programs::network::TileProgram;
use crate::tiles::{TILE, TensorMap, TileKernel, TileShape};
use crate::{Activations, Buffer, Error, Gpu, LinearShape, Precision, View, ViewMut, Weights};

/// The end of a branch: `x = residual + left W + b`, and its LayerNorm.
pub struct BranchEnd(TileKernel);

/// The beginning of a branch, on the way back.
pub struct BranchStart(TileKernel);

/// What [`BranchEnd::forward`] writes.
#[derive(Debug)]
pub struct BranchEndOutputs<'a> {
    /// The output of the LayerNorm, `[rows, C]`.
    pub out: &'a mut Activations,
    /// Mean and 1 / deviation of each row of x, `[rows, 2]`.
    pub statistics: &'a mut Buffer<f32>,
    /// The residual sum, `[rows, C]`.
    pub x: &'a mut Activations,
}

/// What [`BranchEnd::forward`] reads.
#[derive(Clone, Copy, Debug)]
pub struct BranchEndInputs<'a> {
    /// The input of the linear layer, `[rows, inputs]`.
    pub left: &'a Activations,
    /// The linear layer.
    pub weight_bias: Weights<'a>,
    /// What the layer's output is added to, `[rows, C]`.
    pub residual: &'a Activations,
    /// Gain and bias of the LayerNorm, C each.
    pub gain_bias: View<'a, f32>,
}

/// What [`BranchStart::backward`] reads.
#[derive(Clone, Copy, Debug)]
pub struct BranchStartInputs<'a> {
    /// The gradient of the linear layer's output, `[rows, outputs]`.
    pub d_y: &'a Activations,
    /// The linear layer.
    pub weight_bias: Weights<'a>,
    /// The input of the LayerNorm, `[rows, C]`.
    pub x: &'a Activations,
    /// Mean and 1 / deviation of each of its rows, `[rows, 2]`.
    pub statistics: &'a Buffer<f32>,
    /// Gain and bias of the LayerNorm, C each.
    pub gain_bias: View<'a, f32>,
    /// The gradient of the residual stream behind the branch, `[rows, C]`.
    pub d_residual: &'a Activations,
}

/// `Branch` in `cuda/branch_forward.cu`.
#[repr(C)]
struct Forward {
    maps: [TensorMap; 2],
    out: u64,
    x: u64,
    statistics: u64,
    residual: u64,
    layer_bias: u64,
    gain_bias: u64,
    rows: u32,
}

/// `Branch` in `cuda/branch_backward.cu`.
#[repr(C)]
struct Backward {
    maps: [TensorMap; 2],
    d_x: u64,
    x: u64,
    statistics: u64,
    gain: u64,
    d_residual: u64,
    partials: u64,
    rows: u32,
}

impl BranchEnd {
    /// The kernel for a branch whose last layer has this shape, if there is one.
    #[must_use]
    pub fn new(gpu: &Gpu, precision: Precision, layer: LinearShape) -> Option<BranchEnd> {
        let LinearShape { rows, inputs, outputs } = layer;
        let kernel = whole_rows(gpu, precision, [rows, inputs, outputs], false)?;
        TileKernel::new(gpu, TileProgram::BranchForward, kernel).ok().map(BranchEnd)
    }

    /// Overwrites x with `residual + left W + b`, and `out` and `statistics` with its LayerNorm.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub fn forward(
        &self,
        gpu: &Gpu,
        outputs: BranchEndOutputs<'_>,
        inputs: BranchEndInputs<'_>,
    ) -> Result<(), Error> {
        let BranchEndOutputs { out, statistics, x } = outputs;
        let BranchEndInputs { left, weight_bias, residual, gain_bias } = inputs;
        let TileShape { rows, depth, columns, precision, .. } = self.0.shape();
        let all = [("output", &*out), ("sum", x), ("term", residual)];
        check_rows(precision, rows * columns, &all, statistics.len(), rows, gain_bias)?;
        left.check("input of a linear layer", precision, rows * depth)?;
        check_length("weight and bias", (depth + 1) * columns, weight_bias.floats().len())?;
        let right = weight_bias.address(precision, 0)?;
        let argument = Forward {
            maps: self.0.shape().maps(gpu, left.address(), right)?,
            out: out.address(),
            x: x.address(),
            statistics: statistics.address(),
            residual: residual.address(),
            layer_bias: weight_bias.address(precision, depth * columns)?,
            gain_bias: gain_bias.address(),
            rows: rows as u32,
        };
        // SAFETY: 1. `Forward` is laid out as in branch_forward.cu, compiled for this shape. 2. All are
        // as long as was checked. 3. What is written was borrowed mutably.
        unsafe { self.0.queue(gpu, &argument) }
    }
}

impl BranchStart {
    /// The kernel for a branch whose first layer has this shape, if there is one.
    #[must_use]
    pub fn new(gpu: &Gpu, precision: Precision, layer: LinearShape) -> Option<BranchStart> {
        let LinearShape { rows, inputs, outputs } = layer;
        let kernel = whole_rows(gpu, precision, [rows, outputs, inputs], true)?;
        TileKernel::new(gpu, TileProgram::BranchBackward, kernel).ok().map(BranchStart)
    }

    /// Elements of workspace that [`BranchStart::backward`] needs.
    #[must_use]
    pub fn workspace_length(layer: LinearShape) -> usize {
        layer.rows.div_ceil(TILE) * 3 * layer.inputs
    }

    /// Overwrites `d_x` `[rows, C]` with the gradient of the LayerNorm's input, of which `d_y W^T` is that of its
    /// output, and leaves in `partials` the runs whose sums [`BranchStart::parameters`] stores.
    ///
    /// # Errors
    ///
    /// As [`BranchEnd::forward`].
    pub fn backward(
        &self,
        gpu: &Gpu,
        d_x: &mut Activations,
        partials: &mut Buffer<f32>,
        inputs: BranchStartInputs<'_>,
    ) -> Result<(), Error> {
        let BranchStartInputs { d_y, weight_bias, x, statistics, gain_bias, d_residual } = inputs;
        let TileShape { rows, depth, columns, precision, .. } = self.0.shape();
        let all =
            [("gradient of the input", &*d_x), ("input", x), ("gradient beside it", d_residual)];
        check_rows(precision, rows * columns, &all, statistics.len(), rows, gain_bias)?;
        d_y.check("gradient of a linear layer's output", precision, rows * depth)?;
        check_length("weight and bias", (columns + 1) * depth, weight_bias.floats().len())?;
        let needed = rows.div_ceil(TILE) * 3 * columns;
        check_length("workspace of a branch", needed, partials.len().min(needed))?;
        let right = weight_bias.address(precision, 0)?;
        let argument = Backward {
            maps: self.0.shape().maps(gpu, d_y.address(), right)?,
            d_x: d_x.address(),
            x: x.address(),
            statistics: statistics.address(),
            gain: gain_bias.address(),
            d_residual: d_residual.address(),
            partials: partials.address(),
            rows: rows as u32,
        };
        // SAFETY: as in `BranchEnd::forward`, for `Backward` and branch_backward.cu.
        unsafe { self.0.queue(gpu, &argument) }
    }

    /// What is left to do for the gradients of parameters, as of
    /// [`LayerNorm::backward_parameters`](crate::LayerNorm::backward_parameters).
    ///
    /// # Errors
    ///
    /// [`Error::Length`].
    pub fn parameters(
        &self,
        d_parameters: &ViewMut<'_, f32>,
        partials: &Buffer<f32>,
        adds: bool,
    ) -> Result<PendingSum, Error> {
        let TileShape { rows, columns, .. } = self.0.shape();
        norm_sums(d_parameters, partials, [rows, columns], adds)
    }
}

/// The last stage of the sums that clusters of 64 rows leave for the gradients of a LayerNorm's gain and bias, and
/// with C more in front also of the bias before it.
///
/// # Errors
///
/// [`Error::Length`].
pub(crate) fn norm_sums(
    d_parameters: &ViewMut<'_, f32>,
    partials: &Buffer<f32>,
    [rows, channels]: [usize; 2],
    adds: bool,
) -> Result<PendingSum, Error> {
    let found = d_parameters.len();
    if found != 2 * channels && found != 3 * channels {
        let what = "gradients of gain and bias".to_owned();
        return Err(Error::Length { what, expected: 2 * channels, found });
    }
    PendingSum::new(d_parameters, partials, (rows.div_ceil(TILE), 3 * channels), adds)
}

/// A product whose rows are a cluster's, if a device has it and it does not fill the device.
fn whole_rows(
    gpu: &Gpu,
    precision: Precision,
    size: [usize; 3],
    right_is_transposed: bool,
) -> Option<TileShape> {
    let shape = TileShape::of_rows(precision, size, right_is_transposed);
    let blocks = shape.rows.div_ceil(TILE) * (shape.columns / TILE);
    let leaves_room = blocks <= gpu.facts().multiprocessors as usize;
    (shape.is_possible(gpu) && leaves_room).then_some(shape)
}

fn check_rows(
    precision: Precision,
    length: usize,
    activations: &[(&'static str, &Activations)],
    statistics: usize,
    rows: usize,
    gain_bias: View<'_, f32>,
) -> Result<(), Error> {
    for (what, activations) in activations {
        activations.check(what, precision, length)?;
    }
    check_length("statistics", 2 * rows, statistics.min(2 * rows))?;
    check_length("gain and bias", 2 * length / rows.max(1), gain_bias.len())
}
