//! One token at a time on the CPU: a row of each table, and attention over the cache of one head
//! after another. Whole windows go through the operations of the other files.

use super::lanes;
use super::simd::{Chunks, Matrix, for_each_with, vector};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::{AttentionShape, Decode, DecodeCache, EmbeddingShape};
use crate::parts::Part;

impl<T: Element> Decode for Cpu<T> {
    fn decode_workspace_length(&self, shape: AttentionShape) -> usize {
        shape.time * rayon::current_num_threads()
    }

    fn decode_embedding(
        &self,
        out: &mut Vec<T>,
        place: &Vec<u32>,
        table: &[T],
        positions: &[T],
        shape: EmbeddingShape,
    ) -> Result<(), Error> {
        let EmbeddingShape { channels, vocabulary, context, .. } = shape;
        self.timed(Part::Embedding, || {
            let token = Matrix::new(table, vocabulary, channels).row(place[0] as usize);
            let position = Matrix::new(positions, context, channels).row(place[1] as usize);
            for (out, (&token, &position)) in out.iter_mut().zip(token.iter().zip(position)) {
                *out = token + position;
            }
        })
    }

    fn decode_attention(
        &self,
        out: &mut Vec<T>,
        cache: DecodeCache<'_, Self>,
        qkv: &Vec<T>,
        place: &Vec<u32>,
        workspace: &mut Vec<T>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        let AttentionShape { time, heads, head_size, .. } = shape;
        let channels = heads * head_size;
        self.timed(Part::Attention, || {
            let position = place[1] as usize;
            let here = position * channels..(position + 1) * channels;
            let (q, k, v) = (&qkv[..channels], &qkv[channels..2 * channels], &qkv[2 * channels..]);
            cache.keys[here.clone()].copy_from_slice(k);
            cache.values[here].copy_from_slice(&v[..channels]);
            let keys = Matrix::new(cache.keys, time, channels);
            let values = Matrix::new(cache.values, time, channels);
            let out = Chunks::new(&mut out[..channels], head_size);
            for_each_with(workspace, time, out, |head, out, scores| {
                let columns = head * head_size..(head + 1) * head_size;
                attend(
                    out,
                    &q[columns.clone()],
                    keys.columns(columns.clone()),
                    values.columns(columns),
                    &mut scores[..position + 1],
                );
            });
        })
    }
}

/// Attention of one query to as many keys as there is room for scores.
fn attend<T: Element>(
    out: &mut [T],
    q: &[T],
    keys: Matrix<'_, T>,
    values: Matrix<'_, T>,
    scores: &mut [T],
) {
    let scale = T::from_f64(1.0 / (q.len() as f64).sqrt());
    vector(
        #[inline(always)]
        || {
            for (position, score) in scores.iter_mut().enumerate() {
                *score = scale * lanes::dot(q, keys.row(position));
            }
            let max = lanes::maximum(scores);
            let sum = lanes::map_and_sum(scores, |score| (score - max).exp());
            out.fill(T::ZERO);
            for (position, &weight) in scores.iter().enumerate() {
                for (out, &value) in out.iter_mut().zip(values.row(position)) {
                    *out += weight * value;
                }
            }
            let reciprocal = T::ONE / sum;
            out.iter_mut().for_each(|value| *value *= reciprocal);
        },
    );
}
