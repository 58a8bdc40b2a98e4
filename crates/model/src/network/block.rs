//! The backward pass block by block, where the blocks share buffers of gradients or of activations.

use super::{Backward, first_norm, training, turn, with_bias, with_bias_before, without_bias};
use crate::Error;
use crate::activations::{BackwardMemory, DeviceMemory, Shapes};
use crate::ops::{
    AttentionOutputs, BranchStartInputs, BranchStartOutputs, LinearStores, Operations,
    ProjectedInputs, Store,
};
use crate::params::LayerRanges;
use std::ops::Range;

impl<D: Operations> Backward<'_, D> {
    /// Through all blocks.
    pub(super) fn block_by_block(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
    ) -> Result<(), Error> {
        let Backward { network, device, parameters, store, exchanges } = *self;
        let layers = network.ranges.layers.len();
        for (index, ranges) in network.ranges.layers.iter().enumerate().rev() {
            let block =
                BlockBackward { device, shapes: &network.shapes, ranges, index, parameters, store };
            // The last block's are still there.
            let is_kept = memory.layers.len() == layers || index + 1 == layers;
            if !is_kept {
                network.block_again(device, memory, parameters, index)?;
            }
            self.delay_of(index);
            block.mlp(memory, gradients)?;
            block.attention(memory, gradients)?;
            if exchanges {
                network.exchange(device, gradients, Some(index))?;
            }
        }
        Ok(())
    }
}

/// The backward pass of one block. The gradient of the residual stream passes through unchanged,
/// and each branch adds to it. There is one gradient for each place that the residual stream is kept
/// at, or two of them are used in turn; and likewise of the wide gradients.
struct BlockBackward<'a, D: Operations> {
    device: &'a D,
    shapes: &'a Shapes,
    ranges: &'a LayerRanges,
    index: usize,
    parameters: &'a D::Floats,
    store: Store,
}

impl<'a, D: Operations> BlockBackward<'a, D> {
    fn mlp(&self, memory: &mut DeviceMemory<D>, gradients: &mut D::Floats) -> Result<(), Error> {
        let Self { device, shapes, ranges, store, .. } = *self;
        let layer = &memory.layers[self.index % memory.layers.len()];
        let inputs = &memory.inputs[self.index % memory.inputs.len()];
        let BackwardMemory { residuals, narrow, wides } = training(&mut memory.backward);
        let (residual, before) = step_back(residuals, 2 * self.index + 1);
        let wide = turn(wides, 2 * self.index + 1);

        let d_down = device.view_mut(gradients, ranges.mlp_down.clone());
        let (shape, x) = (shapes.mlp_down, &inputs.mlp_activated);
        device.linear_backward_parameters(d_down, residual, x, shape, self.without_bias())?;
        let down = self.view(&ranges.mlp_down);
        device.linear_backward_input_gelu(wide, residual, &layer.mlp_up, down, shape)?;

        let d_up = device.view_mut(gradients, ranges.mlp_up.clone());
        let (shape, x) = (shapes.mlp_up, &inputs.mlp_normed);
        device.linear_backward_parameters(d_up, wide, x, shape, self.with_bias())?;

        let d_parameters = device.view_mut(gradients, with_bias_before(&ranges.mlp_norm));
        let workspace = &mut memory.workspace;
        let outputs = BranchStartOutputs { d_x: before, d_parameters, product: narrow, workspace };
        let start = BranchStartInputs {
            d_y: &*wide,
            weight_bias: self.view(&ranges.mlp_up),
            x: &memory.residuals[2 * self.index + 1],
            statistics: &layer.mlp_norm_statistics,
            gain_bias: self.view(&ranges.mlp_norm),
            d_residual: residual,
        };
        device.branch_start_backward(outputs, start, shape, store)
    }

    fn attention(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
    ) -> Result<(), Error> {
        let Self { device, shapes, ranges, store, .. } = *self;
        let layer = &memory.layers[self.index % memory.layers.len()];
        let inputs = &memory.inputs[self.index % memory.inputs.len()];
        let BackwardMemory { residuals, narrow, wides } = training(&mut memory.backward);
        let (residual, before) = step_back(residuals, 2 * self.index);
        let wide = turn(wides, 2 * self.index);
        let workspace = &mut memory.workspace;

        let projection = &ranges.attention_projection;
        let d_projection = device.view_mut(gradients, projection.clone());
        let (shape, x) = (shapes.attention_projection, &inputs.attention_out);
        device.linear_backward_parameters(d_projection, residual, x, shape, self.without_bias())?;

        let outputs = AttentionOutputs { d_qkv: wide, d_out: narrow, workspace };
        let projected = ProjectedInputs {
            d_y: residual,
            weight_bias: self.view(projection),
            out: &inputs.attention_out,
            qkv: &layer.qkv,
            statistics: &layer.attention_statistics,
        };
        device.attention_backward_projected(outputs, projected, shapes.attention)?;

        let d_qkv = device.view_mut(gradients, ranges.qkv.clone());
        let (shape, x) = (shapes.qkv, &inputs.attention_normed);
        device.linear_backward_parameters(d_qkv, wide, x, shape, self.with_bias())?;

        let range = first_norm(ranges, self.index);
        let d_parameters = device.view_mut(gradients, range);
        let outputs = BranchStartOutputs { d_x: before, d_parameters, product: narrow, workspace };
        let start = BranchStartInputs {
            d_y: &*wide,
            weight_bias: self.view(&ranges.qkv),
            x: &memory.residuals[2 * self.index],
            statistics: &layer.attention_norm_statistics,
            gain_bias: self.view(&ranges.attention_norm),
            d_residual: residual,
        };
        device.branch_start_backward(outputs, start, shape, store)
    }

    fn view(&self, range: &Range<usize>) -> D::View<'_> {
        self.device.view(self.parameters, range.clone())
    }

    fn with_bias(&self) -> LinearStores {
        with_bias(self.store)
    }

    fn without_bias(&self) -> LinearStores {
        without_bias(self.store)
    }
}

/// The gradient of the residual stream behind a place and, to be written, at that place, `index`.
fn step_back<A>(residuals: &mut [A], index: usize) -> (&A, &mut A) {
    let kept = residuals.len();
    let [behind, here] = residuals
        .get_disjoint_mut([(index + 1) % kept, index % kept])
        .expect("there are at least two gradients of the residual stream");
    (behind, here)
}
