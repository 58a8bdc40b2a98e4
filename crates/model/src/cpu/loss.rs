//! Output head and cross-entropy on the CPU, in runs of rows: the logits of a run stay in the
//! workspace, turn into their own gradient there, and are spent in two products before the next run
//! comes. All logits never exist together, and the table's gradient is added to once per run.

use std::collections::VecDeque;
use std::ops::Range;

use super::lanes;
use super::linear::{parameter_tiles, row_tiles};
use super::simd::{Chunks, Matrix, MatrixMut, for_each, product, vector};
use super::{Cpu, Element};
use crate::ops::{Loss, LossInputs, LossOutputs, LossShape, Store};
use crate::parts::Part;
use crate::{Error, IGNORED};

/// Logits of one run, at most, unless [`ROWS_MIN`] rows have more: 20 MiB of `f32`, which a shared
/// cache may hold.
const LOGITS: usize = 5 << 20;

/// Rows of one run, at least: below this the products by runs lose their rate.
const ROWS_MIN: usize = 96;

impl<T: Element> Loss for Cpu<T> {
    type Sums = Sums;
    type Scalar = f64;

    fn loss_workspace_length(&self, shape: LossShape) -> usize {
        run_rows(shape) * shape.vocabulary
    }

    fn loss_forward(
        &self,
        losses: &mut Vec<T>,
        x: &Vec<T>,
        table: &[T],
        targets: &Vec<u32>,
        workspace: &mut Vec<T>,
        shape: LossShape,
    ) -> Result<(), Error> {
        let LossShape { rows, channels, vocabulary } = shape;
        self.timed(Part::Loss, || {
            let x = Matrix::new(x, rows, channels);
            let table = Matrix::new(table, vocabulary, channels);
            for run in runs(shape) {
                let logits = &mut workspace[..run.len() * vocabulary];
                write_logits(logits, x.rows(run.clone()), table, run.len(), vocabulary);
                let targets = &targets[run.clone()];
                for_rows(logits, &mut losses[run], vocabulary, |row, logits| {
                    cross_entropy(logits, targets[row]).0
                });
            }
        })
    }

    fn loss_forward_backward(
        &self,
        outputs: LossOutputs<'_, Self>,
        inputs: LossInputs<'_, Self>,
        workspace: &mut Vec<T>,
        shape: LossShape,
        store: Store,
    ) -> Result<(), Error> {
        let LossShape { rows, channels, vocabulary } = shape;
        self.timed(Part::Loss, || {
            let x = Matrix::new(inputs.x, rows, channels);
            let table = Matrix::new(inputs.table, vocabulary, channels);
            let mut d_x = MatrixMut::new(outputs.d_x, rows, channels);
            let scale = inputs.scale[0];
            let mut store = store;
            for run in runs(shape) {
                let logits = &mut workspace[..run.len() * vocabulary];
                write_logits(logits, x.rows(run.clone()), table, run.len(), vocabulary);
                let targets = &inputs.targets[run.clone()];
                for_rows(logits, &mut outputs.losses[run.clone()], vocabulary, |row, logits| {
                    let (loss, sum) = cross_entropy(logits, targets[row]);
                    turn_into_gradient(logits, targets[row], scale, sum);
                    loss
                });
                let d_logits = Matrix::new(logits, run.len(), vocabulary);
                for_each(d_x.rows(run.clone()).tiles(INPUT_TILE.0, INPUT_TILE.1), |_, mut tile| {
                    let (d_logits, table) = (d_logits.rows(tile.rows), table.columns(tile.columns));
                    product(&mut tile.out, Store::Overwrite, T::ONE, d_logits, table);
                });
                let d_table = MatrixMut::new(outputs.d_table, vocabulary, channels);
                for_each(parameter_tiles(d_table), |_, mut tile| {
                    let d_logits = d_logits.columns(tile.rows).transposed();
                    let x = x.rows(run.clone()).columns(tile.columns);
                    product(&mut tile.out, store, T::ONE, d_logits, x);
                });
                store = Store::Add;
            }
        })
    }

    fn logits(
        &self,
        out: &mut Vec<T>,
        x: &Vec<T>,
        table: &[T],
        rows: Range<usize>,
        shape: LossShape,
    ) -> Result<(), Error> {
        let LossShape { rows: all_rows, channels, vocabulary } = shape;
        self.timed(Part::Loss, || {
            let x = Matrix::new(x, all_rows, channels).rows(rows.clone());
            write_logits(out, x, Matrix::new(table, vocabulary, channels), rows.len(), vocabulary);
        })
    }

    fn sum(&self, losses: &Vec<T>, length: usize) -> Result<f64, Error> {
        Ok(tree_sum(&losses[..length]))
    }

    fn sums(&self) -> Result<Sums, Error> {
        Ok(Sums::default())
    }

