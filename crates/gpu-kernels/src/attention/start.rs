//! The beginning of attention's backward pass in one kernel: the gradient of the linear layer behind it, and what
//! [`Attention::backward`] would first find of each row. Launches `cuda/attention_start.cu`.
//!
//! There is such a kernel for heads as wide as a tile, windows that need no padding, and shapes whose tiles
//! leave multiprocessors idle, in bf16, on devices that have the instructions.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use super::{Attention, check_front};
use crate::buffer::check_length;
use crate::plan::Kernels;
use crate::programs::network::TileProgram;
use crate::tiles::{TILE, TensorMap, TileKernel, TileShape};
use crate::{Activations, Buffer, Error, Gpu, Weights};

/// The kernel for attention of one shape.
pub struct AttentionStart {
    kernel: TileKernel,
    heads: usize,
    time: usize,
}

/// What [`AttentionStart::queue`] reads.
#[derive(Clone, Copy, Debug)]
pub struct AttentionStartInputs<'a> {
    /// The gradient of the linear layer's output, `[B T, C]`.
    pub d_y: &'a Activations,
    /// The linear layer, of C by C.
    pub weight_bias: Weights<'a>,
    /// The output of attention, `[B T, C]`.
    pub out: &'a Activations,
    /// As the forward pass left them, `[B T, H, 2]`.
    pub statistics: &'a Buffer<f32>,
}

/// `Start` in `cuda/attention_start.cu`, with `AttentionRows` of `attention_pairs.cuh` in it.
#[repr(C)]
struct Argument {
    maps: [TensorMap; 2],
    d_out: u64,
    out: u64,
    statistics: u64,
    pairs: u64,
    // Four bytes, and as many that the alignment of `AttentionRows` leaves empty.
    time: u64,
    rows: u32,
}

impl AttentionStart {
    /// The kernel for a layer of C by C behind `attention`, if there is one.
    #[must_use]
    pub fn new(gpu: &Gpu, attention: &Attention) -> Option<AttentionStart> {
        let (shape, precision) = (attention.shape, attention.precision);
        let (rows, channels) = (shape.rows(), shape.channels());
        if !AttentionStart::is_wanted(attention) {
            return None;
        }
        let tiles = TileShape::of_whole_depth(precision, [rows, channels, channels]);
        let blocks = rows.div_ceil(TILE) * shape.heads;
        if blocks > gpu.facts().multiprocessors as usize || !tiles.is_possible(gpu) {
            return None;
        }
        let kernel = TileKernel::new(gpu, TileProgram::AttentionStart, tiles).ok()?;
        Some(AttentionStart { kernel, heads: shape.heads, time: shape.time })
    }

    /// Whether attention's backward pass can begin in the kernel before it, and wins by it.
    pub(crate) fn is_wanted(attention: &Attention) -> bool {
        let shape = attention.shape;
        let finds_pairs =
            matches!(attention.backward.kernels, Kernels::MatrixBackward | Kernels::RingBackward);
        let is_padded = shape.padded_time() != shape.time;
        // In f32 nothing was won by it.
        attention.precision.is_bf16() && finds_pairs && !is_padded && shape.head_size == TILE
    }

    /// Overwrites `d_out` `[B T, C]` with `d_y W^T`, and the front of `workspace` with what
    /// [`Attention::backward_started`] wants to find there.
    ///
    /// # Errors
    ///
    /// [`Error::OtherType`], [`Error::Length`], and what the driver refuses.
    pub fn queue(
        &self,
        gpu: &Gpu,
        d_out: &mut Activations,
        workspace: &mut Buffer<f32>,
        inputs: AttentionStartInputs<'_>,
    ) -> Result<(), Error> {
        let AttentionStartInputs { d_y, weight_bias, out, statistics } = inputs;
        let TileShape { rows, depth, columns, precision, .. } = self.kernel.shape();
        for (what, activations) in [
            ("the gradient of attention", &*d_out),
            ("gradient of a linear layer's output", d_y),
            ("the output of attention", out),
        ] {
            activations.check(what, precision, rows * columns)?;
        }
        check_length("weight and bias", (depth + 1) * columns, weight_bias.floats().len())?;
        check_front("the statistics of attention", statistics, 2 * rows * self.heads)?;
        check_front("the workspace of attention", workspace, 2 * rows * self.heads)?;
        let right = weight_bias.address(precision, 0)?;
        let argument = Argument {
            maps: self.kernel.shape().maps(gpu, d_y.address(), right)?,
            d_out: d_out.address(),
            out: out.address(),
            statistics: statistics.address(),
            pairs: workspace.address(),
            time: self.time as u64,
            rows: rows as u32,
        };
        // SAFETY: 1. `Argument` is laid out as `Start` in attention_start.cu, compiled for this shape. 2. All
        // are as long as was checked. 3. What is written was borrowed mutably.
        unsafe { self.kernel.queue(gpu, &argument) }
    }
}
