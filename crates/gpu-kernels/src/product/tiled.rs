//! Products by tiles, with GELU or its gradient in them, where those are faster than the library's. Launches
//! `cuda/tile_linear.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use super::{Epilogue, Lane, Operands, ProductShape};
use crate::blas::Plan;
use crate::programs::network::TileProgram;
use crate::tiles::{TILE, TensorMap, TileKernel, TileShape};
use crate::{Error, Gpu};

/// Pieces on their way where several blocks share a multiprocessor, and where none do.
const STAGES_SHARED: usize = 4;
const STAGES_ALONE: usize = 12;

/// Most blocks of a multiprocessor: beyond, larger tiles are faster.
const BLOCKS_MAX: usize = 3;

/// `Linear` in `cuda/tile_linear.cu`.
#[repr(C)]
struct Argument {
    maps: [TensorMap; 2],
    out: u64,
    aux: u64,
    bias: u64,
    rows: u32,
}

/// A product by tiles.
pub(super) struct Tiled(TileKernel);

impl Tiled {
    /// The product by tiles, if a device has it and it is faster than the library's, or the library has none, or
    /// it `is_preferred`.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub(super) fn choose(
        lane: &Lane,
        shape: &ProductShape,
        plan: Option<&Plan>,
        is_preferred: bool,
    ) -> Result<Option<Tiled>, Error> {
        let gpu = lane.gpu();
        let program = TileProgram::linear(shape.epilogue);
        let Some((tiles, program)) = tiles_of(gpu, shape).zip(program) else { return Ok(None) };
        // A compiler may be too old for the newest instructions, or a release have nothing of them.
        let Ok(kernel) = TileKernel::new(gpu, program, tiles) else { return Ok(None) };
        let tiled = Tiled(kernel);
        let is_chosen =
            super::is_chosen(lane, "tile_linear", shape, plan, is_preferred, |operands| {
                // SAFETY: the operands are scratch matrices of the shape's sizes.
                unsafe { tiled.queue(gpu, operands) }
            });
        Ok(is_chosen?.then_some(tiled))
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
        let Operands { out, a, b, bias, aux, .. } = operands;
        let shape = self.0.shape();
        let argument =
            Argument { maps: shape.maps(gpu, a, b)?, out, aux, bias, rows: shape.rows as u32 };
        // SAFETY: 1. `Argument` is laid out as `Linear` in tile_linear.cu, compiled for this shape. 2. and
        // 3. The caller's duties.
        unsafe { self.0.queue(gpu, &argument) }
    }
}

/// A product as one by tiles, if the device has such and its blocks are few.
fn tiles_of(gpu: &Gpu, shape: &ProductShape) -> Option<TileShape> {
    let &ProductShape { m: rows, n: columns, k: depth, a, b, precision, .. } = shape;
    let is_dense = !a.is_transposed
        && a.row == depth
        && b.row == if b.is_transposed { depth } else { columns }
        && shape.out_row == columns
        && shape.is_bf16_out == precision.is_bf16()
        && shape.count == 1
        && shape.alignment_bytes == 16;
    let blocks = rows.div_ceil(TILE) * columns.div_ceil(TILE);
    let multiprocessors = gpu.facts().multiprocessors as usize;
    let is_alone = blocks <= multiprocessors;
    let tiles = TileShape {
        rows,
        depth,
        columns,
        right_is_transposed: b.is_transposed,
        precision,
        exchanges: false,
        groups: if is_alone { 2 } else { 1 },
        stages_max: if is_alone { STAGES_ALONE } else { STAGES_SHARED },
    };
    let is_worth_it = is_dense && blocks <= BLOCKS_MAX * multiprocessors;
    (is_worth_it && tiles.has_groups() && tiles.is_possible(gpu)).then_some(tiles)
}

impl TileProgram {
    /// What such a product ends with.
    fn linear(epilogue: Epilogue) -> Option<TileProgram> {
        match epilogue {
            Epilogue::None => Some(TileProgram::Product),
            Epilogue::Bias => Some(TileProgram::Bias),
            Epilogue::Gelu => Some(TileProgram::Gelu),
            Epilogue::GeluGradient => Some(TileProgram::GeluGradient),
            Epilogue::ColumnSums => None,
        }
    }
}
