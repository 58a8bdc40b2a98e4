//! Products over the rows of two activations by a kernel of our own: the gradients of several layers' weights in one
//! launch, of as many blocks as find room beside a chain. Launches `cuda/depth_tiles.cu`, in tf32 `cuda/depth_wide.cu`.
//!
//! There are such kernels for layers of whole tiles, on devices that have the instructions.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::buffer::Held;
use crate::launch::{checked_blocks, launch_with_shared};
use crate::module::Kernel;
use crate::programs::WARP_LANES;
use crate::programs::network::depth_program;
use crate::tiles::{Matrices, TILE, TensorMap};
use crate::{Error, Gpu, Precision};

/// Products of a launch, at most.
pub(crate) const PRODUCTS_MAX: usize = 4;
/// Pieces of 64 rows that are on their way.
pub(crate) const STAGES: usize = 4;
/// Pieces of 32 rows of a right factor in tf32 that are on their way to be turned.
pub(crate) const RAW_STAGES: usize = 2;
/// Groups of four warps that compute, each 64 columns of the left factor; one more warp fetches, or a group that turns too.
const GROUPS: usize = 3;
/// Outputs of a block.
pub(crate) const LEFT_TILE: usize = GROUPS * TILE;
pub(crate) const RIGHT_TILE: usize = 160;

/// Shared memory of a block: in bf16 the ring, ones, barriers, and what is lost to an address that is a multiple of 1024; in
/// tf32 the rings and barriers.
pub(crate) const fn shared_bytes(precision: Precision) -> usize {
    if precision.is_bf16() {
        const PIECE_BYTES: usize = TILE * TILE * 2;
        let pieces = GROUPS + RIGHT_TILE.div_ceil(TILE);
        return STAGES * (pieces * PIECE_BYTES + 16) + 2 * 1024;
    }
    const COLUMN_BYTES: usize = 32 * 4;
    STAGES * ((LEFT_TILE + RIGHT_TILE) * COLUMN_BYTES + 24)
        + RAW_STAGES * (RIGHT_TILE * COLUMN_BYTES + 8)
}

/// A loaded kernel for such products.
pub struct DepthTiles {
    kernel: Kernel,
    precision: Precision,
}

/// A product over the rows of two activations, `left^T right`, and perhaps the sums of left's columns; it keeps the
/// memory of all of them.
#[derive(Debug)]
pub struct DepthProduct {
    pub(crate) out: Held,
    /// Where the sums of columns go, if they are wanted.
    pub(crate) bias: Option<Held>,
    pub(crate) left: Factor,
    pub(crate) right: Factor,
    pub(crate) rows: usize,
    /// Whether a row of the output has a column of left, or a column has.
    pub(crate) by_rows: bool,
    pub(crate) adds: bool,
}

/// A factor, `[rows, columns]`.
#[derive(Debug)]
pub(crate) struct Factor {
    pub(crate) held: Held,
    pub(crate) columns: usize,
}

/// `Product` in `cuda/depth_products.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Product {
    out: u64,
    bias: u64,
    m_end: u32,
    n_end: u32,
    stride: u32,
    by_rows: u32,
    adds: u32,
    first_block: u32,
}

/// `AllProducts` there.
#[repr(C)]
struct Argument {
    factors: [[TensorMap; 2]; PRODUCTS_MAX],
    at: [Product; PRODUCTS_MAX],
    count: u32,
    rows: u32,
    tiles: u32,
}

impl DepthProduct {
    /// Whether there can be a product of factors of so many columns.
    pub(crate) fn is_possible(precision: Precision, columns: [usize; 2]) -> bool {
        precision != Precision::Fp32 && columns.iter().all(|columns| columns.is_multiple_of(TILE))
    }

