//! The backward pass from one attention to the one before, where every block has buffers of its own.

use super::{Backward, first_norm, training, with_bias, with_bias_before, without_bias};
use crate::Error;
use crate::activations::{BackwardMemory, DeviceMemory};
use crate::ops::{
    AttentionOutputs, BranchStartInputs, BranchStartOutputs, ChainGradientInputs, ChainGradients,
    NextBlock, NormGradient, Operations, ProjectedInputs,
};
use crate::params::LayerRanges;
use std::ops::Range;

impl<D: Operations> Backward<'_, D> {
    /// Through all blocks.
    pub(super) fn linked(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
    ) -> Result<(), Error> {
        let layers = &self.network.ranges.layers;
        for (index, ranges) in layers.iter().enumerate().rev() {
            let next = layers.get(index + 1);
            self.chain(memory, gradients, (index, ranges, next))?;
            self.delay_of(index);
            self.parameters_behind_attention(memory, gradients, (index, ranges))?;
            self.attention(memory, (index, ranges, next.is_some()))?;
            if self.exchanges && next.is_some() {
                self.network.exchange(self.device, gradients, Some(index + 1))?;
            }
            self.qkv_parameters(memory, gradients, (index, ranges))?;
        }
        self.beginning(memory, gradients)
    }

    /// From qkv of the next block, or from behind the last one, to attention of this one.
    fn chain(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
        (index, ranges, next): (usize, &LayerRanges, Option<&LayerRanges>),
    ) -> Result<(), Error> {
        let device = self.device;
        let BackwardMemory { residuals, narrow, wides } = training(&mut memory.backward);
        let (here, behind) = residuals.split_at_mut(2 * index + 2);
        let (wides, next_wides) = wides.split_at_mut(2 * index + 2);
        let d_wide = &mut wides[2 * index + 1];
        let norm = with_bias_before(&ranges.mlp_norm);
        let (d_norm, next_gradient, next_block, d_residual) = match (next, behind, next_wides) {
            (Some(next), [d_x, behind, ..], [d_qkv, ..]) => {
                let norms = [norm, first_norm(next, index + 1)];
                let [d_norm, d_parameters] = device.two_views_mut(gradients, norms);
                let block = NextBlock {
                    d_qkv: &*d_qkv,
                    qkv: self.view(&next.qkv),
                    x: &memory.residuals[2 * index + 2],
                    statistics: &memory.layers[index + 1].attention_norm_statistics,
                    norm: self.view(&next.attention_norm),
                };
                (d_norm, Some(NormGradient { d_x, d_parameters }), Some(block), &*behind)
            }
            (_, behind, _) => (device.view_mut(gradients, norm), None, None, &behind[0]),
        };
        let layer = &memory.layers[index];
        let outputs = ChainGradients {
            next: next_gradient,
            d_wide,
            mlp: NormGradient { d_x: &mut here[2 * index + 1], d_parameters: d_norm },
            narrow,
            workspace: &mut memory.workspace,
        };
        let inputs = ChainGradientInputs {
            next: next_block,
            d_residual,
            down: self.view(&ranges.mlp_down),
            wide: &layer.mlp_up,
            up: self.view(&ranges.mlp_up),
            x: &memory.residuals[2 * index + 1],
            statistics: &layer.mlp_norm_statistics,
            mlp_norm: self.view(&ranges.mlp_norm),
            projection: self.view(&ranges.attention_projection),
            attention_out: &memory.inputs[index].attention_out,
            attention_statistics: &layer.attention_statistics,
        };
        device.chain_backward(outputs, inputs, self.network.shapes.chain(), self.store)
    }

    /// Through the attention of a block.
    fn attention(
        &self,
        memory: &mut DeviceMemory<D>,
        (index, ranges, is_linked): (usize, &LayerRanges, bool),
    ) -> Result<(), Error> {
        let BackwardMemory { residuals, narrow, wides } = training(&mut memory.backward);
        let (d_qkv, workspace) = (&mut wides[2 * index], &mut memory.workspace);
        let outputs = AttentionOutputs { d_qkv, d_out: narrow, workspace };
        let inputs = ProjectedInputs {
            d_y: &residuals[2 * index + 1],
            weight_bias: self.view(&ranges.attention_projection),
            out: &memory.inputs[index].attention_out,
            qkv: &memory.layers[index].qkv,
            statistics: &memory.layers[index].attention_statistics,
        };
        let shapes = self.network.shapes.chain();
        self.device.chain_attention_backward(outputs, inputs, shapes, is_linked)
    }

    /// The gradients of the parameters of a block's linear layers behind its attention.
    fn parameters_behind_attention(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
        (index, ranges): (usize, &LayerRanges),
    ) -> Result<(), Error> {
        let (device, shapes, inputs) = (self.device, &self.network.shapes, &memory.inputs[index]);
        let BackwardMemory { residuals, wides, .. } = training(&mut memory.backward);
        let (with_bias, without) = (with_bias(self.store), without_bias(self.store));
        let mut layer = |range: &Range<usize>, d_y, x, shape, stores| {
            let d_layer = device.view_mut(gradients, range.clone());
            device.linear_backward_parameters(d_layer, d_y, x, shape, stores)
        };
        let behind = &residuals[2 * index + 2];
        layer(&ranges.mlp_down, behind, &inputs.mlp_activated, shapes.mlp_down, without)?;
        let wide = &wides[2 * index + 1];
        layer(&ranges.mlp_up, wide, &inputs.mlp_normed, shapes.mlp_up, with_bias)?;
        let (within, shape) = (&residuals[2 * index + 1], shapes.attention_projection);
        layer(&ranges.attention_projection, within, &inputs.attention_out, shape, without)
    }

    /// Those of the layer before it.
    fn qkv_parameters(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
        (index, ranges): (usize, &LayerRanges),
    ) -> Result<(), Error> {
        let d_qkv = &training(&mut memory.backward).wides[2 * index];
        let d_layer = self.device.view_mut(gradients, ranges.qkv.clone());
        let (x, shape) = (&memory.inputs[index].attention_normed, self.network.shapes.qkv);
        self.device.linear_backward_parameters(d_layer, d_qkv, x, shape, with_bias(self.store))
    }

    /// The beginning of the first block.
    fn beginning(
        &self,
        memory: &mut DeviceMemory<D>,
        gradients: &mut D::Floats,
    ) -> Result<(), Error> {
        let Some(ranges) = self.network.ranges.layers.first() else { return Ok(()) };
        let BackwardMemory { residuals, narrow, wides } = training(&mut memory.backward);
        let [before, behind, ..] = &mut residuals[..] else { unreachable!("two of a block") };
        let outputs = BranchStartOutputs {
            d_x: before,
            d_parameters: self.device.view_mut(gradients, first_norm(ranges, 0)),
            product: narrow,
            workspace: &mut memory.workspace,
        };
        let start = BranchStartInputs {
            d_y: &wides[0],
            weight_bias: self.view(&ranges.qkv),
            x: &memory.residuals[0],
            statistics: &memory.layers[0].attention_norm_statistics,
            gain_bias: self.view(&ranges.attention_norm),
            d_residual: &*behind,
        };
        self.device.branch_start_backward(outputs, start, self.network.shapes.qkv, self.store)
    }

    fn view(&self, range: &Range<usize>) -> D::View<'_> {
        self.device.view(self.parameters, range.clone())
    }
}
