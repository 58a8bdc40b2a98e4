//! Everything between the attention of one block and that of the next in one kernel, where a cluster of blocks keeps 64
//! rows to itself: the end of the attention branch, the feed-forward branch, and the first layer of the next
//! block; and the same on the way back. Launches `cuda/chain_forward.cu` and `cuda/chain_backward.cu`.
//!
//! There are such kernels in bf16 for models of up to 448 channels (320 backward from a next block) and for so few rows that
//! they leave multiprocessors idle, on devices that have the instructions; all others take one operation after
//! the other.

mod backward;
mod forward;

pub use backward::{
    BackwardChain, BackwardChainInputs, BackwardChainOutputs, NextBlock, NormGradient,
};
pub use forward::{ForwardChain, ForwardChainInputs, ForwardChainOutputs, NormedSum};

use crate::module::Kernel;
use crate::programs::WARP_LANES;
use crate::programs::network::chain_program;
use crate::tiles::{TILE, TensorMap};
use crate::{Activations, Error, Gpu, Precision, Weights};

/// Bytes of a piece, 64 rows of 64 columns of bf16, and of a barrier.
const PIECE_BYTES: usize = TILE * TILE * 2;
const BARRIER_BYTES: usize = 8;
/// Most pieces that are on their way.
const STAGES_MAX: usize = 13;
/// Hidden columns for one of the residual stream.
const WIDTH: usize = 4;
/// Groups of four warps that compute; one more warp fetches.
pub(crate) const GROUPS: usize = 2;
const WARPS_OF_GROUP: usize = 4;
/// Most shared memory of a block on devices of compute capability 9.0.
const SHARED_BYTES_MAX: usize = 227 * 1024;

/// Which way a chain goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainDirection {
    Forward,
    Backward,
}

/// A chain of products over rows of `channels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainShape {
    pub(crate) rows: usize,
    pub(crate) channels: usize,
    pub(crate) direction: ChainDirection,
    /// Whether there is a block behind the one whose feed-forward branch this is.
    pub(crate) is_linked: bool,
}

impl ChainShape {
    /// Blocks of a cluster.
    fn blocks(self) -> usize {
        self.channels / TILE
    }

    /// Pieces of the depth of the first product: of attention's output, or of the gradient of the next block's qkv.
    pub(crate) fn first_pieces(self) -> usize {
        match (self.direction, self.is_linked) {
            (ChainDirection::Forward, _) => self.blocks(),
            (ChainDirection::Backward, true) => 3 * self.blocks(),
            (ChainDirection::Backward, false) => 0,
        }
    }

    /// Columns of the last product for one of the residual stream: of the next block's qkv, or of the gradient of
    /// attention's output.
    pub(crate) fn last_tiles(self) -> usize {
        match (self.direction, self.is_linked) {
            (ChainDirection::Forward, true) => 3,
            (ChainDirection::Forward, false) => 0,
            (ChainDirection::Backward, _) => 1,
        }
    }

    /// Pieces that are on their way at once: as many as shared memory has room for beside the rest.
    pub(crate) fn stages(self) -> usize {
        let room = SHARED_BYTES_MAX.saturating_sub(self.shared_bytes_beside());
        (room / (PIECE_BYTES + 2 * BARRIER_BYTES)).min(STAGES_MAX)
    }

    /// Shared memory of a block.
    pub(crate) fn shared_bytes(self) -> usize {
        self.shared_bytes_beside() + self.stages() * (PIECE_BYTES + 2 * BARRIER_BYTES)
    }

    /// Places of pieces beside those on their way: rows, hidden columns, parts, and rows that are turned.
    fn places(self) -> usize {
        let blocks = self.blocks();
        // Parts are twice as large as pieces, and some of them lie where rows were.
        let parts = blocks.saturating_sub(1 + blocks / 2) * 2;
        blocks + WIDTH + parts + GROUPS
    }

    /// Shared memory of a block beside the pieces on their way, as listed in `cuda/chain.cuh`.
    fn shared_bytes_beside(self) -> usize {
        let blocks = self.blocks();
        let (pairs, barriers) = (blocks * TILE * 8, (WIDTH + 3 * blocks + 2) * BARRIER_BYTES);
        self.places() * PIECE_BYTES + pairs + barriers + blocks * 4
    }

