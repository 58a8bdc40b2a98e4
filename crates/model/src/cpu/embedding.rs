//! Token and position tables on the CPU. The scatter of the backward pass is cut by channels, not
//! by tokens: each task walks all tokens in order over its own channels, so the order of every sum
//! is that of the text.

use super::simd::{Matrix, MatrixMut, for_each};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::{Embedding, EmbeddingShape, Store};
use crate::parts::Part;

/// Tokens that one forward task looks up.
const ROWS: usize = 64;

/// Channels that one backward task adds up; a cache line of `f32` or two.
const CHANNELS: usize = 32;

impl<T: Element> Embedding for Cpu<T> {
    fn embedding_forward(
        &self,
        out: &mut Vec<T>,
        tokens: &Vec<u32>,
        table: &[T],
        positions: &[T],
        shape: EmbeddingShape,
    ) -> Result<(), Error> {
        let EmbeddingShape { batch, time, channels, vocabulary, context } = shape;
        self.timed(Part::Embedding, || {
            let table = Matrix::new(table, vocabulary, channels);
            let positions = Matrix::new(positions, context, channels);
            let out = MatrixMut::new(out, batch * time, channels).tiles(ROWS, channels);
            for_each(out, |_, mut tile| {
                for (index, row) in tile.rows.enumerate() {
                    let token = table.row(tokens[row] as usize);
                    let position = positions.row(row % time);
                    for (out, (&token, &position)) in
                        tile.out.row(index).iter_mut().zip(token.iter().zip(position))
                    {
                        *out = token + position;
                    }
                }
            });
        })
    }

    fn embedding_order_length(&self, _: EmbeddingShape) -> usize {
        0
    }

    fn embedding_order(
        &self,
        _: &mut Vec<T>,
        _: &Vec<u32>,
        _: EmbeddingShape,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn embedding_backward(
        &self,
        [d_table, d_positions]: [&mut [T]; 2],
        d_out: &Vec<T>,
        (tokens, _): (&Vec<u32>, &Vec<T>),
        shape: EmbeddingShape,
        store: Store,
    ) -> Result<(), Error> {
        self.timed(Part::Embedding, || {
            let d_out = Matrix::new(d_out, shape.batch * shape.time, shape.channels);
            backward_table(d_table, d_out, tokens, shape);
            backward_positions(d_positions, d_out, shape, store);
        })
    }
}

fn backward_table<T: Element>(
    d_table: &mut [T],
    d_out: Matrix<'_, T>,
    tokens: &[u32],
    shape: EmbeddingShape,
) {
    let EmbeddingShape { batch, time, channels, vocabulary, .. } = shape;
    let d_table = MatrixMut::new(d_table, vocabulary, channels);
    for_each(d_table.tiles(vocabulary, CHANNELS), |_, mut tile| {
        for (row, &token) in tokens[..batch * time].iter().enumerate() {
            let d_out = &d_out.row(row)[tile.columns.clone()];
            add(tile.out.row(token as usize), d_out);
        }
    });
}

fn backward_positions<T: Element>(
    d_positions: &mut [T],
    d_out: Matrix<'_, T>,
    shape: EmbeddingShape,
    store: Store,
) {
    let EmbeddingShape { batch, time, channels, context, .. } = shape;
    let d_positions = MatrixMut::new(d_positions, context, channels);
    for_each(d_positions.tiles(ROWS, channels), |_, mut tile| {
        for (index, position) in tile.rows.enumerate() {
            let sum = tile.out.row(index);
            if store == Store::Overwrite {
                sum.fill(T::ZERO);
            }
            if position < time {
                for window in 0..batch {
                    add(sum, d_out.row(window * time + position));
                }
            }
        }
    });
}

fn add<T: Element>(sum: &mut [T], values: &[T]) {
    for (sum, &value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}
