//! Attention on CUDA.

use std::sync::Arc;

use gpu_kernels::{Activations, Buffer};

use super::Cuda;
use crate::Error;
use crate::ops::{Attention, AttentionInputs, AttentionShape};
use crate::parts::Part;

impl Attention for Cuda {
    fn attention_plan(&self, shape: AttentionShape) -> Result<(), Error> {
        self.attention_start(shape).map(drop)
    }

    fn attention_workspace_length(&self, shape: AttentionShape) -> usize {
        gpu_kernels::Attention::workspace_length(kernel_shape(shape))
    }

    fn attention_forward(
        &self,
        out: &mut Activations,
        statistics: &mut Buffer<f32>,
        qkv: &Activations,
        workspace: &mut Buffer<f32>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        self.timed(Part::Attention, || {
            let mut touched = self.updated_last();
            touched.extend([out.address(), statistics.address()]);
            self.settle(&touched)?;
            Ok(self.attention(shape)?.forward(out, statistics, qkv, workspace)?)
        })
    }

    fn attention_backward(
        &self,
        d_qkv: &mut Activations,
        forward: AttentionInputs<'_, Self>,
        workspace: &mut Buffer<f32>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        self.timed(Part::Attention, || {
            let AttentionInputs { d_out, out, qkv, statistics } = forward;
            self.settle(&[d_qkv.address(), workspace.address()])?;
            self.begin_sums()?;
            Ok(self.attention(shape)?.backward(d_qkv, d_out, out, qkv, statistics, workspace)?)
        })
    }
}

impl Cuda {
    pub(super) fn attention(
        &self,
        shape: AttentionShape,
    ) -> Result<Arc<gpu_kernels::Attention>, Error> {
        let make =
            || gpu_kernels::Attention::new(self.gpu(), self.precision(), kernel_shape(shape));
        self.inner.attentions.get(shape, |_| true, make)
    }
}

fn kernel_shape(shape: AttentionShape) -> gpu_kernels::AttentionShape {
    let AttentionShape { batch, time, heads, head_size } = shape;
    gpu_kernels::AttentionShape { batch, time, heads, head_size }
}