    /// Tiles of its outputs, each a block's.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.left.columns.div_ceil(LEFT_TILE) * self.right.columns.div_ceil(RIGHT_TILE)
    }

    /// The addresses of what it reads.
    #[must_use]
    pub fn read(&self) -> [u64; 2] {
        [self.left.held.address(), self.right.held.address()]
    }

    /// The addresses of what it writes.
    pub fn written(&self) -> impl Iterator<Item = u64> {
        [&self.out].into_iter().chain(&self.bias).map(Held::address)
    }

    fn maps(&self, gpu: &Gpu, precision: Precision) -> Result<[TensorMap; 2], Error> {
        let map = |factor: &Factor| {
            let (address, columns) = (factor.held.address(), factor.columns);
            if precision.is_bf16() {
                return TensorMap::new(gpu, precision, address, [self.rows, columns]);
            }
            let matrices = Matrices::dense([1, self.rows, columns]);
            TensorMap::of_short_pieces(gpu, precision, address, matrices)
        };
        Ok([map(&self.left)?, map(&self.right)?])
    }

    fn argument(&self, first_block: u32) -> Product {
        let stride = if self.by_rows { self.right.columns } else { self.left.columns };
        Product {
            out: self.out.address(),
            bias: self.bias.as_ref().map_or(0, Held::address),
            m_end: self.left.columns as u32,
            n_end: self.right.columns as u32,
            stride: stride as u32,
            by_rows: u32::from(self.by_rows),
            adds: u32::from(self.adds),
            first_block,
        }
    }
}

impl DepthTiles {
    /// Compiles and loads the kernel, if there is one.
    #[must_use]
    pub fn new(gpu: &Gpu, precision: Precision) -> Option<DepthTiles> {
        let facts = gpu.facts();
        let shared_bytes = shared_bytes(precision);
        let has_room = shared_bytes <= facts.shared_bytes_of_block as usize;
        let is_multiplied = precision != Precision::Fp32;
        if !is_multiplied || facts.compute_capability != (9, 0) || !has_room {
            return None;
        }
        let name = if precision.is_bf16() { "depth_tiles" } else { "depth_wide" };
        let kernel = gpu.module(&depth_program(precision)).ok()?.kernel(name).ok()?;
        kernel.allow_shared(gpu, shared_bytes as u32).ok()?;
        Some(DepthTiles { kernel, precision })
    }

    /// Computes products, all over equally many rows; in tf32 by at most `blocks_max` blocks, each of which has a
    /// multiprocessor to itself.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Panics
    ///
    /// If factors differ in their rows.
    pub fn queue(
        &self,
        gpu: &Gpu,
        products: &[DepthProduct],
        blocks_max: usize,
    ) -> Result<(), Error> {
        for products in products.chunks(PRODUCTS_MAX) {
            self.queue_some(gpu, products, blocks_max)?;
        }
        Ok(())
    }

    /// No more products than one launch can take.
    fn queue_some(
        &self,
        gpu: &Gpu,
        products: &[DepthProduct],
        blocks_max: usize,
    ) -> Result<(), Error> {
        let Some(first) = products.first() else { return Ok(()) };
        let mut tiles = 0;
        let mut factors = [first.maps(gpu, self.precision)?; PRODUCTS_MAX];
        let mut at = [Product::default(); PRODUCTS_MAX];
        for ((maps, place), product) in factors.iter_mut().zip(&mut at).zip(products) {
            assert_eq!(product.rows, first.rows, "rows of products in one launch");
            *maps = product.maps(gpu, self.precision)?;
            *place = product.argument(tiles);
            tiles += product.blocks() as u32;
        }
        let (count, rows) = (products.len() as u32, first.rows as u32);
        let argument = Argument { factors, at, count, rows, tiles };
        let (warps, blocks) = match self.precision.is_bf16() {
            true => (4 * GROUPS + 1, tiles as usize),
            false => (4 * GROUPS + 4, (tiles as usize).min(blocks_max.max(1))),
        };
        let threads = WARP_LANES * warps as u32;
        let size = (checked_blocks(blocks as u64)?, threads, shared_bytes(self.precision) as u32);
        // SAFETY: 1. `Argument` is laid out as `AllProducts` in depth_products.cuh, and the kernel was compiled for these
        // threads. 2. and 3. Whoever made a product checked its lengths, held its memory, and borrowed what is
        // written mutably.
        unsafe { launch_with_shared(gpu, &self.kernel, size, &argument) }
    }
}
