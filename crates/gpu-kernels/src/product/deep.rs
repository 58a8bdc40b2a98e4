//! Products of tf32 of few outputs and much depth whose right factor lies across it, as the gradient of the head's input
//! is, where that is faster than the library's. Launches `cuda/deep.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use super::{Epilogue, Lane, Operands, ProductShape};
use crate::blas::{Plan, WORKSPACE_BYTES};
use crate::depth_tiles::{LEFT_TILE, RIGHT_TILE, shared_bytes};
use crate::launch::{blocks_of, checked_blocks, launch, launch_with_shared};
use crate::module::Kernel;
use crate::programs::network::deep_program;
use crate::tiles::{Matrices, TensorMap};
use crate::{Buffer, Error, Gpu, Precision};

/// Least depth for which sums of parts are worth adding up.
const DEPTH_MIN: usize = 1024;
/// Most parts.
const SPLITS_MAX: usize = 16;
/// Threads of a block of `deep`, and of `deep_sum`.
const THREADS: u32 = 512;
pub(crate) const SUM_THREADS: u32 = 128;

/// `Deep` in `cuda/deep.cu`.
#[repr(C)]
struct Argument {
    maps: [TensorMap; 2],
    partials: u64,
    out: u64,
    rows: u32,
    columns: u32,
    depth: u32,
    out_row: u32,
    // What the alignment of the maps leaves empty.
    unused: [u32; 8],
}

/// A product by these kernels.
pub(super) struct Deep {
    kernels: [Kernel; 2],
    shape: ProductShape,
    splits: usize,
    partials: Buffer<f32>,
}

impl Deep {
    /// The product by these kernels, if a device has them and they are faster than the library's, or the library has none, or
    /// they are `is_preferred`.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(super) fn choose(
        lane: &Lane,
        shape: &ProductShape,
        plan: Option<&Plan>,
        is_preferred: bool,
    ) -> Result<Option<Deep>, Error> {
        let gpu = lane.gpu();
        if !Deep::is_possible(gpu, shape) {
            return Ok(None);
        }
        // A compiler may be too old for the newest instructions, or a release have nothing of them.
        let Ok(deep) = Deep::new(gpu, shape) else { return Ok(None) };
        let is_chosen = super::is_chosen(lane, "deep", shape, plan, is_preferred, |operands| {
            // SAFETY: the operands are scratch matrices of the shape's sizes.
            unsafe { deep.queue(gpu, operands) }
        });
        Ok(is_chosen?.then_some(deep))
    }

    fn is_possible(gpu: &Gpu, shape: &ProductShape) -> bool {
        let facts = gpu.facts();
        let &ProductShape { m: rows, n: columns, k: depth, a, b, .. } = shape;
        shape.precision == Precision::Tf32
            && facts.compute_capability == (9, 0)
            && shared_bytes(Precision::Tf32) <= facts.shared_bytes_of_block as usize
            && shape.epilogue == Epilogue::None
            && !a.is_transposed
            && !b.is_transposed
            && shape.count == 1
            && shape.alignment_bytes == 16
            && columns.is_multiple_of(8)
            && depth >= DEPTH_MIN
            && tiles(shape) <= facts.multiprocessors as usize
            && SPLITS_MAX * rows * columns * 4 <= WORKSPACE_BYTES
            && [rows, columns, depth, shape.out_row].iter().all(|&n| u32::try_from(n).is_ok())
    }

    fn new(gpu: &Gpu, shape: &ProductShape) -> Result<Deep, Error> {
        let splits = (gpu.facts().multiprocessors as usize / tiles(shape)).clamp(1, SPLITS_MAX);
        let module = gpu.module(&deep_program(splits))?;
        let kernels = [module.kernel("deep")?, module.kernel("deep_sum")?];
        kernels[0].allow_shared(gpu, shared_bytes(Precision::Tf32) as u32)?;
        let partials = gpu.zeros(splits * shape.m * shape.n)?;
        Ok(Deep { kernels, shape: shape.clone(), splits, partials })
    }

    /// Queues the product.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// As of `Product::queue`.
    pub(super) unsafe fn queue(&self, gpu: &Gpu, operands: Operands) -> Result<(), Error> {
        let &ProductShape { m: rows, n: columns, k: depth, precision, out_row, .. } = &self.shape;
        let matrix =
            |rows, columns, row| Matrices { count: 1, rows, columns, row, step: rows * row };
        let (a, b) =
            (matrix(rows, depth, self.shape.a.row), matrix(depth, columns, self.shape.b.row));
        let argument = Argument {
            maps: [
                TensorMap::of_tall_pieces(gpu, precision, operands.a, a)?,
                TensorMap::of_short_pieces(gpu, precision, operands.b, b)?,
            ],
            partials: self.partials.address(),
            out: operands.out,
            rows: rows as u32,
            columns: columns as u32,
            depth: depth as u32,
            out_row: out_row as u32,
            unused: [0; 8],
        };
        let [kernel, sum] = &self.kernels;
        let blocks = checked_blocks((tiles(&self.shape) * self.splits) as u64)?;
        let size = (blocks, THREADS, shared_bytes(precision) as u32);
        // SAFETY: 1. `Argument` is laid out as `Deep` in deep.cu, compiled for these threads and this shared memory.
        // 2. and 3. The caller's duties; the partial sums are this product's own, and one stream's.
        unsafe { launch_with_shared(gpu, kernel, size, &argument)? };
        let blocks = blocks_of((rows * columns / 4) as u64, u64::from(SUM_THREADS))?;
        // SAFETY: as above.
        unsafe { launch(gpu, sum, blocks, SUM_THREADS, &argument) }
    }
}

/// Tiles of the outputs.
fn tiles(shape: &ProductShape) -> usize {
    shape.m.div_ceil(LEFT_TILE) * shape.n.div_ceil(RIGHT_TILE)
}
