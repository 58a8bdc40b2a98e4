//! The ends of a branch on CUDA: one kernel each where a device has it for the shape. The gradients of gain and
//! bias come in two stages, as those of `layernorm.rs` do.

use std::sync::{Arc, Mutex, PoisonError};

use gpu_kernels::{AttentionStart, BranchEnd, BranchStart, Buffer};

use super::Cuda;
use super::postponed::PARTIALS;
use crate::branch::{end_in_parts, projected_in_parts, start_in_parts};
use crate::ops::{
    AttentionOutputs, AttentionShape, Branch, BranchEndInputs, BranchEndOutputs, BranchStartInputs,
    BranchStartOutputs, LinearShape, ProjectedInputs, Store,
};
use crate::parts::Part;
use crate::{Error, Purpose};

impl Branch for Cuda {
    fn branch_plan(&self, [first, last]: [LinearShape; 2], purpose: Purpose) -> Result<(), Error> {
        self.branch_ends(last)?;
        if purpose.is_training() { self.branch_starts(first).map(drop) } else { Ok(()) }
    }

    fn branch_end(
        &self,
        outputs: BranchEndOutputs<'_, Self>,
        inputs: BranchEndInputs<'_, Self>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        let ends = self.branch_ends(shape)?;
        let Some(end) = &*ends else { return end_in_parts(self, outputs, inputs, shape) };
        self.timed(Part::Linear, || {
            let BranchEndOutputs { out, statistics, x, .. } = outputs;
            let BranchEndInputs { left, weight_bias, residual, gain_bias } = inputs;
            let weights = weight_bias.product_addresses().start;
            self.settle(&[out.address(), statistics.address(), x.address(), weights])?;
            let outputs = gpu_kernels::BranchEndOutputs { out, statistics, x };
            let gain_bias = gain_bias.floats();
            let inputs = gpu_kernels::BranchEndInputs { left, weight_bias, residual, gain_bias };
            Ok(end.forward(self.gpu(), outputs, inputs)?)
        })
    }

    fn attention_backward_projected(
        &self,
        outputs: AttentionOutputs<'_, Self>,
        inputs: ProjectedInputs<'_, Self>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        let start = self.attention_start(shape)?;
        let Some(start) = &*start else { return projected_in_parts(self, outputs, inputs, shape) };
        self.timed(Part::Attention, || {
            let AttentionOutputs { d_qkv, d_out, workspace } = outputs;
            let ProjectedInputs { d_y, weight_bias, out, qkv, statistics } = inputs;
            let weights = weight_bias.product_addresses().start;
            self.settle(&[d_qkv.address(), d_out.address(), workspace.address(), weights])?;
            let inputs = gpu_kernels::AttentionStartInputs { d_y, weight_bias, out, statistics };
            start.queue(self.gpu(), d_out, workspace, inputs)?;
            self.begin_sums()?;
            let attention = self.attention(shape)?;
            Ok(attention.backward_started(d_qkv, d_out, out, qkv, statistics, workspace)?)
        })
    }

    fn branch_start_backward(
        &self,
        outputs: BranchStartOutputs<'_, '_, Self>,
        inputs: BranchStartInputs<'_, Self>,
        shape: LinearShape,
        store: Store,
    ) -> Result<(), Error> {
        let starts = self.branch_starts(shape)?;
        let Some(Start { kernel, partials }) = &*starts else {
            return start_in_parts(self, outputs, inputs, shape, store);
        };
        self.timed(Part::Linear, || {
            let BranchStartOutputs { d_x, d_parameters, .. } = outputs;
            let BranchStartInputs { d_y, weight_bias, x, statistics, gain_bias, d_residual } =
                inputs;
            let mut partials = partials.lock().unwrap_or_else(PoisonError::into_inner);
            partials.rotate_left(1);
            let partials = &mut partials[0];
            let weights = weight_bias.product_addresses().start;
            self.settle(&[d_x.address(), partials.address(), weights])?;
            let gain_bias = gain_bias.floats();
            let inputs = gpu_kernels::BranchStartInputs {
                d_y,
                weight_bias,
                x,
                statistics,
                gain_bias,
                d_residual,
            };
            kernel.backward(self.gpu(), d_x, partials, inputs)?;
            self.postpone_sum(kernel.parameters(&d_parameters, partials, store == Store::Add)?)
        })
    }
}

/// The beginning of a branch of one shape.
pub(super) struct Start {
    kernel: BranchStart,
    /// Sums of blocks, the latest first.
    partials: Mutex<Vec<Buffer<f32>>>,
}

impl Cuda {
    /// The end of branches whose last layer has this shape, if there is a kernel for it.
    fn branch_ends(&self, shape: LinearShape) -> Result<Arc<Option<BranchEnd>>, Error> {
        let make = || Ok(BranchEnd::new(self.gpu(), self.precision(), kernel_shape(shape)));
        self.inner.branch_ends.get(shape, |_| true, make)
    }

    /// The beginning of branches whose first layer has this shape, likewise.
    pub(super) fn branch_starts(&self, shape: LinearShape) -> Result<Arc<Option<Start>>, Error> {
        let make = || {
            let shape = kernel_shape(shape);
            let Some(kernel) = BranchStart::new(self.gpu(), self.precision(), shape) else {
                return Ok(None);
            };
            let length = BranchStart::workspace_length(shape);
            let partials: Result<_, _> = (0..PARTIALS).map(|_| self.gpu().zeros(length)).collect();
            Ok(Some(Start { kernel, partials: Mutex::new(partials?) }))
        };
        self.inner.branch_starts.get(shape, |_| true, make)
    }
}

impl Cuda {
    /// The beginning of attention's backward pass, if there is a kernel for it.
    pub(super) fn attention_start(
        &self,
        shape: AttentionShape,
    ) -> Result<Arc<Option<AttentionStart>>, Error> {
        let attention = self.attention(shape)?;
        let make = || Ok(AttentionStart::new(self.gpu(), &attention));
        self.inner.attention_starts.get(shape, |_| true, make)
    }
}

fn kernel_shape(shape: LinearShape) -> gpu_kernels::LinearShape {
    let LinearShape { rows, inputs, outputs } = shape;
    gpu_kernels::LinearShape { rows, inputs, outputs }
}
