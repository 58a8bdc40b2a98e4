//! What lies between two attentions on CUDA: one kernel where a device has it for the shape.

use std::sync::{Arc, Mutex, PoisonError};

use gpu_kernels::{BackwardChain, Buffer, ForwardChain, Precision};

use super::Cuda;
use super::postponed::PARTIALS;
use crate::chain::{backward_in_parts, forward_in_parts};
use crate::ops::{
    AttentionOutputs, Branch, Chain, ChainGradientInputs, ChainGradients, ChainInputs,
    ChainOutputs, ChainShapes, NextBlock, NormGradient, NormedSum, ProjectedInputs, Store,
};
use crate::parts::Part;
use crate::{Error, Purpose};

impl Chain for Cuda {
    fn chain_plan(&self, shapes: ChainShapes, purpose: Purpose) -> Result<(), Error> {
        for is_linked in [true, false] {
            self.forward_chain(shapes, is_linked)?;
            if purpose.is_training() {
                self.backward_chain(shapes, is_linked)?;
            }
        }
        Ok(())
    }

    fn chain_forward<'a>(
        &self,
        outputs: ChainOutputs<'a, Self>,
        inputs: ChainInputs<'a, Self>,
        shapes: ChainShapes,
    ) -> Result<(), Error> {
        let kernel = self.forward_chain(shapes, outputs.qkv.is_some())?;
        let Some(kernel) = &*kernel else {
            return forward_in_parts(self, outputs, inputs, shapes);
        };
        self.timed(Part::Linear, || {
            let ChainOutputs { attention_end, wide, activated, mlp_end, qkv, .. } = outputs;
            let layers = [inputs.projection, inputs.up, inputs.down];
            let layers = layers.into_iter().chain(inputs.qkv);
            let mut touched: Vec<u64> = layers.map(|w| w.product_addresses().start).collect();
            touched.extend([wide.address(), activated.address()]);
            for end in [&attention_end, &mlp_end] {
                touched.extend([end.x.address(), end.out.address(), end.statistics.address()]);
            }
            touched.extend(qkv.as_ref().map(|qkv| qkv.address()));
            self.settle(&touched)?;
            self.update_beside_chain()?;
            let (attention_end, mlp_end) = (kernel_sum(attention_end), kernel_sum(mlp_end));
            let outputs =
                gpu_kernels::ForwardChainOutputs { attention_end, wide, activated, mlp_end, qkv };
            let inputs = gpu_kernels::ForwardChainInputs {
                left: inputs.left,
                residual: inputs.residual,
                projection: inputs.projection,
                mlp_norm: inputs.mlp_norm.floats(),
                up: inputs.up,
                down: inputs.down,
                next_norm: inputs.next_norm.floats(),
                qkv: inputs.qkv,
            };
            Ok(kernel.queue(self.gpu(), outputs, inputs)?)
        })
    }

    fn chain_backward<'a>(
        &self,
        outputs: ChainGradients<'a, Self>,
        inputs: ChainGradientInputs<'a, Self>,
        shapes: ChainShapes,
        store: Store,
    ) -> Result<(), Error> {
        let chain = self.backward_chain(shapes, inputs.next.is_some())?;
        let room = self.room_beside(shapes, chain.is_some())?;
        self.timed(Part::Linear, || self.compute_beside_chain(room))?;
        let Some(Linked { kernel, partials }) = &*chain else {
            return backward_in_parts(self, outputs, inputs, shapes, store);
        };
        let ChainGradients { next, d_wide, mlp, narrow, workspace } = outputs;
        self.timed(Part::Linear, || {
            let mut partials = partials.lock().unwrap_or_else(PoisonError::into_inner);
            partials.rotate_left(1);
            let [mlp_partials, next_partials] = &mut partials[0];
            let layers = [inputs.projection, inputs.up, inputs.down];
            let layers = layers.into_iter().chain(inputs.next.as_ref().map(|next| next.qkv));
            let mut touched: Vec<u64> = layers.map(|w| w.product_addresses().start).collect();
            touched.extend([d_wide.address(), mlp.d_x.address(), narrow.address()]);
            touched.extend(next.as_ref().map(|next| next.d_x.address()));
            touched.extend([workspace.address(), mlp_partials.address(), next_partials.address()]);
            self.settle(&touched)?;
            let NormGradient { d_x, d_parameters } = mlp;
            let (next, d_next) = next.map(|next| (next.d_x, next.d_parameters)).unzip();
            let outputs = gpu_kernels::BackwardChainOutputs {
                next: next
                    .map(|d_x| gpu_kernels::NormGradient { d_x, partials: &mut *next_partials }),
                d_wide,
                mlp: gpu_kernels::NormGradient { d_x, partials: &mut *mlp_partials },
                d_attention: narrow,
                workspace,
            };
            kernel.queue(self.gpu(), outputs, kernel_inputs(inputs))?;
            let adds = store == Store::Add;
            if let Some(d_next) = d_next {
                self.postpone_sum(kernel.parameters(&d_next, next_partials, adds)?)?;
            }
            self.postpone_sum(kernel.parameters(&d_parameters, mlp_partials, adds)?)
        })
    }

    fn chain_attention_backward(
        &self,
        outputs: AttentionOutputs<'_, Self>,
        inputs: ProjectedInputs<'_, Self>,
        shapes: ChainShapes,
        is_linked: bool,
    ) -> Result<(), Error> {
        if self.backward_chain(shapes, is_linked)?.is_none() {
            return self.attention_backward_projected(outputs, inputs, shapes.attention);
        }
        let AttentionOutputs { d_qkv, d_out, workspace } = outputs;
        let ProjectedInputs { out, qkv, statistics, .. } = inputs;
        self.timed(Part::Attention, || {
            self.settle(&[d_qkv.address()])?;
            self.begin_sums()?;
            let attention = self.attention(shapes.attention)?;
            Ok(attention.backward_started(d_qkv, d_out, out, qkv, statistics, workspace)?)
        })
    }
}