    fn total(
        &self,
        sums: &mut Sums,
        losses: &Vec<T>,
        length: usize,
        store: Store,
    ) -> Result<(), Error> {
        let sum = self.sum(losses, length)?;
        match store {
            Store::Overwrite => sums.total = sum,
            Store::Add => sums.total += sum,
        }
        Ok(())
    }

    fn set_total(&self, sums: &mut Sums, nats: f64) -> Result<(), Error> {
        sums.total = nats;
        Ok(())
    }

    fn scalar<'a>(&self, sums: &'a Sums) -> &'a f64 {
        &sums.total
    }

    fn select_total(&self, _: &mut Sums, position: usize) {
        assert_eq!(position, 0, "there is one update at a time");
    }

    fn queue_totals(&self, sums: &mut Sums) -> Result<(), Error> {
        sums.queued.push_back(sums.total);
        Ok(())
    }

    fn take_totals(&self, sums: &mut Sums, _: bool) -> Result<Option<Vec<f64>>, Error> {
        Ok(sums.queued.pop_front().map(|total| vec![total]))
    }
}

/// The total of an update's losses, and those that nobody took yet.
#[derive(Debug, Default)]
pub struct Sums {
    total: f64,
    queued: VecDeque<f64>,
}

/// Rows and columns of a tile of d_x: a run has few of these, and the sum over the vocabulary makes
/// each a long task.
const INPUT_TILE: (usize, usize) = (144, 64);

/// Rows that one task of the softmax takes.
const SOFTMAX_ROWS: usize = 4;

/// Rows of one run; the runs come out nearly even.
fn run_rows(shape: LossShape) -> usize {
    let most = (LOGITS / shape.vocabulary).max(ROWS_MIN);
    let runs = shape.rows.div_ceil(most).max(1);
    shape.rows.div_ceil(runs).next_multiple_of(8).min(shape.rows)
}

/// The runs of a pass, in order.
fn runs(shape: LossShape) -> impl Iterator<Item = Range<usize>> {
    let rows = run_rows(shape);
    (0..shape.rows).step_by(rows.max(1)).map(move |start| start..(start + rows).min(shape.rows))
}

fn write_logits<T: Element>(
    out: &mut [T],
    x: Matrix<'_, T>,
    table: Matrix<'_, T>,
    rows: usize,
    vocabulary: usize,
) {
    for_each(row_tiles(MatrixMut::new(out, rows, vocabulary)), |_, mut tile| {
        let table = table.rows(tile.columns).transposed();
        product(&mut tile.out, Store::Overwrite, T::ONE, x.rows(tile.rows), table);
    });
}

/// Runs a task on each row of logits, which returns the row's loss.
fn for_rows<T: Element>(
    logits: &mut [T],
    losses: &mut [T],
    vocabulary: usize,
    task: impl Fn(usize, &mut [T]) -> T + Sync,
) {
    let rows = losses.len();
    let logits = MatrixMut::new(logits, rows, vocabulary).tiles(SOFTMAX_ROWS, vocabulary);
    for_each((logits, Chunks::new(losses, SOFTMAX_ROWS)), |_, (mut tile, losses)| {
        for (index, loss) in losses.iter_mut().enumerate() {
            *loss = task(tile.rows.start + index, tile.out.row(index));
        }
    });
}

/// Replaces each logit z by exp(z - max z); returns the loss, 0 for an ignored target, and the sum
/// of the exponentials. Sums are in `T`, the last step of the loss in `f64`.
fn cross_entropy<T: Element>(logits: &mut [T], target: u32) -> (T, T) {
    let target_logit = logits.get(target as usize).copied();
    let (max, sum) = vector(
        #[inline(always)]
        || {
            let max = lanes::maximum(logits);
            (max, lanes::map_and_sum(logits, |z| (z - max).exp()))
        },
    );
    let loss = match target_logit {
        Some(logit) => T::from_f64(sum.to_f64().ln() + (max - logit).to_f64()),
        None => T::ZERO,
    };
    (loss, sum)
}

/// Turns exponentials into the gradient of `scale * loss`; zeros for an ignored target.
fn turn_into_gradient<T: Element>(exponentials: &mut [T], target: u32, scale: T, sum: T) {
    if target == IGNORED {
        exponentials.fill(T::ZERO);
        return;
    }
    let factor = scale / sum;
    vector(
        #[inline(always)]
        || exponentials.iter_mut().for_each(|value| *value *= factor),
    );
    let value = &mut exponentials[target as usize];
    *value = *value - scale;
}

/// Sums by halves, each half by itself, down to single values.
fn tree_sum<T: Element>(values: &[T]) -> f64 {
    match values {
        [] => 0.0,
        [value] => value.to_f64(),
        _ => {
            let (low, high) = values.split_at(values.len().next_power_of_two() / 2);
            tree_sum(low) + tree_sum(high)
        }
    }
}
