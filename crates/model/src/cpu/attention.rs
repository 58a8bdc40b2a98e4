//! Causal attention on the CPU, by matrix products on blocks.
//!
//! Forward, a task takes one head and a block of queries: scores against all keys up to the block's
//! end, softmax, product with the values. Backward, a task takes one head and a span of keys and
//! walks the query blocks that see them: it computes the probabilities again and owns the gradients
//! of its keys and values. Spans let a single long window keep several cores busy; each adds to the
//! gradient of all later queries, so all spans but the first leave their share in the workspace, and
//! the shares are added up in order afterwards.
//!
//! Scores are kept with a row per key and a column per query. So the keys and values of a product
//! are read as they lie, where they would otherwise be packed again for every block of queries, and
//! the softmax runs down the rows for all queries of the block side by side. Scores above the
//! diagonal are skipped where a whole block or span lies there; within a block they are zero.

use std::ops::Range;

use super::lanes;
use super::simd::{Chain, Matrix, MatrixMut, Tile, for_each, for_each_with, product, vector};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::{Attention, AttentionInputs, AttentionShape, Store};
use crate::parts::Part;

/// Queries of one block.
const QUERIES: usize = 64;

/// Keys of one span in the backward pass, at most: its two score blocks stay in a core's own cache.
const KEYS_MAX: usize = 512;

impl<T: Element> Attention for Cpu<T> {
    fn attention_workspace_length(&self, shape: AttentionShape) -> usize {
        let slot = forward_slot(shape).max(backward_slot(shape));
        share_length(shape) + slot * rayon::current_num_threads()
    }

    fn attention_forward(
        &self,
        out: &mut Vec<T>,
        statistics: &mut Vec<T>,
        qkv: &Vec<T>,
        workspace: &mut Vec<T>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        let AttentionShape { batch, time, heads, head_size } = shape;
        self.timed(Part::Attention, || {
            let rows = batch * time;
            let qkv = Qkv::new(qkv, shape);
            let out = MatrixMut::new(out, rows, heads * head_size);
            let statistics = MatrixMut::new(statistics, rows, 2 * heads);
            let pieces = (
                out.grouped_tiles(time, QUERIES, head_size),
                statistics.grouped_tiles(time, QUERIES, 2),
            );
            for_each_with(workspace, forward_slot(shape), pieces, |_, (out, statistics), slot| {
                attend(out, statistics, &qkv, slot);
            });
        })
    }

    fn attention_backward(
        &self,
        d_qkv: &mut Vec<T>,
        forward: AttentionInputs<'_, Self>,
        workspace: &mut Vec<T>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        let AttentionShape { batch, time, heads, head_size } = shape;
        let (rows, channels) = (batch * time, heads * head_size);
        self.timed(Part::Attention, || {
            let inputs = BackwardInputs {
                qkv: Qkv::new(forward.qkv, shape),
                d_out: Matrix::new(forward.d_out, rows, channels),
                out: Matrix::new(forward.out, rows, channels),
                statistics: Matrix::new(forward.statistics, rows, 2 * heads),
            };
            let (shares, slots) = workspace.split_at_mut(share_length(shape));
            let keys = span_keys(time);
            let (d_q, d_kv) = MatrixMut::new(d_qkv, rows, 3 * channels).split_columns(channels);
            let (d_k, d_v) = d_kv.split_columns(channels);
            let shares_of_d_q = MatrixMut::new(shares, later_spans(time) * rows, channels);
            let pieces = (
                Chain(
                    d_q.grouped_tiles(time, time, head_size),
                    shares_of_d_q.tiles(time, head_size),
                ),
                (
                    d_k.grouped_tiles(time, keys, head_size),
                    d_v.grouped_tiles(time, keys, head_size),
                ),
            );
            for_each_with(slots, backward_slot(shape), pieces, |_, (d_q, (d_k, d_v)), slot| {
                backward_span(SpanGradients { d_q, d_k, d_v }, &inputs, slot);
            });
            add_shares(d_qkv, shares, shape);
        })
    }
}

/// The three thirds of `qkv`, and how heads lie in them.
struct Qkv<'a, T> {
    q: Matrix<'a, T>,
    k: Matrix<'a, T>,
    v: Matrix<'a, T>,
    time: usize,
    /// 1 / sqrt(D).
    scale: T,
}

impl<'a, T: Element> Qkv<'a, T> {
    fn new(qkv: &'a [T], shape: AttentionShape) -> Self {
        let channels = shape.heads * shape.head_size;
        let qkv = Matrix::new(qkv, shape.batch * shape.time, 3 * channels);
        Self {
            q: qkv.columns(0..channels),
            k: qkv.columns(channels..2 * channels),
            v: qkv.columns(2 * channels..3 * channels),
            time: shape.time,
            scale: T::from_f64(1.0 / (shape.head_size as f64).sqrt()),
        }
    }