fn kernel_sum<'a>(sum: NormedSum<'a, Cuda>) -> gpu_kernels::NormedSum<'a> {
    let NormedSum { x, out, statistics } = sum;
    gpu_kernels::NormedSum { x, out, statistics }
}

fn kernel_inputs<'a>(
    inputs: ChainGradientInputs<'a, Cuda>,
) -> gpu_kernels::BackwardChainInputs<'a> {
    let next = |next: NextBlock<'a, Cuda>| gpu_kernels::NextBlock {
        d_qkv: next.d_qkv,
        qkv: next.qkv,
        x: next.x,
        statistics: next.statistics,
        norm: next.norm.floats(),
    };
    gpu_kernels::BackwardChainInputs {
        next: inputs.next.map(next),
        d_residual: inputs.d_residual,
        down: inputs.down,
        wide: inputs.wide,
        up: inputs.up,
        x: inputs.x,
        statistics: inputs.statistics,
        mlp_norm: inputs.mlp_norm.floats(),
        projection: inputs.projection,
        attention_out: inputs.attention_out,
        attention_statistics: inputs.attention_statistics,
    }
}

/// Outputs along a side of what a block of such kernels has.
const TILE: usize = 64;

/// A backward chain of one shape.
pub(super) struct Linked {
    kernel: BackwardChain,
    /// Sums of blocks for both norms, the latest first.
    partials: Mutex<Vec<[Buffer<f32>; 2]>>,
}

impl Cuda {
    /// The forward chain of a shape, to a next block or not, if there is a kernel for it.
    pub(super) fn forward_chain(
        &self,
        shapes: ChainShapes,
        is_linked: bool,
    ) -> Result<Arc<Option<ForwardChain>>, Error> {
        let size = [shapes.down.rows, shapes.down.outputs];
        let make = || Ok(ForwardChain::new(self.gpu(), self.precision(), size, is_linked));
        self.inner.forward_chains.get((shapes, is_linked), |_| true, make)
    }

    /// How many multiprocessors the kernels of a chain leave idle backwards, if it is one, or, in tf32, if the beginnings of
    /// its branches are one kernel each, which have as many blocks.
    fn room_beside(&self, shapes: ChainShapes, is_one: bool) -> Result<Option<usize>, Error> {
        if !is_one
            && (self.precision() != Precision::Tf32 || self.branch_starts(shapes.up)?.is_none())
        {
            return Ok(None);
        }
        let multiprocessors = self.gpu().facts().multiprocessors as usize;
        let blocks = shapes.down.rows.div_ceil(TILE) * shapes.down.outputs.div_ceil(TILE);
        Ok(Some(multiprocessors.saturating_sub(blocks).max(1)))
    }

    /// The backward chain of a shape, from a next block or not, likewise.
    pub(super) fn backward_chain(
        &self,
        shapes: ChainShapes,
        is_linked: bool,
    ) -> Result<Arc<Option<Linked>>, Error> {
        let attention = self.attention(shapes.attention)?;
        let make = || {
            let Some(kernel) = BackwardChain::new(self.gpu(), &attention, is_linked) else {
                return Ok(None);
            };
            let length = BackwardChain::partials_length([shapes.down.rows, shapes.down.outputs]);
            let two = |_| Ok([self.gpu().zeros(length)?, self.gpu().zeros(length)?]);
            let partials: Result<_, gpu_kernels::Error> = (0..PARTIALS / 2).map(two).collect();
            Ok(Some(Linked { kernel, partials: Mutex::new(partials?) }))
        };
        self.inner.backward_chains.get((shapes, is_linked), |_| true, make)
    }
}
