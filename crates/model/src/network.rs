//! The network: which operations run in which order, forward and backward, for every device.
//!
//! A block adds two branches to the residual stream x, and each branch begins with a LayerNorm:
//!
//! ```text
//! x = x + projection(attention(qkv(norm(x))))
//! x = x + down(gelu(up(norm(x))))
//! ```
//!
//! The sum is fused with the norm that follows it, which is the next branch's, the next block's, or
//! the final one. So a block here runs from its first normalised input to the output of its second
//! branch, and the residual stream is kept once before each norm.

use std::ops::Range;

use crate::Error;
use crate::activations::{BackwardMemory, DeviceMemory, LayerInputs, Shapes};
use crate::ops::{
    AttentionOutputs, BranchEndInputs, BranchEndOutputs, BranchStartInputs, BranchStartOutputs,
    LayerNormInputs, LinearStores, LossInputs, LossOutputs, Operations, ProjectedInputs, Store,
};
use crate::params::{LayerRanges, ParameterRanges};

/// Shapes, and where the parameters lie.
pub(crate) struct Network {
    pub shapes: Shapes,
    pub ranges: ParameterRanges,
    /// What the backward pass has finished behind which block; see `Layout::finished_pieces`.
    pub pieces: Vec<(Option<usize>, Range<usize>)>,
    /// The ranks that want the sum of a part of the gradients each; all want all where there are none.
    pub owners: Vec<Range<usize>>,
}

impl Network {
    /// Brings the device's other form of the parameters up to date, unless somebody else does.
    pub fn prepare<D: Operations>(
        &self,
        device: &D,
        parameters: &D::Floats,
        is_prepared: bool,
    ) -> Result<(), Error> {
        if is_prepared {
            return Ok(());
        }
        device.prepare_parameters(parameters, &self.ranges.in_order)
    }

