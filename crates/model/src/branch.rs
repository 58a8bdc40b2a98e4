//! The two ends of a branch of a block: operations of other traits that follow each other, and that a device
//! may do as one. Public in [`ops`](crate::ops), where those operations are.

use crate::ops::{
    Attention, AttentionInputs, AttentionShape, Device, LayerNorm, LayerNormInputs, LayerNormShape,
    Linear, LinearShape, Store,
};
use crate::{Error, Purpose};

/// The last linear layer of a branch with the residual sum and the LayerNorm after it, and on the way back
/// the first linear layer of a branch with the LayerNorm and the residual sum before it.
///
/// Each is by default one operation after the other. A device that has both as one rounds less.
pub trait Branch: Linear + LayerNorm + Attention + Sized {
    /// Makes ready for branches that end with a layer of shape `last` or begin with one of shape `first`,
    /// after the plans of layers and LayerNorm.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn branch_plan(&self, [first, last]: [LinearShape; 2], purpose: Purpose) -> Result<(), Error> {
        let _ = (first, last, purpose);
        Ok(())
    }

    /// Writes the residual sum `x = residual + (left W + b)`, and everything that
    /// [`LayerNorm::layernorm_forward`] writes for it. What `product` holds afterwards is nobody's.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn branch_end(
        &self,
        outputs: BranchEndOutputs<'_, Self>,
        inputs: BranchEndInputs<'_, Self>,
        shape: LinearShape,
    ) -> Result<(), Error> {
        end_in_parts(self, outputs, inputs, shape)
    }

    /// Writes `d_qkv` as [`Attention::attention_backward`] does, of attention whose output has the gradient
    /// `d_y W^T`. What `d_out` holds afterwards is nobody's.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn attention_backward_projected(
        &self,
        outputs: AttentionOutputs<'_, Self>,
        inputs: ProjectedInputs<'_, Self>,
        shape: AttentionShape,
    ) -> Result<(), Error> {
        projected_in_parts(self, outputs, inputs, shape)
    }

    /// Writes `d_x` and stores `d_parameters` as [`LayerNorm::layernorm_backward`] does, of a LayerNorm whose
    /// output has the gradient `d_y W^T`. What `product` holds afterwards is nobody's.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn branch_start_backward(
        &self,
        outputs: BranchStartOutputs<'_, '_, Self>,
        inputs: BranchStartInputs<'_, Self>,
        shape: LinearShape,
        store: Store,
    ) -> Result<(), Error> {
        start_in_parts(self, outputs, inputs, shape, store)
    }
}

/// What [`Branch::attention_backward_projected`] writes.
pub struct AttentionOutputs<'a, D: Device> {
    /// Gradient of qkv, `[B T, 3 C]`.
    pub d_qkv: &'a mut D::Activations,
    /// Room for the gradient of attention's output, `[B T, C]`.
    pub d_out: &'a mut D::Activations,
    /// Workspace of attention.
    pub workspace: &'a mut D::Floats,
}

/// What [`Branch::attention_backward_projected`] reads.
pub struct ProjectedInputs<'a, D: Device + 'a> {
    /// Gradient of the layer's output, `[B T, C]`.
    pub d_y: &'a D::Activations,
    /// The layer behind attention, of C by C.
    pub weight_bias: D::View<'a>,
    /// Output of attention, `[B T, C]`.
    pub out: &'a D::Activations,
    /// Input of attention, `[B T, 3 C]`.
    pub qkv: &'a D::Activations,
    /// As attention's forward pass wrote them.
    pub statistics: &'a D::Floats,
}

/// What [`Branch::branch_end`] writes.
pub struct BranchEndOutputs<'a, D: Device> {
    /// The output of the LayerNorm, `[rows, C]`.
    pub out: &'a mut D::Activations,
    /// Mean and 1 / deviation of each row of x, `[rows, 2]`.
    pub statistics: &'a mut D::Floats,
    /// The residual sum, `[rows, C]`.
    pub x: &'a mut D::Activations,
    /// Room for the layer's output, `[rows, C]`.
    pub product: &'a mut D::Activations,
}