    /// Whether a device has such a chain and it does not fill the device.
    fn is_possible(self, gpu: &Gpu, precision: Precision) -> bool {
        let facts = gpu.facts();
        let blocks = self.blocks();
        precision.is_bf16()
            && facts.compute_capability == (9, 0)
            && self.channels.is_multiple_of(TILE)
            && blocks > 1
            && self.stages() > blocks.max(WIDTH)
            && self.first_pieces() <= self.places()
            && self.shared_bytes() <= facts.shared_bytes_of_block as usize
            && self.rows.div_ceil(TILE) * blocks <= facts.multiprocessors as usize
    }

    fn threads() -> u32 {
        WARP_LANES * (GROUPS * WARPS_OF_GROUP + 1) as u32
    }
}

/// A loaded kernel of a chain.
struct ChainKernel {
    kernel: Kernel,
    shape: ChainShape,
}

impl ChainKernel {
    /// Compiles and loads a kernel, if there is one for the shape.
    fn new(gpu: &Gpu, precision: Precision, shape: ChainShape) -> Option<ChainKernel> {
        if !shape.is_possible(gpu, precision) {
            return None;
        }
        let name = match shape.direction {
            ChainDirection::Forward => "chain_forward",
            ChainDirection::Backward => "chain_backward",
        };
        let kernel = gpu.module(&chain_program(shape)).ok()?.kernel(name).ok()?;
        kernel.allow_shared(gpu, shape.shared_bytes() as u32).ok()?;
        Some(ChainKernel { kernel, shape })
    }

    /// Queues it.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// As of `launch`; and the operation before it on the stream does not write the weights.
    #[expect(unsafe_code, reason = "launches a kernel over addresses")]
    unsafe fn queue<A>(&self, gpu: &Gpu, argument: &A) -> Result<(), Error> {
        use crate::launch::{checked_blocks, launch_early};
        let blocks = self.shape.rows.div_ceil(TILE) * self.shape.blocks();
        let blocks = checked_blocks(blocks as u64)?;
        let size = (blocks, ChainShape::threads(), self.shape.shared_bytes() as u32);
        // SAFETY: the caller's; 4. before `launch_wait` a kernel reads weights only, which its caller promises.
        unsafe { launch_early(gpu, &self.kernel, size, argument) }
    }

    /// A matrix of activations that has `width` columns for one of the residual stream, for the copy engine.
    fn rows_map(&self, gpu: &Gpu, matrix: &Activations, width: usize) -> Result<TensorMap, Error> {
        let size = [self.shape.rows, width * self.shape.channels];
        matrix.check("activations of a chain", Precision::Bf16, size[0] * size[1])?;
        TensorMap::new(gpu, Precision::Bf16, matrix.address(), size)
    }

    /// The same of one that is written.
    fn written_map(
        &self,
        gpu: &Gpu,
        matrix: &Activations,
        width: usize,
    ) -> Result<TensorMap, Error> {
        let size = [self.shape.rows, width * self.shape.channels];
        matrix.check("activations of a chain", Precision::Bf16, size[0] * size[1])?;
        TensorMap::to_write(gpu, Precision::Bf16, matrix.address(), size)
    }

    /// The weight of a layer that has so many inputs and outputs for one column of the residual stream.
    fn weight_map(
        &self,
        gpu: &Gpu,
        weights: Weights<'_>,
        [inputs, outputs]: [usize; 2],
    ) -> Result<TensorMap, Error> {
        let channels = self.shape.channels;
        let size = [inputs * channels, outputs * channels];
        let length = (size[0] + 1) * size[1];
        crate::buffer::check_length("weight and bias", length, weights.floats().len())?;
        TensorMap::new(gpu, Precision::Bf16, weights.address(Precision::Bf16, 0)?, size)
    }

    /// Activations that have `width` columns for one of the residual stream.
    fn check_rows(&self, all: &[(&Activations, usize)]) -> Result<(), Error> {
        let length = self.shape.rows * self.shape.channels;
        all.iter().try_for_each(|(activations, width)| {
            activations.check("activations of a chain", Precision::Bf16, width * length)
        })
    }
}

/// Refuses statistics of fewer than `rows` rows, or gains and biases of other than `channels`.
fn check_norm(
    shape: ChainShape,
    statistics: usize,
    gain_bias: crate::View<'_, f32>,
) -> Result<(), Error> {
    let ChainShape { rows, channels, .. } = shape;
    crate::buffer::check_length("statistics", 2 * rows, statistics.min(2 * rows))?;
    crate::buffer::check_length("gain and bias", 2 * channels, gain_bias.len())
}
