//! Products cut into tiles of 64 x 64, by kernels of our own for devices of compute capability 9.0: for layers of
//! few rows and columns, where a library's kernel spends more time on beginning and ending than on
//! the product. What becomes of a tile is another kernel's: see `cuda/tile.cuh`.

#![expect(unsafe_code, reason = "hands addresses to the driver and to kernels")]

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{
    self, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill as Beyond,
    CUtensorMapInterleave as Interleave, CUtensorMapL2promotion as Promotion,
    CUtensorMapSwizzle as Swizzle,
};

use crate::gpu::During;
use crate::launch::{checked_blocks, launch_with_shared};
use crate::module::Kernel;
use crate::programs::WARP_LANES;
use crate::programs::network::{TileProgram, tile_program};
use crate::{Error, Gpu, Precision};

/// Outputs along a side of a tile.
pub(crate) const TILE: usize = 64;
/// Rows of a tile that a warp has.
const WARP_ROWS: usize = 16;
/// Rows of a short piece.
const SHORT_ROWS: usize = 32;
/// Bytes of a row of a piece of a factor.
const PIECE_ROW_BYTES: usize = 128;
/// Bytes of a piece of both factors, and of the barriers beside it.
const STAGE_BYTES: usize = 2 * TILE * PIECE_ROW_BYTES + 16;
/// Bytes that may be lost to an address that is a multiple of 1024.
const ALIGNMENT_BYTES: usize = 1024;
/// Shared memory of a multiprocessor, and what each block takes of it besides its own.
const SHARED_BYTES_OF_ALL: usize = 228 * 1024;
const SHARED_BYTES_LOST: usize = 1024;
/// Most pieces that are on their way: as many as shared memory has room for.
const STAGES_MAX: usize = 12;
/// Most blocks of a row that can exchange: those of a cluster. One has nobody to tell.
const CLUSTER_MAX: usize = 8;

/// A product by tiles: `[rows, depth]` times `[depth, columns]`, or times the transpose of `[columns,
/// depth]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileShape {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
    pub(crate) right_is_transposed: bool,
    pub(crate) precision: Precision,
    /// Whether the blocks of a row tell each other what they found of it.
    pub(crate) exchanges: bool,
    /// Groups of four warps that take turns: 1 or 2.
    pub(crate) groups: usize,
    /// Most pieces that are on their way.
    pub(crate) stages_max: usize,
}

/// A loaded kernel of such a product.
pub(crate) struct TileKernel {
    kernel: Kernel,
    shape: TileShape,
}

/// What the copy engine knows of a matrix: `TensorMap` in `cuda/tile.cuh`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap(sys::CUtensorMap);

/// Matrices in memory: elements from the beginning of a row to the next, and of a matrix to the next.
#[derive(Clone, Copy)]
pub(crate) struct Matrices {
    pub(crate) count: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl Matrices {
    /// Of which one lies behind the other.
    pub(crate) fn dense([count, rows, columns]: [usize; 3]) -> Matrices {
        Matrices { count, rows, columns, row: columns, step: rows * columns }
    }
}

impl TileShape {
    /// A product of rows, depth and columns, whose rows are each a cluster's.
    pub(crate) fn of_rows(
        precision: Precision,
        [rows, depth, columns]: [usize; 3],
        right_is_transposed: bool,
    ) -> TileShape {
        let pieces = depth * precision.activation_bytes() / PIECE_ROW_BYTES;
        TileShape {
            rows,
            depth,
            columns,
            right_is_transposed,
            precision,
            exchanges: true,
            // As measured: two are faster with the gradients' longer ends and in tf32, one with the forward pass's in bf16.
            groups: if (right_is_transposed || !precision.is_bf16()) && pieces > 1 { 2 } else { 1 },
            stages_max: STAGES_MAX,
        }
    }

    /// A product with a transposed right factor, all of whose pieces may be on their way.
    pub(crate) fn of_whole_depth(precision: Precision, size: [usize; 3]) -> TileShape {
        TileShape { exchanges: false, ..TileShape::of_rows(precision, size, true) }
    }

    /// Whether a device has such products of these factors.
    pub(crate) fn is_possible(self, gpu: &Gpu) -> bool {
        let facts = gpu.facts();
        let tiles = self.columns / TILE;
        self.precision != Precision::Fp32
            && facts.compute_capability == (9, 0)
            && self.columns.is_multiple_of(TILE)
            && self.depth.is_multiple_of(self.piece_depth())
            && tiles > 0
            && (!self.exchanges || (2..=CLUSTER_MAX).contains(&tiles))
            && self.shared_bytes() <= facts.shared_bytes_of_block as usize
            && u32::try_from(self.rows).is_ok()
    }

    /// Whether there is a piece for each group.
    pub(crate) fn has_groups(self) -> bool {
        self.depth / self.piece_depth() >= self.groups
    }

    /// Depth of a piece.
    fn piece_depth(self) -> usize {
        PIECE_ROW_BYTES / self.precision.activation_bytes()
    }

    /// Pieces that are on their way at once.
    pub(crate) fn stages(self) -> usize {
        (self.depth / self.piece_depth()).clamp(1, self.stages_max)
    }

    /// Blocks that shall fit a multiprocessor: as many as its shared memory has room for.
    pub(crate) fn blocks_min(self) -> usize {
        (SHARED_BYTES_OF_ALL / (self.shared_bytes() + SHARED_BYTES_LOST)).clamp(1, 3)
    }

