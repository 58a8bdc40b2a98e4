//! The chain forward. Launches `cuda/chain_forward.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use super::{ChainDirection, ChainKernel, ChainShape, WIDTH, check_norm};
use crate::buffer::check_length;
use crate::tiles::TensorMap;
use crate::{Activations, Buffer, Error, Gpu, Precision, View, Weights};

/// From attention's output to the next block's qkv, or behind the last block to the final LayerNorm:
///
/// ```text
/// x1 = residual + left W + b           normed1 = norm(x1)
/// z = normed1 W + b                    hidden = gelu(z)
/// x2 = x1 + hidden W + b               normed2 = norm(x2)
/// qkv = normed2 W + b
/// ```
pub struct ForwardChain(ChainKernel);

/// A residual sum and its LayerNorm.
#[derive(Debug)]
pub struct NormedSum<'a> {
    /// The residual sum, `[rows, C]`.
    pub x: &'a mut Activations,
    /// The output of the LayerNorm, `[rows, C]`.
    pub out: &'a mut Activations,
    /// Mean and 1 / deviation of each row of x, `[rows, 2]`.
    pub statistics: &'a mut Buffer<f32>,
}

/// What [`ForwardChain::queue`] writes.
#[derive(Debug)]
pub struct ForwardChainOutputs<'a> {
    /// The end of the attention branch.
    pub attention_end: NormedSum<'a>,
    /// z, `[rows, 4 C]`.
    pub wide: &'a mut Activations,
    /// GELU of z, before that is rounded.
    pub activated: &'a mut Activations,
    /// The end of the feed-forward branch.
    pub mlp_end: NormedSum<'a>,
    /// `[rows, 3 C]`, of the next block if there is one.
    pub qkv: Option<&'a mut Activations>,
}

/// What [`ForwardChain::queue`] reads.
#[derive(Clone, Copy, Debug)]
pub struct ForwardChainInputs<'a> {
    /// The output of attention, `[rows, C]`.
    pub left: &'a Activations,
    /// The residual stream before attention, `[rows, C]`.
    pub residual: &'a Activations,
    /// The layer behind attention.
    pub projection: Weights<'a>,
    /// Gain and bias of the LayerNorm before the feed-forward branch.
    pub mlp_norm: View<'a, f32>,
    /// The first layer of the feed-forward branch.
    pub up: Weights<'a>,
    /// Its last one.
    pub down: Weights<'a>,
    /// Gain and bias of the LayerNorm behind it.
    pub next_norm: View<'a, f32>,
    /// The first layer of the next block, if there is one.
    pub qkv: Option<Weights<'a>>,
}

/// `End` in `cuda/chain_forward.cu`.
#[repr(C)]
struct End {
    layer_bias: u64,
    gain_bias: u64,
    statistics: u64,
}

/// `Forward` in `cuda/chain_forward.cu`.
#[repr(C)]
struct Argument {
    factors: [TensorMap; 5],
    // Both normed, x2, z, hidden, qkv.
    written: [TensorMap; 6],
    ends: [End; 2],
    x1: u64,
    residual: u64,
    up_bias: u64,
    last_bias: u64,
    rows: u32,
}

impl ForwardChain {
    /// The kernel for rows of `channels`, if there is one; `is_linked` if there is a next block.
    #[must_use]
    pub fn new(
        gpu: &Gpu,
        precision: Precision,
        [rows, channels]: [usize; 2],
        is_linked: bool,
    ) -> Option<ForwardChain> {
        let shape = ChainShape { rows, channels, direction: ChainDirection::Forward, is_linked };
        ChainKernel::new(gpu, precision, shape).map(ForwardChain)
    }

    /// Overwrites everything in `outputs`; none of it may be read by somebody else meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    ///
    /// # Panics
    ///
    /// Unless there are qkv and its layer exactly if the chain is linked.
    pub fn queue(
        &self,
        gpu: &Gpu,
        outputs: ForwardChainOutputs<'_>,
        inputs: ForwardChainInputs<'_>,
    ) -> Result<(), Error> {
        let kernel = &self.0;
        let ChainShape { rows, channels, is_linked, .. } = kernel.shape;
        let ForwardChainOutputs { attention_end, wide, activated, mlp_end, qkv } = outputs;
        let ForwardChainInputs { left, residual, projection, up, down, .. } = inputs;
        assert!(qkv.is_some() == is_linked && inputs.qkv.is_some() == is_linked, "a next block");
        kernel.check_rows(&[(residual, 1), (&*attention_end.x, 1)])?;
        // Without a next block nobody looks at the last factor.
        let last = match inputs.qkv {
            Some(qkv) => {
                let bias = qkv.address(Precision::Bf16, 3 * channels * channels)?;
                (kernel.weight_map(gpu, qkv, [1, 3])?, bias)
            }
            None => (kernel.weight_map(gpu, projection, [1, 1])?, 0),
        };
        let written = [
            kernel.written_map(gpu, attention_end.out, 1)?,
            kernel.written_map(gpu, mlp_end.out, 1)?,
            kernel.written_map(gpu, mlp_end.x, 1)?,
            kernel.written_map(gpu, wide, WIDTH)?,
            kernel.written_map(gpu, activated, WIDTH)?,
            match qkv {
                Some(qkv) => kernel.written_map(gpu, qkv, 3)?,
                None => kernel.written_map(gpu, mlp_end.x, 1)?,
            },
        ];
        let argument = Argument {
            factors: [
                kernel.rows_map(gpu, left, 1)?,
                kernel.weight_map(gpu, projection, [1, 1])?,
                kernel.weight_map(gpu, up, [1, WIDTH])?,
                kernel.weight_map(gpu, down, [WIDTH, 1])?,
                last.0,
            ],
            written,
            ends: [
                self.end(attention_end.statistics, projection, 1, inputs.mlp_norm)?,
                self.end(mlp_end.statistics, down, WIDTH, inputs.next_norm)?,
            ],
            x1: attention_end.x.address(),
            residual: residual.address(),
            up_bias: up.address(Precision::Bf16, WIDTH * channels * channels)?,
            last_bias: last.1,
            rows: rows as u32,
        };
        // SAFETY: 1. `Argument` is laid out as `Forward` in chain_forward.cu, compiled for this shape. 2. All
        // are as long as was checked. 3. What is written was borrowed mutably.
        unsafe { kernel.queue(gpu, &argument) }
    }

    /// The end of a branch whose last layer has so many inputs for one column.
    fn end(
        &self,
        statistics: &Buffer<f32>,
        layer: Weights<'_>,
        inputs: usize,
        gain_bias: View<'_, f32>,
    ) -> Result<End, Error> {
        let ChainShape { channels, .. } = self.0.shape;
        check_norm(self.0.shape, statistics.len(), gain_bias)?;
        let weight = inputs * channels * channels;
        check_length("weight and bias", weight + channels, layer.floats().len())?;
        Ok(End {
            layer_bias: layer.address(Precision::Bf16, weight)?,
            gain_bias: gain_bias.address(),
            statistics: statistics.address(),
        })
    }
}