    /// What the backward pass wants to know of the tokens.
    pub fn order<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
    ) -> Result<(), Error> {
        device.embedding_order(&mut memory.token_order, &memory.tokens, self.shapes.embedding)
    }

    /// Everything up to the final LayerNorm. `beside` is asked behind the attention of each block, by its number, for
    /// work that shall go on beside the linear layers that follow.
    pub fn forward<D: Operations, E: From<Error>>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        mut beside: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let (shapes, ranges) = (&self.shapes, &self.ranges);
        let view = |range: &Range<usize>| device.view(parameters, range.clone());
        device.embedding_forward(
            &mut memory.residuals[0],
            &memory.tokens,
            view(&ranges.table),
            view(&ranges.positions),
            shapes.embedding,
        )?;
        let first = &mut memory.layers[0].attention_norm_statistics;
        device.layernorm_forward(
            &mut memory.inputs[0].attention_normed,
            first,
            &memory.residuals[0],
            view(&ranges.layers[0].attention_norm),
            shapes.layernorm,
        )?;
        (0..ranges.layers.len()).try_for_each(|index| {
            self.block_inside(device, memory, parameters, index, || beside(index))?;
            Ok(self.block_end(device, memory, parameters, index)?)
        })
    }

    /// Token losses, without gradients.
    pub fn loss<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
    ) -> Result<(), Error> {
        device.loss_forward(
            &mut memory.losses,
            &memory.final_normed,
            device.view(parameters, self.ranges.table.clone()),
            &memory.targets,
            &mut memory.workspace,
            self.shapes.loss,
        )
    }

    /// Token losses and all gradients, after [`Network::forward`] on training memory; stores the sum of losses as the
    /// `total` likewise, if there is one. With `exchanges` every piece of the gradients is added up over ranks as soon as it is
    /// finished.
    pub fn backward<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        total: Option<&mut D::Sums>,
        (store, exchanges): (Store, bool),
    ) -> Result<(), Error> {
        // Whoever works on parameters beside the forward pass may read the gradients that are overwritten here.
        device.settle_beside()?;
        let (shapes, ranges) = (&self.shapes, &self.ranges);
        let backward = training(&mut memory.backward);
        let outputs = LossOutputs {
            losses: &mut memory.losses,
            d_x: &mut backward.narrow,
            d_table: device.view_mut(gradients, ranges.table.clone()),
        };
        let inputs = LossInputs {
            x: &memory.final_normed,
            table: device.view(parameters, ranges.table.clone()),
            targets: &memory.targets,
            scale: &memory.loss_scale,
        };
        device.loss_forward_backward(outputs, inputs, &mut memory.workspace, shapes.loss, store)?;
        if let Some(sums) = total {
            device.total_aside(sums, &memory.losses, shapes.loss.rows, store)?;
        }

        let last = LayerNormInputs {
            d_out: &backward.narrow,
            x: &memory.residuals[2 * ranges.layers.len()],
            statistics: &memory.final_statistics,
            gain_bias: device.view(parameters, ranges.final_norm.clone()),
            d_residual: None,
        };
        let kept = backward.residuals.len();
        device.layernorm_backward(
            &mut backward.residuals[2 * ranges.layers.len() % kept],
            device.view_mut(gradients, with_bias_before(&ranges.final_norm)),
            last,
            &mut memory.workspace,
            shapes.layernorm,
            store,
        )?;
        for (index, ranges) in ranges.layers.iter().enumerate().rev() {
            let block = BlockBackward { device, shapes, ranges, index, parameters, store };
            // The last block's are still there.
            let layers = self.ranges.layers.len();
            let is_kept = memory.layers.len() == layers || index + 1 == layers;
            if !is_kept {
                self.block_again(device, memory, parameters, index)?;
            }
            block.mlp(memory, gradients)?;
            block.attention(memory, gradients)?;
            if exchanges {
                self.exchange(device, gradients, Some(index))?;
            }
        }
        let d_residual = &training(&mut memory.backward).residuals[0];
        let d_table = device.view_mut(gradients, ranges.table.clone());
        let (tokens, order) = (&memory.tokens, &memory.token_order);
        device.embedding_backward_table(d_table, d_residual, tokens, order, shapes.embedding)?;
        let d_positions = device.view_mut(gradients, ranges.positions.clone());
        device.embedding_backward_positions(d_positions, d_residual, shapes.embedding, store)?;
        if exchanges { self.exchange(device, gradients, None) } else { Ok(()) }
    }

    /// Adds up over ranks what is finished behind a block.
    fn exchange<D: Operations>(
        &self,
        device: &D,
        gradients: &mut D::Floats,
        behind: Option<usize>,
    ) -> Result<(), Error> {
        let mut finished = self.pieces.iter().filter(|(block, _)| *block == behind);
        finished.try_for_each(|(_, piece)| self.exchange_piece(device, gradients, piece))
    }

    /// Adds up a piece of the gradients over ranks, for those that want it.
    pub fn exchange_piece<D: Operations>(
        &self,
        device: &D,
        gradients: &mut D::Floats,
        piece: &Range<usize>,
    ) -> Result<(), Error> {
        if self.owners.is_empty() {
            return device.exchange(gradients, piece.clone());
        }
        let within = |own: &Range<usize>| own.start.max(piece.start)..own.end.min(piece.end);
        let parts = self.owners.iter().map(within).enumerate();
        let parts: Vec<_> = parts.filter(|(_, part)| !part.is_empty()).collect();
        device.exchange_parts(gradients, &parts)
    }

    /// The end of a block: the last layer of its second branch, the residual sum, and the LayerNorm of the next
    /// block, or the final one.
    fn block_end<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        index: usize,
    ) -> Result<(), Error> {
        let (ranges, next) = (&self.ranges, index + 1);
        let view = |range: &Range<usize>| device.view(parameters, range.clone());
        let (residual, x) = step(&mut memory.residuals, 2 * next);
        let kept = memory.inputs.len();
        let (left, out, statistics, norm) = match ranges.layers.get(next) {
            Some(ranges) => {
                let (left, out) = branch_inputs(&mut memory.inputs, index, next);
                let statistics = &mut turn(&mut memory.layers, next).attention_norm_statistics;
                (left, out, statistics, &ranges.attention_norm)
            }
            None => (
                &memory.inputs[index % kept].mlp_activated,
                &mut memory.final_normed,
                &mut memory.final_statistics,
                &ranges.final_norm,
            ),
        };
        let outputs = BranchEndOutputs { out, statistics, x, product: &mut memory.branch };
        let weight_bias = view(&ranges.layers[index].mlp_down);
        let inputs = BranchEndInputs { left, weight_bias, residual, gain_bias: view(norm) };
        device.branch_end(outputs, inputs, self.shapes.mlp_down)
    }

    /// The activations of a block once more, from the residual stream before it.
    fn block_again<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        index: usize,
    ) -> Result<(), Error> {
        let out = &mut turn(&mut memory.inputs, index).attention_normed;
        let statistics = &mut memory.layers[0].attention_norm_statistics;
        let norm = device.view(parameters, self.ranges.layers[index].attention_norm.clone());
        let x = &memory.residuals[2 * index];
        device.layernorm_forward(out, statistics, x, norm, self.shapes.layernorm)?;
        self.block_inside(device, memory, parameters, index, || Ok(()))
    }

    /// One block, from its first normalised input to what its last product reads: all that its backward pass
    /// wants. `between` comes behind its attention.
    fn block_inside<D: Operations, E: From<Error>>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        index: usize,
        between: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let (shapes, ranges) = (&self.shapes, &self.ranges.layers[index]);
        let view = |range: &Range<usize>| device.view(parameters, range.clone());
        let (layer, inputs) = (turn(&mut memory.layers, index), turn(&mut memory.inputs, index));

        let qkv = view(&ranges.qkv);
        device.linear_forward(&mut layer.qkv, &inputs.attention_normed, qkv, shapes.qkv)?;
        device.attention_forward(
            &mut inputs.attention_out,
            &mut layer.attention_statistics,
            &layer.qkv,
            &mut memory.workspace,
            shapes.attention,
        )?;
        between()?;
        let (residual, x) = step(&mut memory.residuals, 2 * index + 1);
        let outputs = BranchEndOutputs {
            out: &mut inputs.mlp_normed,
            statistics: &mut layer.mlp_norm_statistics,
            x,
            product: &mut memory.branch,
        };
        let end = BranchEndInputs {
            left: &inputs.attention_out,
            weight_bias: view(&ranges.attention_projection),
            residual,
            gain_bias: view(&ranges.mlp_norm),
        };
        device.branch_end(outputs, end, shapes.attention_projection)?;

        let (activated, wide) = (&mut inputs.mlp_activated, &mut layer.mlp_up);
        let up = view(&ranges.mlp_up);
        Ok(device.linear_forward_gelu(activated, wide, &inputs.mlp_normed, up, shapes.mlp_up)?)
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

        let range = match self.index {
            // Before the first block there are the tables.
            0 => ranges.attention_norm.clone(),
            _ => with_bias_before(&ranges.attention_norm),
        };
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
        LinearStores { weight: self.store, bias: Some(self.store) }
    }

    /// For a layer that ends a branch: the gradient of its bias is the residual stream's, summed up.
    fn without_bias(&self) -> LinearStores {
        LinearStores { weight: self.store, bias: None }
    }
}

