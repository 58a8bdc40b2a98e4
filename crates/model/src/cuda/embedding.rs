//! Token and position tables on CUDA. Rows of the table's gradient are added up id by id, in the
//! order of their places, which one kernel sorts beforehand.

use std::sync::Arc;

use gpu_kernels::{Activations, Buffer, Lane, ViewMut, Weights, Windows};

use super::{Cuda, front};
use crate::Error;
use crate::ops::{Embedding, EmbeddingShape, Store};
use crate::parts::Part;

impl Embedding for Cuda {
    fn embedding_plan(&self, shape: EmbeddingShape) -> Result<(), Error> {
        self.embedding(shape).map(drop)
    }

    fn embedding_forward(
        &self,
        out: &mut Activations,
        tokens: &Buffer<u32>,
        table: Weights<'_>,
        positions: Weights<'_>,
        shape: EmbeddingShape,
    ) -> Result<(), Error> {
        self.timed(Part::Embedding, || {
            self.settle(&[out.address()])?;
            let tables = (table.floats(), positions.floats());
            Ok(self.embedding(shape)?.forward(self.gpu(), out, tokens, tables, windows(shape))?)
        })
    }

    fn embedding_order_length(&self, shape: EmbeddingShape) -> usize {
        gpu_kernels::Embedding::order_length(windows(shape))
    }

    fn embedding_order(
        &self,
        order: &mut Buffer<f32>,
        tokens: &Buffer<u32>,
        shape: EmbeddingShape,
    ) -> Result<(), Error> {
        self.timed(Part::Embedding, || {
            let embedding = self.embedding(shape)?;
            let touched = [front(order.address()), front(tokens.address())];
            let rank = |lane: &Lane| embedding.rank(lane.gpu(), order, tokens, windows(shape));
            Ok(self.inner.lanes.aside(&touched, rank)?)
        })
    }

    fn embedding_backward(
        &self,
        d_tables: [ViewMut<'_, f32>; 2],
        d_out: &Activations,
        tokens_and_order: (&Buffer<u32>, &Buffer<f32>),
        shape: EmbeddingShape,
        store: Store,
    ) -> Result<(), Error> {
        self.timed(Part::Embedding, || {
            let (_, order) = tokens_and_order;
            let [table, positions] = d_tables.each_ref().map(ViewMut::address);
            self.settle(&[table, positions, order.address()])?;
            self.begin_sums()?;
            let (embedding, windows) = (self.embedding(shape)?, windows(shape));
            let adds = store == Store::Add;
            Ok(embedding.backward(self.gpu(), d_tables, d_out, tokens_and_order, windows, adds)?)
        })
    }
}

impl Cuda {
    pub(super) fn embedding(
        &self,
        shape: EmbeddingShape,
    ) -> Result<Arc<gpu_kernels::Embedding>, Error> {
        let channels = shape.channels;
        let make = || gpu_kernels::Embedding::new(self.gpu(), self.precision(), channels);
        self.inner.embeddings.get(channels, |_| true, make)
    }
}

fn windows(shape: EmbeddingShape) -> Windows {
    Windows { batch: shape.batch, time: shape.time }
}