/// What [`Branch::branch_end`] reads.
pub struct BranchEndInputs<'a, D: Device + 'a> {
    /// The input of the linear layer, `[rows, inputs]`.
    pub left: &'a D::Activations,
    /// The linear layer.
    pub weight_bias: D::View<'a>,
    /// What its output is added to, `[rows, C]`.
    pub residual: &'a D::Activations,
    /// Gain and bias of the LayerNorm, C each.
    pub gain_bias: D::View<'a>,
}

/// What [`Branch::branch_start_backward`] writes.
pub struct BranchStartOutputs<'a, 'b, D: Device + 'b> {
    /// Gradient of the residual stream before the branch, `[rows, C]`.
    pub d_x: &'a mut D::Activations,
    /// Gradients as [`LayerNorm::layernorm_backward`] stores them.
    pub d_parameters: D::ViewMut<'b>,
    /// Room for the gradient of the layer's input, `[rows, C]`.
    pub product: &'a mut D::Activations,
    /// Workspace of the LayerNorm.
    pub workspace: &'a mut D::Floats,
}

/// What [`Branch::branch_start_backward`] reads.
pub struct BranchStartInputs<'a, D: Device + 'a> {
    /// Gradient of the linear layer's output, `[rows, outputs]`.
    pub d_y: &'a D::Activations,
    /// The linear layer.
    pub weight_bias: D::View<'a>,
    /// The input of the LayerNorm, `[rows, C]`.
    pub x: &'a D::Activations,
    /// Mean and 1 / deviation of each of its rows, `[rows, 2]`.
    pub statistics: &'a D::Floats,
    /// Gain and bias of the LayerNorm, C each.
    pub gain_bias: D::View<'a>,
    /// Gradient of the residual stream behind the branch, `[rows, C]`.
    pub d_residual: &'a D::Activations,
}

/// [`Branch::branch_end`], one operation after the other.
pub(crate) fn end_in_parts<D: Linear + LayerNorm>(
    device: &D,
    outputs: BranchEndOutputs<'_, D>,
    inputs: BranchEndInputs<'_, D>,
    shape: LinearShape,
) -> Result<(), Error> {
    let BranchEndOutputs { out, statistics, x, product } = outputs;
    let BranchEndInputs { left, weight_bias, residual, gain_bias } = inputs;
    device.linear_forward(product, left, weight_bias, shape)?;
    let rows = LayerNormShape { rows: shape.rows, channels: shape.outputs };
    device.layernorm_forward_residual(out, statistics, x, [residual, product], gain_bias, rows)
}

/// [`Branch::branch_start_backward`], one operation after the other.
pub(crate) fn start_in_parts<D: Linear + LayerNorm>(
    device: &D,
    outputs: BranchStartOutputs<'_, '_, D>,
    inputs: BranchStartInputs<'_, D>,
    shape: LinearShape,
    store: Store,
) -> Result<(), Error> {
    let BranchStartOutputs { d_x, d_parameters, product, workspace } = outputs;
    let BranchStartInputs { d_y, weight_bias, x, statistics, gain_bias, d_residual } = inputs;
    device.linear_backward_input(product, d_y, weight_bias, shape)?;
    let (d_out, d_residual) = (&*product, Some(d_residual));
    let forward = LayerNormInputs { d_out, x, statistics, gain_bias, d_residual };
    let rows = LayerNormShape { rows: shape.rows, channels: shape.inputs };
    device.layernorm_backward(d_x, d_parameters, forward, workspace, rows, store)
}

/// [`Branch::attention_backward_projected`], one operation after the other.
pub(crate) fn projected_in_parts<D: Linear + Attention>(
    device: &D,
    outputs: AttentionOutputs<'_, D>,
    inputs: ProjectedInputs<'_, D>,
    shape: AttentionShape,
) -> Result<(), Error> {
    let AttentionOutputs { d_qkv, d_out, workspace } = outputs;
    let ProjectedInputs { d_y, weight_bias, out, qkv, statistics } = inputs;
    let (rows, channels) = (shape.batch * shape.time, shape.heads * shape.head_size);
    let layer = LinearShape { rows, inputs: channels, outputs: channels };
    device.linear_backward_input(d_out, d_y, weight_bias, layer)?;
    let forward = AttentionInputs { d_out: &*d_out, out, qkv, statistics };
    device.attention_backward(d_qkv, forward, workspace, shape)
}
