//! What lies between the attention of one block and that of the next: operations of other traits that follow
//! each other, and that a device may do as one. Public in [`ops`](crate::ops), where those operations are.

use crate::branch::{
    AttentionOutputs, Branch, BranchEndInputs, BranchEndOutputs, BranchStartInputs,
    BranchStartOutputs, ProjectedInputs,
};
use crate::ops::{AttentionShape, Device, LinearShape, Store};
use crate::{Error, Purpose};

/// From the output of attention to qkv of the next block, forward; from the gradient of the next block's qkv to that
/// of this one's, backward.
///
/// Each is by default one operation after the other. A device that has them as one rounds less.
pub trait Chain: Branch {
    /// Makes ready for chains of these shapes, after all other plans.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn chain_plan(&self, shapes: ChainShapes, purpose: Purpose) -> Result<(), Error> {
        let _ = (shapes, purpose);
        Ok(())
    }

    /// Writes the end of the attention branch, the feed-forward branch, and the first layer of the next block:
    ///
    /// ```text
    /// x1 = residual + (left W + b)        out1 = norm(x1)
    /// wide = out1 W + b                   activated = gelu(wide)
    /// x2 = x1 + (activated W + b)         out2 = norm(x2)
    /// qkv = out2 W + b
    /// ```
    ///
    /// What `product` holds afterwards is nobody's.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn chain_forward<'a>(
        &self,
        outputs: ChainOutputs<'a, Self>,
        inputs: ChainInputs<'a, Self>,
        shapes: ChainShapes,
    ) -> Result<(), Error> {
        forward_in_parts(self, outputs, inputs, shapes)
    }

    /// Goes back through the beginning of the next block and the feed-forward branch, as
    /// [`Branch::branch_start_backward`], [`Linear::linear_backward_input_gelu`](crate::ops::Linear::linear_backward_input_gelu)
    /// and the former again do one after the other. What `narrow` and `workspace` hold afterwards is for
    /// [`Chain::chain_attention_backward`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn chain_backward<'a>(
        &self,
        outputs: ChainGradients<'a, Self>,
        inputs: ChainGradientInputs<'a, Self>,
        shapes: ChainShapes,
        store: Store,
    ) -> Result<(), Error> {
        backward_in_parts(self, outputs, inputs, shapes, store)
    }

    /// [`Branch::attention_backward_projected`] right behind [`Chain::chain_backward`], to a next block or not: `d_y` is what
    /// that wrote last, `d_out` and `workspace` are its `narrow` and `workspace`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn chain_attention_backward(
        &self,
        outputs: AttentionOutputs<'_, Self>,
        inputs: ProjectedInputs<'_, Self>,
        shapes: ChainShapes,
        is_linked: bool,
    ) -> Result<(), Error> {
        let _ = is_linked;
        self.attention_backward_projected(outputs, inputs, shapes.attention)
    }
}

/// The shapes of what a chain is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainShapes {
    /// The first layer of the next block, and of this one.
    pub qkv: LinearShape,
    /// Attention of this block.
    pub attention: AttentionShape,
    /// The layer behind attention.
    pub projection: LinearShape,
    /// The first layer of the feed-forward branch.
    pub up: LinearShape,
    /// Its last one.
    pub down: LinearShape,
}

/// A residual sum and its LayerNorm.
pub struct NormedSum<'a, D: Device> {
    /// The residual sum, `[rows, C]`.
    pub x: &'a mut D::Activations,
    /// The output of the LayerNorm, `[rows, C]`.
    pub out: &'a mut D::Activations,
    /// Mean and 1 / deviation of each row of x, `[rows, 2]`.
    pub statistics: &'a mut D::Floats,
}

/// What [`Chain::chain_forward`] writes.
pub struct ChainOutputs<'a, D: Device> {
    /// The end of the attention branch.
    pub attention_end: NormedSum<'a, D>,
    /// The inside of the feed-forward branch, `[rows, 4 C]`.
    pub wide: &'a mut D::Activations,
    /// GELU of it.
    pub activated: &'a mut D::Activations,
    /// The end of the feed-forward branch.
    pub mlp_end: NormedSum<'a, D>,
    /// The first layer of the next block, if there is one, `[rows, 3 C]`.
    pub qkv: Option<&'a mut D::Activations>,
    /// Room for a layer's output, `[rows, C]`.
    pub product: &'a mut D::Activations,
}

/// What [`Chain::chain_forward`] reads.
pub struct ChainInputs<'a, D: Device + 'a> {
    /// The output of attention, `[rows, C]`.
    pub left: &'a D::Activations,
    /// The residual stream before attention, `[rows, C]`.
    pub residual: &'a D::Activations,
    /// The layer behind attention.
    pub projection: D::View<'a>,
    /// Gain and bias of the LayerNorm before the feed-forward branch.
    pub mlp_norm: D::View<'a>,
    /// The first layer of the feed-forward branch.
    pub up: D::View<'a>,
    /// Its last one.
    pub down: D::View<'a>,
    /// Gain and bias of the LayerNorm behind it.
    pub next_norm: D::View<'a>,
    /// The first layer of the next block, if there is one.
    pub qkv: Option<D::View<'a>>,
}

/// What is written at the beginning of a branch.
pub struct NormGradient<'a, D: Device + 'a> {
    /// Gradient of the residual stream before the branch, `[rows, C]`.
    pub d_x: &'a mut D::Activations,
    /// Gradients as [`LayerNorm::layernorm_backward`](crate::ops::LayerNorm::layernorm_backward) stores them.
    pub d_parameters: D::ViewMut<'a>,
}

