//! Products of tf32 whose factors both lie across their depth, as gradients of weights are, where that is faster than the
//! library's: it has no fast kernels for these. Launches `cuda/across.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use super::{Epilogue, Lane, Operands, ProductShape};
use crate::blas::Plan;
use crate::launch::{checked_blocks, launch_with_shared};
use crate::module::Kernel;
use crate::programs::network::across_program;
use crate::tiles::{Matrices, TensorMap};
use crate::{Error, Gpu, Precision};

/// Depth, and rows or columns, of a piece; bytes of it, and of the barriers of a place in the ring.
const PIECE: usize = 32;
const PIECE_BYTES: usize = PIECE * 128;
const BARRIER_BYTES: usize = 16;
/// Most places in the ring.
const STAGES_MAX: usize = 6;
/// Threads of a block: eight warps that compute, and a group of four that fetches.
const THREADS: u32 = 384;
/// What a multiprocessor multiplies and adds in a cycle, and bytes that it gets of the cache, as measured on an H200.
const PRODUCTS_A_CYCLE: usize = 420;
const BYTES_A_CYCLE: usize = 38;

/// How a block's outputs are cut: what a warp has, in tiles of 16 rows and of 8 columns, and how many warps share rows,
/// columns and depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcrossTiles {
    pub(crate) row_tiles: usize,
    pub(crate) column_tiles: usize,
    pub(crate) row_warps: usize,
    pub(crate) column_warps: usize,
    pub(crate) depth_warps: usize,
}

impl AcrossTiles {
    const fn new([row_tiles, column_tiles]: [usize; 2], warps: [usize; 3]) -> AcrossTiles {
        let [row_warps, column_warps, depth_warps] = warps;
        AcrossTiles { row_tiles, column_tiles, row_warps, column_warps, depth_warps }
    }

    /// Those worth having.
    pub(crate) const ALL: [AcrossTiles; 8] = [
        AcrossTiles::new([5, 8], [2, 2, 2]),
        AcrossTiles::new([4, 10], [2, 2, 2]),
        AcrossTiles::new([4, 8], [2, 2, 2]),
        AcrossTiles::new([5, 6], [2, 2, 2]),
        AcrossTiles::new([3, 10], [2, 4, 1]),
        AcrossTiles::new([5, 4], [1, 2, 4]),
        AcrossTiles::new([4, 5], [1, 2, 4]),
        AcrossTiles::new([4, 4], [1, 2, 4]),
    ];

    /// Rows and columns of a block.
    fn block(self) -> [usize; 2] {
        [16 * self.row_tiles * self.row_warps, 8 * self.column_tiles * self.column_warps]
    }

    fn stage_bytes(self) -> usize {
        self.block().map(|side| side.div_ceil(PIECE) * PIECE_BYTES).into_iter().sum()
    }

    /// Places in the ring: as many as a block has shared memory for.
    pub(crate) fn stages(self, shared_bytes_max: usize) -> usize {
        (shared_bytes_max / (self.stage_bytes() + BARRIER_BYTES)).min(STAGES_MAX)
    }

    /// Shared memory of a block.
    pub(crate) fn shared_bytes(self, shared_bytes_max: usize) -> usize {
        self.stages(shared_bytes_max) * (self.stage_bytes() + BARRIER_BYTES)
    }

    /// Blocks for all outputs of a shape.
    fn blocks(self, shape: &ProductShape) -> usize {
        let [rows, columns] = self.block();
        shape.m.div_ceil(rows) * shape.n.div_ceil(columns) * shape.count
    }

    /// About how long all blocks take for a piece of depth, in cycles.
    fn cycles(self, shape: &ProductShape, multiprocessors: usize) -> usize {
        let [rows, columns] = self.block();
        let products = rows * columns * PIECE / PRODUCTS_A_CYCLE;
        let turns = self.blocks(shape).div_ceil(multiprocessors);
        turns * products.max(self.stage_bytes() / BYTES_A_CYCLE)
    }
}

