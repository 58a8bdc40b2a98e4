//! LayerNorm on the CPU. Tasks take runs of rows; in the backward pass each run leaves its own sums
//! for gain and bias in the workspace, and these are added up in order afterwards.

use super::lanes;
use super::linear::{TILE_COLUMNS, store_column_sums};
use super::simd::{Chunks, Matrix, for_each, vector};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::{LayerNorm, LayerNormInputs, LayerNormShape, Store};
use crate::parts::Part;

/// Rows of one run.
const ROWS: usize = 32;

/// Channels whose gradients one task adds up over the runs.
const CHANNELS: usize = 64;

const EPSILON: f64 = 1e-5;

impl<T: Element> LayerNorm for Cpu<T> {
    fn layernorm_workspace_length(&self, shape: LayerNormShape) -> usize {
        shape.rows.div_ceil(ROWS) * 2 * shape.channels
    }

    fn layernorm_forward(
        &self,
        out: &mut Vec<T>,
        statistics: &mut Vec<T>,
        x: &Vec<T>,
        gain_bias: &[T],
        shape: LayerNormShape,
    ) -> Result<(), Error> {
        let LayerNormShape { rows, channels } = shape;
        self.timed(Part::LayerNorm, || {
            let (gain, bias) = gain_bias.split_at(channels);
            let x = Matrix::new(x, rows, channels);
            let out = Chunks::new(&mut out[..rows * channels], ROWS * channels);
            let statistics = Chunks::new(&mut statistics[..rows * 2], ROWS * 2);
            for_each((out, statistics), |run, (out, statistics)| {
                let rows = out.chunks_exact_mut(channels).zip(statistics.as_chunks_mut().0);
                vector(
                    #[inline(always)]
                    || {
                        for (index, (out, statistics)) in rows.enumerate() {
                            *statistics = normalise(out, x.row(run * ROWS + index), gain, bias);
                        }
                    },
                );
            });
        })
    }

    fn layernorm_forward_residual(
        &self,
        out: &mut Vec<T>,
        statistics: &mut Vec<T>,
        x: &mut Vec<T>,
        terms: [&Vec<T>; 2],
        gain_bias: &[T],
        shape: LayerNormShape,
    ) -> Result<(), Error> {
        let LayerNormShape { rows, channels } = shape;
        self.timed(Part::LayerNorm, || {
            let (gain, bias) = gain_bias.split_at(channels);
            let terms = terms.map(|term| Matrix::new(term, rows, channels));
            let x = Chunks::new(&mut x[..rows * channels], ROWS * channels);
            let out = Chunks::new(&mut out[..rows * channels], ROWS * channels);
            let statistics = Chunks::new(&mut statistics[..rows * 2], ROWS * 2);
            for_each((x, (out, statistics)), |run, (x, (out, statistics))| {
                let outputs = out.chunks_exact_mut(channels).zip(statistics.as_chunks_mut().0);
                let rows = x.chunks_exact_mut(channels).zip(outputs);
                vector(
                    #[inline(always)]
                    || {
                        for (index, (x, (out, statistics))) in rows.enumerate() {
                            let row = run * ROWS + index;
                            let [left, right] = terms.map(|term| term.row(row));
                            for (x, (&left, &right)) in x.iter_mut().zip(left.iter().zip(right)) {
                                *x = left + right;
                            }
                            *statistics = normalise(out, x, gain, bias);
                        }
                    },
                );
            });
        })
    }