/// What [`Chain::chain_backward`] writes.
pub struct ChainGradients<'a, D: Device> {
    /// The beginning of the next block, if there is one.
    pub next: Option<NormGradient<'a, D>>,
    /// Gradient of the inside of the feed-forward branch, `[rows, 4 C]`.
    pub d_wide: &'a mut D::Activations,
    /// The beginning of the feed-forward branch.
    pub mlp: NormGradient<'a, D>,
    /// Room for the gradient of a layer's input, `[rows, C]`.
    pub narrow: &'a mut D::Activations,
    /// Workspace of LayerNorm and of attention.
    pub workspace: &'a mut D::Floats,
}

/// What [`Chain::chain_backward`] reads at the beginning of the next block.
pub struct NextBlock<'a, D: Device + 'a> {
    /// Gradient of its qkv, `[rows, 3 C]`.
    pub d_qkv: &'a D::Activations,
    /// Its first layer.
    pub qkv: D::View<'a>,
    /// The input of its first LayerNorm, `[rows, C]`.
    pub x: &'a D::Activations,
    /// Mean and 1 / deviation of each of its rows.
    pub statistics: &'a D::Floats,
    /// Gain and bias of it.
    pub norm: D::View<'a>,
}

/// What [`Chain::chain_backward`] reads.
pub struct ChainGradientInputs<'a, D: Device> {
    /// The next block, if there is one.
    pub next: Option<NextBlock<'a, D>>,
    /// Gradient of the residual stream behind the next block's attention, or behind this block if it is the last,
    /// `[rows, C]`.
    pub d_residual: &'a D::Activations,
    /// The last layer of the feed-forward branch.
    pub down: D::View<'a>,
    /// The inside of the feed-forward branch, before GELU, `[rows, 4 C]`.
    pub wide: &'a D::Activations,
    /// The first layer of the feed-forward branch.
    pub up: D::View<'a>,
    /// The input of the LayerNorm before it, `[rows, C]`.
    pub x: &'a D::Activations,
    /// Mean and 1 / deviation of each of its rows.
    pub statistics: &'a D::Floats,
    /// Gain and bias of it.
    pub mlp_norm: D::View<'a>,
    /// The layer behind attention.
    pub projection: D::View<'a>,
    /// Output of attention, `[rows, C]`.
    pub attention_out: &'a D::Activations,
    /// As attention's forward pass wrote them.
    pub attention_statistics: &'a D::Floats,
}

/// [`Chain::chain_forward`], one operation after the other.
pub(crate) fn forward_in_parts<'a, D: Branch>(
    device: &D,
    outputs: ChainOutputs<'a, D>,
    inputs: ChainInputs<'a, D>,
    shapes: ChainShapes,
) -> Result<(), Error> {
    let ChainOutputs { attention_end, wide, activated, mlp_end, qkv, product } = outputs;
    let ChainInputs { left, residual, projection, mlp_norm, up, down, next_norm, .. } = inputs;
    let first = BranchEndOutputs {
        out: &mut *attention_end.out,
        statistics: attention_end.statistics,
        x: &mut *attention_end.x,
        product: &mut *product,
    };
    let end = BranchEndInputs { left, weight_bias: projection, residual, gain_bias: mlp_norm };
    device.branch_end(first, end, shapes.projection)?;
    device.linear_forward_gelu(&mut *activated, wide, &*attention_end.out, up, shapes.up)?;
    let NormedSum { x, out, statistics } = mlp_end;
    let second = BranchEndOutputs { out: &mut *out, statistics, x, product };
    let (left, residual) = (&*activated, &*attention_end.x);
    let end = BranchEndInputs { left, weight_bias: down, residual, gain_bias: next_norm };
    device.branch_end(second, end, shapes.down)?;
    match (qkv, inputs.qkv) {
        (Some(qkv), Some(layer)) => device.linear_forward(qkv, out, layer, shapes.qkv),
        _ => Ok(()),
    }
}

/// [`Chain::chain_backward`], one operation after the other.
pub(crate) fn backward_in_parts<'a, D: Branch>(
    device: &D,
    outputs: ChainGradients<'a, D>,
    inputs: ChainGradientInputs<'a, D>,
    shapes: ChainShapes,
    store: Store,
) -> Result<(), Error> {
    let ChainGradients { next, d_wide, mlp, narrow, workspace } = outputs;
    let d_residual = match (next, inputs.next) {
        (Some(outputs), Some(next)) => {
            let NormGradient { d_x, d_parameters } = outputs;
            let start = BranchStartInputs {
                d_y: next.d_qkv,
                weight_bias: next.qkv,
                x: next.x,
                statistics: next.statistics,
                gain_bias: next.norm,
                d_residual: inputs.d_residual,
            };
            let (product, workspace) = (&mut *narrow, &mut *workspace);
            let outputs = BranchStartOutputs { d_x: &mut *d_x, d_parameters, product, workspace };
            device.branch_start_backward(outputs, start, shapes.qkv, store)?;
            &*d_x
        }
        _ => inputs.d_residual,
    };
    let d_wide = &mut *d_wide;
    device.linear_backward_input_gelu(d_wide, d_residual, inputs.wide, inputs.down, shapes.down)?;
    let NormGradient { d_x, d_parameters } = mlp;
    let start = BranchStartInputs {
        d_y: &*d_wide,
        weight_bias: inputs.up,
        x: inputs.x,
        statistics: inputs.statistics,
        gain_bias: inputs.mlp_norm,
        d_residual,
    };
    let outputs = BranchStartOutputs { d_x, d_parameters, product: narrow, workspace };
    device.branch_start_backward(outputs, start, shapes.up, store)
}
