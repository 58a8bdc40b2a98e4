//! The chain backward. Launches `cuda/chain_backward.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use super::{ChainDirection, ChainKernel, ChainShape, WIDTH, check_norm};
use crate::attention::{Attention, AttentionStart};
use crate::branch::norm_sums;
use crate::buffer::check_length;
use crate::columns::PendingSum;
use crate::tiles::{TILE, TensorMap};
use crate::{Activations, Buffer, Error, Gpu, View, ViewMut, Weights};

/// From the gradient of the next block's qkv, or behind the last block from that of the residual stream, to the gradient
/// of attention's output and what [`Attention::backward_started`] wants to find:
///
/// ```text
/// d_x1 = gradient of norm, of d_qkv W^T, + d_residual
/// d_z = (d_x1 W^T) gelu'(z)
/// d_x2 = gradient of norm, of d_z W^T, + d_x1
/// d_attention = d_x2 W^T
/// ```
pub struct BackwardChain {
    kernel: ChainKernel,
    time: usize,
}

/// What is written at the beginning of a branch.
#[derive(Debug)]
pub struct NormGradient<'a> {
    /// The gradient of the LayerNorm's input, that of the residual stream before the branch, `[rows, C]`.
    pub d_x: &'a mut Activations,
    /// Runs whose sums [`BackwardChain::parameters`] stores.
    pub partials: &'a mut Buffer<f32>,
}

/// What [`BackwardChain::queue`] writes.
#[derive(Debug)]
pub struct BackwardChainOutputs<'a> {
    /// The beginning of the next block, if there is one.
    pub next: Option<NormGradient<'a>>,
    /// The gradient of z, `[rows, 4 C]`.
    pub d_wide: &'a mut Activations,
    /// The beginning of the feed-forward branch.
    pub mlp: NormGradient<'a>,
    /// The gradient of attention's output, `[rows, C]`.
    pub d_attention: &'a mut Activations,
    /// The workspace of attention.
    pub workspace: &'a mut Buffer<f32>,
}

/// What is read for the beginning of the next block.
#[derive(Clone, Copy, Debug)]
pub struct NextBlock<'a> {
    /// The gradient of its qkv, `[rows, 3 C]`.
    pub d_qkv: &'a Activations,
    /// Its first layer.
    pub qkv: Weights<'a>,
    /// The input of its first LayerNorm, `[rows, C]`.
    pub x: &'a Activations,
    /// Mean and 1 / deviation of each of its rows.
    pub statistics: &'a Buffer<f32>,
    /// Gain and bias of it.
    pub norm: View<'a, f32>,
}

/// What [`BackwardChain::queue`] reads.
#[derive(Clone, Copy, Debug)]
pub struct BackwardChainInputs<'a> {
    /// The next block, if there is one.
    pub next: Option<NextBlock<'a>>,
    /// The gradient of the residual stream behind the next block's attention, or behind this block if it is the
    /// last, `[rows, C]`.
    pub d_residual: &'a Activations,
    /// The last layer of the feed-forward branch.
    pub down: Weights<'a>,
    /// z, `[rows, 4 C]`.
    pub wide: &'a Activations,
    /// The first layer of the feed-forward branch.
    pub up: Weights<'a>,
    /// The input of the LayerNorm before it, `[rows, C]`.
    pub x: &'a Activations,
    /// Mean and 1 / deviation of each of its rows.
    pub statistics: &'a Buffer<f32>,
    /// Gain and bias of it.
    pub mlp_norm: View<'a, f32>,
    /// The layer behind attention.
    pub projection: Weights<'a>,
    /// The output of attention, `[rows, C]`.
    pub attention_out: &'a Activations,
    /// As attention's forward pass left them.
    pub attention_statistics: &'a Buffer<f32>,
}

/// `Start` in `cuda/chain_backward.cu`.
#[repr(C)]
#[derive(Default)]
struct Start {
    x: u64,
    statistics: u64,
    gain: u64,
    partials: u64,
}

/// `Backward` in `cuda/chain_backward.cu`, with `AttentionRows` of `attention_pairs.cuh` in it.
#[repr(C)]
struct Argument {
    factors: [TensorMap; 5],
    // d_z, d_x2, d_attention.
    written: [TensorMap; 3],
    starts: [Start; 2],
    d_x1: u64,
    d_residual: u64,
    z: u64,
    attention_out: u64,
    attention_statistics: u64,
    pairs: u64,
    time: u64,
    rows: u32,
}