    /// q, k and v of the head with these channels.
    fn head(&self, channels: Range<usize>) -> (Matrix<'a, T>, Matrix<'a, T>, Matrix<'a, T>) {
        let head = |matrix: Matrix<'a, T>| matrix.columns(channels.clone());
        (head(self.q), head(self.k), head(self.v))
    }
}

/// One block of queries of one head: writes their outputs, and for each query the largest score and
/// 1 / sum of exponentials.
fn attend<T: Element>(
    mut out: Tile<'_, T>,
    mut statistics: Tile<'_, T>,
    qkv: &Qkv<'_, T>,
    slot: &mut [T],
) {
    let window = out.rows.start / qkv.time * qkv.time;
    let diagonal = out.rows.start - window;
    let (queries, keys) = (out.rows.len(), out.rows.end - window);
    let (q, k, v) = qkv.head(out.columns.clone());
    let visible = window..window + keys;

    let mut scores = MatrixMut::new(slot, keys, queries);
    let q = q.rows(out.rows.clone()).transposed();
    product(&mut scores, Store::Overwrite, qkv.scale, k.rows(visible.clone()), q);
    let (max, sum) = exponentials(&mut scores, diagonal);
    let p = scores.as_matrix().transposed();
    product(&mut out.out, Store::Overwrite, T::ONE, p, v.rows(visible));
    for query in 0..queries {
        let reciprocal = T::ONE / sum[query];
        out.out.row(query).iter_mut().for_each(|value| *value *= reciprocal);
        statistics.out.row(query).copy_from_slice(&[max[query], reciprocal]);
    }
}

/// Replaces each visible score s by exp(s - max s) and the others by zero; returns the largest
/// score and the sum of exponentials of each query. `diagonal` is the row of the first query's own
/// key.
fn exponentials<T: Element>(
    scores: &mut MatrixMut<'_, T>,
    diagonal: usize,
) -> ([T; QUERIES], [T; QUERIES]) {
    /// Keys whose exponentials are added up before they are added to the sum, which rounds less.
    const KEYS: usize = 32;
    let mut max = [T::NEGATIVE_INFINITY; QUERIES];
    let mut sum = [T::ZERO; QUERIES];
    vector(
        #[inline(always)]
        || {
            let keys = scores.row_count();
            for key in 0..keys {
                let first = key.saturating_sub(diagonal);
                for (max, &score) in max[first..].iter_mut().zip(&scores.row(key)[first..]) {
                    *max = if score > *max { score } else { *max };
                }
            }
            for start in (0..keys).step_by(KEYS) {
                let mut block = [T::ZERO; QUERIES];
                for key in start..(start + KEYS).min(keys) {
                    let (hidden, seen) = scores.row(key).split_at_mut(key.saturating_sub(diagonal));
                    let first = hidden.len();
                    hidden.fill(T::ZERO);
                    let lanes = block[first..].iter_mut().zip(&max[first..]);
                    for (score, (sum, &max)) in seen.iter_mut().zip(lanes) {
                        *score = (*score - max).exp();
                        *sum += *score;
                    }
                }
                for (sum, &block) in sum.iter_mut().zip(&block) {
                    *sum += block;
                }
            }
        },
    );
    (max, sum)
}

/// What the backward pass reads; all matrices have a row per token.
struct BackwardInputs<'a, T> {
    qkv: Qkv<'a, T>,
    d_out: Matrix<'a, T>,
    out: Matrix<'a, T>,
    statistics: Matrix<'a, T>,
}

/// What one span of keys writes: its own rows of `d_k` and `d_v`, and of `d_q` the rows of its
/// window from the first of its keys on. `d_q` may lie in the workspace, so only the position of
/// `d_k` says which window and head this is.
struct SpanGradients<'a, T> {
    d_q: Tile<'a, T>,
    d_k: Tile<'a, T>,
    d_v: Tile<'a, T>,
}

fn backward_span<T: Element>(
    gradients: SpanGradients<'_, T>,
    inputs: &BackwardInputs<'_, T>,
    slot: &mut [T],
) {
    let SpanGradients { mut d_q, mut d_k, mut d_v } = gradients;
    let qkv = &inputs.qkv;
    let span = d_k.rows.clone();
    let window = span.start / qkv.time * qkv.time;
    let channels = d_k.columns.clone();
    let (q, k, v) = qkv.head(channels.clone());
    let (d_out, out) = (inputs.d_out.columns(channels.clone()), inputs.out.columns(channels));
    let head_index = d_k.columns.start / d_k.columns.len();
    let statistics = inputs.statistics.columns(2 * head_index..2 * head_index + 2);

    for row in 0..span.len() {
        d_k.out.row(row).fill(T::ZERO);
        d_v.out.row(row).fill(T::ZERO);
    }
    let (p, ds) = slot.split_at_mut(slot.len() / 2);
    for start in (span.start..window + qkv.time).step_by(QUERIES) {
        let queries = start..(start + QUERIES).min(window + qkv.time);
        let keys = span.start..span.end.min(queries.end);
        let (count, seen) = (queries.len(), keys.len());
        let (q, d_out) = (q.rows(queries.clone()), d_out.rows(queries.clone()));
        let (k, v) = (k.rows(keys.clone()), v.rows(keys));
        let mut p = MatrixMut::new(p, seen, count);
        let mut ds = MatrixMut::new(ds, seen, count);

        product(&mut p, Store::Overwrite, qkv.scale, k, q.transposed());
        product(&mut ds, Store::Overwrite, T::ONE, v, d_out.transposed());
        let lanes =
            QueryLanes::new(d_out, out.rows(queries.clone()), statistics.rows(queries.clone()));
        lanes.turn_into_gradients(&mut p, &mut ds, start - span.start);

        let (p, ds) = (p.as_matrix(), ds.as_matrix());
        product(&mut d_v.out.rows(0..seen), Store::Add, T::ONE, p, d_out);
        product(&mut d_k.out.rows(0..seen), Store::Add, qkv.scale, ds, q);
        let mut d_q = d_q.out.rows(queries.start - window..queries.end - window);
        product(&mut d_q, Store::Overwrite, qkv.scale, ds.transposed(), k);
    }
}