/// `Across` in `cuda/across.cu`.
#[repr(C)]
struct Argument {
    maps: [TensorMap; 2],
    out: u64,
    out_step: u64,
    out_row: u32,
    rows: u32,
    columns: u32,
    depth: u32,
    adds: u32,
    // What the alignment of the maps leaves empty.
    unused: [u32; 7],
}

/// A product by this kernel.
pub(super) struct Across {
    kernel: Kernel,
    shape: ProductShape,
    tiles: AcrossTiles,
    shared_bytes: u32,
}

impl Across {
    /// The product by this kernel, if a device has it and it is faster than the library's, or the library has none, or it
    /// `is_preferred`.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(super) fn choose(
        lane: &Lane,
        shape: &ProductShape,
        plan: Option<&Plan>,
        is_preferred: bool,
    ) -> Result<Option<Across>, Error> {
        let gpu = lane.gpu();
        if !Across::is_possible(gpu, shape) {
            return Ok(None);
        }
        // A compiler may be too old for the newest instructions, or a release have nothing of them.
        let Ok(across) = Across::new(gpu, shape) else { return Ok(None) };
        let is_chosen = super::is_chosen(lane, "across", shape, plan, is_preferred, |operands| {
            // SAFETY: the operands are scratch matrices of the shape's sizes.
            unsafe { across.queue(gpu, operands, false) }
        });
        Ok(is_chosen?.then_some(across))
    }

    fn is_possible(gpu: &Gpu, shape: &ProductShape) -> bool {
        let facts = gpu.facts();
        shape.precision == Precision::Tf32
            && facts.compute_capability == (9, 0)
            && shape.epilogue == Epilogue::None
            && shape.a.is_transposed
            && !shape.b.is_transposed
            && !shape.is_bf16_out
            && shape.alignment_bytes == 16
            && [shape.m, shape.n, shape.k, shape.out_row].iter().all(|&n| u32::try_from(n).is_ok())
    }

    fn new(gpu: &Gpu, shape: &ProductShape) -> Result<Across, Error> {
        let facts = gpu.facts();
        let multiprocessors = facts.multiprocessors as usize;
        let tiles = AcrossTiles::ALL
            .into_iter()
            .min_by_key(|tiles| tiles.cycles(shape, multiprocessors))
            .expect("there are some");
        let shared_bytes_max = facts.shared_bytes_of_block as usize;
        let kernel = gpu.module(&across_program(tiles, shared_bytes_max))?.kernel("across")?;
        let shared_bytes = tiles.shared_bytes(shared_bytes_max) as u32;
        kernel.allow_shared(gpu, shared_bytes)?;
        Ok(Across { kernel, shape: shape.clone(), tiles, shared_bytes })
    }

    /// Queues the product, which overwrites the output or adds to it.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// As of `Product::queue`.
    pub(super) unsafe fn queue(
        &self,
        gpu: &Gpu,
        operands: Operands,
        adds: bool,
    ) -> Result<(), Error> {
        let shape = &self.shape;
        let map = |address, columns, row, step: i64| {
            let rows = shape.k;
            // That of a single one is never taken.
            let step = if shape.count > 1 { step as usize } else { rows * row };
            let matrices = Matrices { count: shape.count, rows, columns, row, step };
            TensorMap::of_short_pieces(gpu, shape.precision, address, matrices)
        };
        let [out_step, a_step, b_step] = operands.steps;
        let argument = Argument {
            maps: [
                map(operands.a, shape.m, shape.a.row, a_step)?,
                map(operands.b, shape.n, shape.b.row, b_step)?,
            ],
            out: operands.out,
            out_step: out_step as u64,
            out_row: shape.out_row as u32,
            rows: shape.m as u32,
            columns: shape.n as u32,
            depth: shape.k as u32,
            adds: u32::from(adds),
            unused: [0; 7],
        };
        let blocks = checked_blocks(self.tiles.blocks(shape) as u64)?;
        let size = (blocks, THREADS, self.shared_bytes);
        // SAFETY: 1. `Argument` is laid out as `Across` in across.cu, compiled for these threads and this shared
        // memory. 2. and 3. The caller's duties.
        unsafe { launch_with_shared(gpu, &self.kernel, size, &argument) }
    }
}