    /// Threads of a block: those that compute, and a warp that fetches.
    pub(crate) fn threads(self) -> u32 {
        WARP_LANES * (4 * self.groups as u32 + 1)
    }

    /// Shared memory of a block: the ring, what blocks of a cluster tell each other, and rows to be stored.
    pub(crate) fn shared_bytes(self) -> usize {
        let rows = TILE * (TILE * self.precision.activation_bytes() + 16);
        let exchange = if self.exchanges { self.columns * 8 + 16 } else { 0 };
        ALIGNMENT_BYTES + self.stages() * STAGE_BYTES + exchange + rows
    }

    /// The factors in memory, for the copy engine.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn maps(self, gpu: &Gpu, left: u64, right: u64) -> Result<[TensorMap; 2], Error> {
        let right_size = match self.right_is_transposed {
            true => [self.columns, self.depth],
            false => [self.depth, self.columns],
        };
        let map = |address, size| TensorMap::new(gpu, self.precision, address, size);
        let right = match self.precision.is_bf16() || self.right_is_transposed {
            true => map(right, right_size)?,
            false => TensorMap::of_low_pieces(gpu, self.precision, right, right_size)?,
        };
        Ok([map(left, [self.rows, self.depth])?, right])
    }
}

impl TileKernel {
    /// Compiles and loads a kernel for a shape.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        program: TileProgram,
        shape: TileShape,
    ) -> Result<TileKernel, Error> {
        let name = program.kernel();
        let kernel = gpu.module(&tile_program(program, shape))?.kernel(name)?;
        kernel.allow_shared(gpu, shape.shared_bytes() as u32)?;
        Ok(TileKernel { kernel, shape })
    }

    /// The shape.
    pub(crate) fn shape(&self) -> TileShape {
        self.shape
    }

    /// Queues it.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// As of `launch`.
    pub(crate) unsafe fn queue<A>(&self, gpu: &Gpu, argument: &A) -> Result<(), Error> {
        let tiles = self.shape.rows.div_ceil(TILE) * (self.shape.columns / TILE);
        let blocks = checked_blocks(tiles as u64)?;
        let size = (blocks, self.shape.threads(), self.shape.shared_bytes() as u32);
        // SAFETY: the caller's.
        unsafe { launch_with_shared(gpu, &self.kernel, size, argument) }
    }
}

impl TensorMap {
    /// A matrix `[rows, columns]` in pieces of 64 rows of 128 bytes, whose parts of 16 bytes are exchanged within
    /// eight rows.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        size: [usize; 2],
    ) -> Result<TensorMap, Error> {
        let [rows, columns] = size;
        TensorMap::of_pieces(gpu, precision, address, Matrices::dense([1, rows, columns]), 2, TILE)
    }

    /// Matrices after each other, `[count, rows, columns]`, in pieces of 64 rows of one of them.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn of_matrices(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        size: [usize; 3],
    ) -> Result<TensorMap, Error> {
        TensorMap::of_pieces(gpu, precision, address, Matrices::dense(size), 3, TILE)
    }

    /// Matrices at any distances in pieces of 64 rows.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn of_tall_pieces(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        matrices: Matrices,
    ) -> Result<TensorMap, Error> {
        TensorMap::of_pieces(gpu, precision, address, matrices, 3, TILE)
    }

    /// Matrices at any distances in pieces of 32 rows.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn of_short_pieces(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        matrices: Matrices,
    ) -> Result<TensorMap, Error> {
        TensorMap::of_pieces(gpu, precision, address, matrices, 3, SHORT_ROWS)
    }

    /// A matrix `[rows, columns]` in pieces of 32 rows.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    fn of_low_pieces(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        [rows, columns]: [usize; 2],
    ) -> Result<TensorMap, Error> {
        let matrices = Matrices::dense([1, rows, columns]);
        TensorMap::of_pieces(gpu, precision, address, matrices, 2, SHORT_ROWS)
    }

    /// The same in pieces of 16 rows, as a warp has them to write.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(crate) fn to_write(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        size: [usize; 2],
    ) -> Result<TensorMap, Error> {
        let [rows, columns] = size;
        let matrices = Matrices::dense([1, rows, columns]);
        TensorMap::of_pieces(gpu, precision, address, matrices, 2, WARP_ROWS)
    }

    fn of_pieces(
        gpu: &Gpu,
        precision: Precision,
        address: u64,
        matrices: Matrices,
        dimensions: u32,
        piece_rows: usize,
    ) -> Result<TensorMap, Error> {
        let Matrices { count, rows, columns, row, step } = matrices;
        let operation = || format!("describing a matrix of {rows} x {columns} to the copy engine");
        gpu.bind(operation)?;
        let bytes = precision.activation_bytes();
        // Rounded to nearest on the way where products round.
        let kind = match precision {
            Precision::Fp32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Precision::Tf32 => DataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
            Precision::Bf16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let size = [columns as u64, rows as u64, count as u64];
        let strides = [row, step].map(|elements| (elements * bytes) as u64);
        let piece = [(PIECE_ROW_BYTES / bytes) as u32, piece_rows as u32, 1];
        let steps = [1; 3];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have at least as many numbers as there are dimensions, strides one less; the
        // driver looks at the address but not behind it.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                kind,
                dimensions,
                ptr::with_exposed_provenance_mut::<c_void>(address as usize),
                size.as_ptr(),
                strides.as_ptr(),
                piece.as_ptr(),
                steps.as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Beyond::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result().during(operation)?;
        Ok(TensorMap(map))
    }
}