/// A LayerNorm's gain and bias with the bias before them: that of the layer whose output was added
/// to the residual stream last.
fn with_bias_before(norm: &Range<usize>) -> Range<usize> {
    norm.start - norm.len() / 2..norm.end
}

/// The residual stream at a place and, to be written, at the next one, `index`. Memory for
/// evaluation has only two of them and uses them in turn.
fn step<A>(residuals: &mut [A], index: usize) -> (&A, &mut A) {
    let kept = residuals.len();
    let [before, here] = residuals
        .get_disjoint_mut([(index - 1) % kept, index % kept])
        .expect("there are at least two residual buffers");
    (before, here)
}

/// The gradient of the residual stream behind a place and, to be written, at that place, `index`.
fn step_back<A>(residuals: &mut [A], index: usize) -> (&A, &mut A) {
    let kept = residuals.len();
    let [behind, here] = residuals
        .get_disjoint_mut([(index + 1) % kept, index % kept])
        .expect("there are at least two gradients of the residual stream");
    (behind, here)
}

/// What the last layer of block `index` reads and, to be written, the first input of block `next`. Where
/// all blocks share one's buffers, these are two of the same.
fn branch_inputs<A>(inputs: &mut [LayerInputs<A>], index: usize, next: usize) -> (&A, &mut A) {
    let kept = inputs.len();
    if kept == 1 {
        let inputs = &mut inputs[0];
        return (&inputs.mlp_activated, &mut inputs.attention_normed);
    }
    let [here, there] = inputs
        .get_disjoint_mut([index % kept, next % kept])
        .expect("two blocks in a row have buffers of their own");
    (&here.mlp_activated, &mut there.attention_normed)
}

/// Buffer number `index`, where there may be fewer that are used in turn.
fn turn<A>(buffers: &mut [A], index: usize) -> &mut A {
    let kept = buffers.len();
    &mut buffers[index % kept]
}

fn training<A>(backward: &mut Option<BackwardMemory<A>>) -> &mut BackwardMemory<A> {
    backward.as_mut().expect("`Gpt` runs a backward pass on training memory only")
}