impl BackwardChain {
    /// The kernel for the rows of `attention`, if there is one; `is_linked` if there is a next block.
    #[must_use]
    pub fn new(gpu: &Gpu, attention: &Attention, is_linked: bool) -> Option<BackwardChain> {
        let shape = attention.shape();
        if !AttentionStart::is_wanted(attention) {
            return None;
        }
        let (rows, channels) = (shape.rows(), shape.channels());
        let direction = ChainDirection::Backward;
        let chain = ChainShape { rows, channels, direction, is_linked };
        let kernel = ChainKernel::new(gpu, attention.precision(), chain)?;
        Some(BackwardChain { kernel, time: shape.time })
    }

    /// Elements of the partials of one LayerNorm of rows of `channels`.
    #[must_use]
    pub fn partials_length([rows, channels]: [usize; 2]) -> usize {
        rows.div_ceil(TILE) * 3 * channels
    }

    /// Overwrites everything in `outputs`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    ///
    /// # Panics
    ///
    /// Unless there is a next block exactly if the chain is linked.
    pub fn queue(
        &self,
        gpu: &Gpu,
        outputs: BackwardChainOutputs<'_>,
        inputs: BackwardChainInputs<'_>,
    ) -> Result<(), Error> {
        let kernel = &self.kernel;
        let ChainShape { rows, channels, is_linked, .. } = kernel.shape;
        let BackwardChainOutputs { next, d_wide, mlp, d_attention, workspace } = outputs;
        let BackwardChainInputs { d_residual, down, wide, up, x, projection, .. } = inputs;
        assert!(next.is_some() == is_linked && inputs.next.is_some() == is_linked, "a next block");
        kernel.check_rows(&[(wide, WIDTH), (d_residual, 1), (inputs.attention_out, 1)])?;
        let numbers = 2 * rows * (channels / TILE);
        let statistics = inputs.attention_statistics.len();
        check_length("the statistics of attention", numbers, statistics.min(numbers))?;
        check_length("the workspace of attention", numbers, workspace.len().min(numbers))?;
        let written = [
            kernel.written_map(gpu, d_wide, WIDTH)?,
            kernel.written_map(gpu, mlp.d_x, 1)?,
            kernel.written_map(gpu, d_attention, 1)?,
        ];
        let (left, first, start, d_x1) = match (inputs.next, next) {
            (Some(next), Some(outputs)) => (
                kernel.rows_map(gpu, next.d_qkv, 3)?,
                kernel.weight_map(gpu, next.qkv, [1, 3])?,
                self.start(outputs.partials, next.x, next.statistics, next.norm)?,
                {
                    kernel.check_rows(&[(&*outputs.d_x, 1)])?;
                    outputs.d_x.address()
                },
            ),
            // Nobody looks at the first factor.
            _ => (
                kernel.rows_map(gpu, d_residual, 1)?,
                kernel.weight_map(gpu, projection, [1, 1])?,
                Start::default(),
                0,
            ),
        };
        let argument = Argument {
            factors: [
                left,
                first,
                kernel.weight_map(gpu, down, [WIDTH, 1])?,
                kernel.weight_map(gpu, up, [1, WIDTH])?,
                kernel.weight_map(gpu, projection, [1, 1])?,
            ],
            written,
            starts: [start, self.start(mlp.partials, x, inputs.statistics, inputs.mlp_norm)?],
            d_x1,
            d_residual: d_residual.address(),
            z: wide.address(),
            attention_out: inputs.attention_out.address(),
            attention_statistics: inputs.attention_statistics.address(),
            pairs: workspace.address(),
            time: self.time as u64,
            rows: rows as u32,
        };
        // SAFETY: 1. `Argument` is laid out as `Backward` in chain_backward.cu, compiled for this shape; its
        // u32 time is the front of eight bytes. 2. All are as long as was checked. 3. What is written was
        // borrowed mutably.
        unsafe { kernel.queue(gpu, &argument) }
    }

    fn start(
        &self,
        partials: &Buffer<f32>,
        x: &Activations,
        statistics: &Buffer<f32>,
        norm: View<'_, f32>,
    ) -> Result<Start, Error> {
        let ChainShape { rows, channels, .. } = self.kernel.shape;
        self.kernel.check_rows(&[(x, 1)])?;
        check_norm(self.kernel.shape, statistics.len(), norm)?;
        let needed = Self::partials_length([rows, channels]);
        check_length("partial sums of a branch", needed, partials.len().min(needed))?;
        Ok(Start {
            x: x.address(),
            statistics: statistics.address(),
            gain: norm.address(),
            partials: partials.address(),
        })
    }

    /// What is left to do for the gradients of a LayerNorm's parameters, as of
    /// [`BranchStart::parameters`](crate::BranchStart::parameters).
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
        let ChainShape { rows, channels, .. } = self.kernel.shape;
        norm_sums(d_parameters, partials, [rows, channels], adds)
    }
}
