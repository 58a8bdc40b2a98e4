//! One token at a time on CUDA.

use std::sync::Arc;

use gpu_kernels::{Activations, Buffer, DecodeShape, Weights};

use super::Cuda;
use crate::Error;
use crate::ops::{AttentionShape, Decode, DecodeCache, EmbeddingShape};

impl Decode for Cuda {
    fn decode_plan(&self, shape: AttentionShape) -> Result<(), Error> {
        self.decode(shape).map(drop)
    }

    fn decode_workspace_length(&self, shape: AttentionShape) -> usize {
        kernel_shape(shape).workspace_length()
    }

    fn decode_embedding(
        &self,
        out: &mut Activations,
        place: &Buffer<u32>,
        table: Weights<'_>,
        positions: Weights<'_>,
        shape: EmbeddingShape,
    ) -> Result<(), Error> {
        let tables = (table.floats(), positions.floats());
        Ok(self.embedding(shape)?.forward_one(self.gpu(), out, place, tables)?)
    }

    fn decode_attention(
        &self,
        out: &mut Activations,
        cache: DecodeCache<'_, Self>,
        qkv: &Activations,
        place: &Buffer<u32>,
        workspace: &mut Buffer<f32>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        let cache = (cache.keys, cache.values);
        let decode = self.decode(shape)?;
        Ok(decode.attention(self.gpu(), out, cache, qkv, place, workspace)?)
    }
}

impl Cuda {
    fn decode(&self, shape: AttentionShape) -> Result<Arc<gpu_kernels::Decode>, Error> {
        let shape = kernel_shape(shape);
        let make = || gpu_kernels::Decode::new(self.gpu(), self.precision(), shape);
        self.inner.decodes.get(shape, |_| true, make)
    }
}

fn kernel_shape(shape: AttentionShape) -> DecodeShape {
    let AttentionShape { time, heads, head_size, .. } = shape;
    DecodeShape { context: time, heads, head_size }
}
