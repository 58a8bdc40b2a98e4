//! Linear layers on the CPU: each product is cut into tiles that depend on the shapes alone, and
//! each tile is one product on one thread.
//!
//! The bias lies behind the weight, so the pair is a matrix of one more row, `[W; b]`. Its gradient
//! is cut into tiles as a whole: a tile that holds the last row adds up a bias there.

use std::ops::Range;

use super::simd::{Matrix, MatrixMut, Tiles, for_each, product, vector};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::{Gelu, Linear, LinearShape, LinearStores, Store};
use crate::parts::Part;

impl<T: Element> Linear for Cpu<T> {
    fn linear_forward(
        &self,
        y: &mut Vec<T>,
        x: &Vec<T>,
        weight_bias: &[T],
        shape: LinearShape,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        self.timed(Part::Linear, || {
            let x = Matrix::new(x, rows, inputs);
            let weight_bias = Matrix::new(weight_bias, inputs + 1, outputs);
            for_each(row_tiles(MatrixMut::new(y, rows, outputs)), |_, mut tile| {
                let weight_bias = weight_bias.columns(tile.columns.clone());
                for row in 0..tile.rows.len() {
                    tile.out.row(row).copy_from_slice(weight_bias.row(inputs));
                }
                let (x, weight) = (x.rows(tile.rows.clone()), weight_bias.rows(0..inputs));
                product(&mut tile.out, Store::Add, T::ONE, x, weight);
            });
        })
    }

    fn linear_forward_gelu(
        &self,
        activated: &mut Vec<T>,
        y: &mut Vec<T>,
        x: &Vec<T>,
        weight_bias: &[T],
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.linear_forward(y, x, weight_bias, shape)?;
        self.gelu_forward(activated, y, shape.rows * shape.outputs)
    }

    fn linear_backward_input(
        &self,
        d_x: &mut Vec<T>,
        d_y: &Vec<T>,
        weight_bias: &[T],
        shape: LinearShape,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        self.timed(Part::Linear, || {
            let d_y = Matrix::new(d_y, rows, outputs);
            let weight = Matrix::new(weight_bias, inputs, outputs);
            for_each(row_tiles(MatrixMut::new(d_x, rows, inputs)), |_, mut tile| {
                let d_y = d_y.rows(tile.rows.clone());
                let weight = weight.rows(tile.columns.clone()).transposed();
                product(&mut tile.out, Store::Overwrite, T::ONE, d_y, weight);
            });
        })
    }

    fn linear_backward_input_gelu(
        &self,
        d_z: &mut Vec<T>,
        d_y: &Vec<T>,
        z: &Vec<T>,
        weight_bias: &[T],
        shape: LinearShape,
    ) -> Result<(), Error> {
        self.linear_backward_input(d_z, d_y, weight_bias, shape)?;
        self.gelu_backward(d_z, z, shape.rows * shape.inputs)
    }

    fn linear_backward_parameters(
        &self,
        d_weight_bias: &mut [T],
        d_y: &Vec<T>,
        x: &Vec<T>,
        shape: LinearShape,
        stores: LinearStores,
    ) -> Result<(), Error> {
        let LinearShape { rows, inputs, outputs } = shape;
        self.timed(Part::Linear, || {
            let d_y = Matrix::new(d_y, rows, outputs);
            let x = Matrix::new(x, rows, inputs).transposed();
            let gradient = MatrixMut::new(d_weight_bias, inputs + 1, outputs);
            for_each(parameter_tiles(gradient), |_, mut tile| {
                let weight_rows = tile.rows.start..tile.rows.end.min(inputs);
                let count = weight_rows.len();
                let mut weight = tile.out.rows(0..count);
                let d_y_columns = d_y.columns(tile.columns.clone());
                product(&mut weight, stores.weight, T::ONE, x.rows(weight_rows), d_y_columns);
                if tile.rows.end == inputs + 1
                    && let Some(store) = stores.bias
                {
                    let bias = tile.out.row(count);
                    store_column_sums(bias, d_y, tile.columns.clone(), rows, store);
                }
            });
        })
    }
}

/// Cuts an output with a row per token.
pub(super) fn row_tiles<T>(out: MatrixMut<'_, T>) -> Tiles<'_, T> {
    tall_tiles(out, [576, 288, 144])
}

/// Cuts the gradient of parameters, where the sum runs over tokens and each tile is long work.
pub(super) fn parameter_tiles<T>(gradient: MatrixMut<'_, T>) -> Tiles<'_, T> {
    tall_tiles(gradient, [384, 192, 48])
}

/// Cuts an output into tiles that are tall and narrow. A product packs the columns of its right
/// side once per tile and reads its left side as it lies, so the more rows the better; but there
/// should be enough tiles to keep several cores busy. Takes the tallest choice that gives enough.
fn tall_tiles<T>(out: MatrixMut<'_, T>, rows_max: [usize; 3]) -> Tiles<'_, T> {
    const ENOUGH: usize = 16;
    let rows = out.row_count();
    let column_tiles = out.column_count().div_ceil(TILE_COLUMNS);
    let [tall, middle, short] = rows_max.map(|most| even_share(rows, most));
    let enough = |tile: &usize| rows.div_ceil(*tile) * column_tiles >= ENOUGH;
    let tile = [tall, middle].into_iter().find(enough).unwrap_or(short);
    out.tiles(tile, TILE_COLUMNS)
}

/// Columns of a tile, a multiple of what gemm's kernels take at a time.
pub(super) const TILE_COLUMNS: usize = 64;

/// The length of equal shares of at most `most`.
fn even_share(length: usize, most: usize) -> usize {
    length.div_ceil(length.div_ceil(most).max(1)).max(1)
}

/// Stores the sum of some columns, at most [`TILE_COLUMNS`], over all rows: first of blocks of 64
/// rows, then of the blocks.
pub(super) fn store_column_sums<T: Element>(
    sums: &mut [T],
    matrix: Matrix<'_, T>,
    columns: Range<usize>,
    rows: usize,
    store: Store,
) {
    const BLOCK: usize = 64;
    if store == Store::Overwrite {
        sums.fill(T::ZERO);
    }
    vector(
        #[inline(always)]
        || {
            for start in (0..rows).step_by(BLOCK) {
                let mut block = [T::ZERO; TILE_COLUMNS];
                for row in start..(start + BLOCK).min(rows) {
                    let values = &matrix.row(row)[columns.clone()];
                    for (sum, &value) in block.iter_mut().zip(values) {
                        *sum += value;
                    }
                }
                for (sum, &value) in sums.iter_mut().zip(&block) {
                    *sum += value;
                }
            }
        },
    );
}