/// What the softmax of each query in a block contributes to its column of scores.
struct QueryLanes<T> {
    max: [T; QUERIES],
    reciprocal: [T; QUERIES],
    /// d_out . out.
    o: [T; QUERIES],
}

impl<T: Element> QueryLanes<T> {
    fn new(d_out: Matrix<'_, T>, out: Matrix<'_, T>, statistics: Matrix<'_, T>) -> Self {
        let mut lanes =
            Self { max: [T::ZERO; QUERIES], reciprocal: [T::ZERO; QUERIES], o: [T::ZERO; QUERIES] };
        vector(
            #[inline(always)]
            || {
                for query in 0..statistics.row_count() {
                    lanes.max[query] = statistics.row(query)[0];
                    lanes.reciprocal[query] = statistics.row(query)[1];
                    lanes.o[query] = lanes::dot(d_out.row(query), out.row(query));
                }
            },
        );
        lanes
    }

    /// Turns scores into probabilities, and the gradients of probabilities into those of scores
    /// (short of the factor 1 / sqrt(D)). `diagonal` is the row of the first query's own key.
    fn turn_into_gradients(
        &self,
        p: &mut MatrixMut<'_, T>,
        ds: &mut MatrixMut<'_, T>,
        diagonal: usize,
    ) {
        vector(
            #[inline(always)]
            || {
                for key in 0..p.row_count() {
                    let first = key.saturating_sub(diagonal);
                    let (hidden, p) = p.row(key).split_at_mut(first);
                    hidden.fill(T::ZERO);
                    let (hidden, ds) = ds.row(key).split_at_mut(first);
                    hidden.fill(T::ZERO);
                    let softmax = self.max[first..].iter().zip(&self.reciprocal[first..]);
                    let lanes = softmax.zip(&self.o[first..]);
                    for ((p, ds), ((&max, &reciprocal), &o)) in p.iter_mut().zip(ds).zip(lanes) {
                        *p = (*p - max).exp() * reciprocal;
                        *ds = *p * (*ds - o);
                    }
                }
            },
        );
    }
}

/// Adds to `dq` the shares of all spans but the first, in order.
fn add_shares<T: Element>(d_qkv: &mut [T], shares: &[T], shape: AttentionShape) {
    const ROWS: usize = 32;
    let (rows, channels) = (shape.batch * shape.time, shape.heads * shape.head_size);
    let spans = later_spans(shape.time);
    if spans == 0 {
        return;
    }
    let shares = Matrix::new(shares, spans * rows, channels);
    let (d_q, _) = MatrixMut::new(d_qkv, rows, 3 * channels).split_columns(channels);
    for_each(d_q.tiles(ROWS, channels), |_, mut tile| {
        for (index, row) in tile.rows.enumerate() {
            // Span s begins at key s * span_keys; earlier queries do not see it.
            for span in 0..(row % shape.time) / span_keys(shape.time) {
                let share = shares.row(span * rows + row);
                for (sum, &share) in tile.out.row(index).iter_mut().zip(share) {
                    *sum += share;
                }
            }
        }
    });
}

/// Keys of each span but the last, which may have fewer.
fn span_keys(time: usize) -> usize {
    time.div_ceil(time.div_ceil(KEYS_MAX))
}

/// Spans after the first.
fn later_spans(time: usize) -> usize {
    time.div_ceil(span_keys(time)) - 1
}

fn share_length(shape: AttentionShape) -> usize {
    later_spans(shape.time) * shape.batch * shape.time * shape.heads * shape.head_size
}

/// A block of scores against all keys.
fn forward_slot(shape: AttentionShape) -> usize {
    QUERIES.min(shape.time) * shape.time
}

/// Two blocks of scores against the keys of a span.
fn backward_slot(shape: AttentionShape) -> usize {
    2 * QUERIES.min(shape.time) * span_keys(shape.time)
}