    fn layernorm_backward(
        &self,
        d_x: &mut Vec<T>,
        d_parameters: &mut [T],
        forward: LayerNormInputs<'_, '_, Self>,
        workspace: &mut Vec<T>,
        shape: LayerNormShape,
        store: Store,
    ) -> Result<(), Error> {
        let LayerNormShape { rows, channels } = shape;
        self.timed(Part::LayerNorm, || {
            let (gain, _) = forward.gain_bias.split_at(channels);
            let (d_before, d_gain_bias) =
                d_parameters.split_at_mut(d_parameters.len() - 2 * channels);
            let d_out = Matrix::new(forward.d_out, rows, channels);
            let x = Matrix::new(forward.x, rows, channels);
            let residual = forward.d_residual.map(|d_x| Matrix::new(d_x, rows, channels));
            let (statistics, _) = forward.statistics.as_chunks::<2>();
            let sums = &mut workspace[..rows.div_ceil(ROWS) * 2 * channels];
            let d_x_runs = Chunks::new(&mut d_x[..rows * channels], ROWS * channels);
            let run_sums = Chunks::new(sums, 2 * channels);
            for_each((d_x_runs, run_sums), |run, (d_x, sums)| {
                sums.fill(T::ZERO);
                let (d_gain, d_bias) = sums.split_at_mut(channels);
                vector(
                    #[inline(always)]
                    || {
                        for (index, d_x) in d_x.chunks_exact_mut(channels).enumerate() {
                            let row = run * ROWS + index;
                            let gradient =
                                RowGradient { d_out: d_out.row(row), x: x.row(row), gain };
                            gradient.add_to_parameters(d_gain, d_bias, statistics[row]);
                            gradient.store_input(d_x, statistics[row]);
                            if let Some(residual) = residual {
                                let terms = d_x.iter_mut().zip(residual.row(row));
                                terms.for_each(|(d_x, &term)| *d_x = term + *d_x);
                            }
                        }
                    },
                );
            });
            add_runs(d_gain_bias, sums, store);
            let d_x = Matrix::new(d_x, rows, channels);
            for_each(Chunks::new(d_before, TILE_COLUMNS), |index, sums| {
                let columns = index * TILE_COLUMNS..index * TILE_COLUMNS + sums.len();
                store_column_sums(sums, d_x, columns, rows, store);
            });
        })
    }
}

/// Writes a row of the output; returns mean and 1 / deviation.
#[inline(always)]
fn normalise<T: Element>(out: &mut [T], x: &[T], gain: &[T], bias: &[T]) -> [T; 2] {
    let per_channel = T::ONE / T::from_f64(x.len() as f64);
    let mean = lanes::sum(x) * per_channel;
    let variance = lanes::sum_of(x, x, x, |x, _, _| (x - mean) * (x - mean)) * per_channel;
    let scale = T::ONE / (variance + T::from_f64(EPSILON)).sqrt();
    for ((out, &x), (&gain, &bias)) in out.iter_mut().zip(x).zip(gain.iter().zip(bias)) {
        *out = (x - mean) * scale * gain + bias;
    }
    [mean, scale]
}

/// What the backward pass reads of one row.
struct RowGradient<'a, T> {
    d_out: &'a [T],
    x: &'a [T],
    gain: &'a [T],
}

impl<T: Element> RowGradient<'_, T> {
    #[inline(always)]
    fn add_to_parameters(&self, d_gain: &mut [T], d_bias: &mut [T], [mean, scale]: [T; 2]) {
        let inputs = self.d_out.iter().zip(self.x);
        for ((d_gain, d_bias), (&d_out, &x)) in d_gain.iter_mut().zip(d_bias).zip(inputs) {
            *d_gain += d_out * ((x - mean) * scale);
            *d_bias += d_out;
        }
    }

    #[inline(always)]
    fn store_input(&self, d_x: &mut [T], [mean, scale]: [T; 2]) {
        let per_channel = T::ONE / T::from_f64(self.x.len() as f64);
        let mean_g = lanes::dot(self.d_out, self.gain) * per_channel;
        let gn = |d_out: T, gain: T, x: T| d_out * gain * ((x - mean) * scale);
        let mean_gn = lanes::sum_of(self.d_out, self.gain, self.x, gn) * per_channel;
        let inputs = self.d_out.iter().zip(self.gain).zip(self.x);
        let gradients = inputs.map(|((&d_out, &gain), &x)| {
            (d_out * gain - mean_g - (x - mean) * scale * mean_gn) * scale
        });
        d_x.iter_mut().zip(gradients).for_each(|(d_x, g)| *d_x = g);
    }
}

/// `total = ` or `+=` the sum of the runs, in order.
fn add_runs<T: Element>(total: &mut [T], runs: &[T], store: Store) {
    let length = total.len();
    for_each(Chunks::new(total, CHANNELS), |index, total| {
        if store == Store::Overwrite {
            total.fill(T::ZERO);
        }
        for run in runs.chunks_exact(length) {
            let values = &run[index * CHANNELS..][..total.len()];
            for (total, &value) in total.iter_mut().zip(values) {
                *total += value;
            }
        }
    });
}
