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

mod block;
mod linked;

use std::ops::Range;

use crate::Error;
use crate::activations::{BackwardMemory, DeviceMemory, LayerInputs, LayerMemory, Shapes};
use crate::chain::forward_in_parts;
use crate::ops::{
    BranchEndInputs, BranchEndOutputs, ChainInputs, ChainOutputs, LayerNormInputs, LinearStores,
    LossInputs, LossOutputs, NormedSum, Operations, Store,
};
use crate::params::{LayerRanges, ParameterRanges};

/// A backward pass through all blocks.
struct Backward<'a, D: Operations> {
    network: &'a Network,
    device: &'a D,
    parameters: &'a D::Floats,
    store: Store,
    exchanges: bool,
}

impl<D: Operations> Backward<'_, D> {
    /// Has the gradients of the first block's weights wait for the sum of the tables, if ranks add up.
    fn delay_of(&self, index: usize) {
        if self.exchanges && index == 0 {
            self.device.delay_parameters(true);
        }
    }
}

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

    /// Everything up to the final LayerNorm.
    pub fn forward<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
    ) -> Result<(), Error> {
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
        let (qkv, normed) = (&mut memory.layers[0].qkv, &memory.inputs[0].attention_normed);
        device.linear_forward(qkv, normed, view(&ranges.layers[0].qkv), shapes.qkv)?;
        (0..ranges.layers.len()).try_for_each(|index| {
            self.attention(device, memory, index)?;
            self.chain(device, memory, parameters, index)
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
            &mut memory.logits,
            self.shapes.loss,
        )
    }

    /// Token losses and the gradients of the head, after [`Network::forward`] on training memory.
    pub fn loss_backward<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        store: Store,
    ) -> Result<(), Error> {
        let table = &self.ranges.table;
        let outputs = LossOutputs {
            losses: &mut memory.losses,
            d_x: &mut training(&mut memory.backward).narrow,
            d_table: device.view_mut(gradients, table.clone()),
        };
        let inputs = LossInputs {
            x: &memory.final_normed,
            table: device.view(parameters, table.clone()),
            targets: &memory.targets,
            scale: &memory.loss_scale,
        };
        let workspace = &mut memory.logits;
        device.loss_forward_backward(outputs, inputs, workspace, self.shapes.loss, store)
    }

    /// All other gradients, after [`Network::loss_backward`]. With `exchanges` every piece of
    /// the gradients is added up over ranks as soon as it is finished.
    pub fn backward<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        gradients: &mut D::Floats,
        (store, exchanges): (Store, bool),
    ) -> Result<(), Error> {
        let (shapes, ranges) = (&self.shapes, &self.ranges);
        let backward = training(&mut memory.backward);
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
        let layers = ranges.layers.len();
        let pass = Backward { network: self, device, parameters, store, exchanges };
        // Where all is kept, a chain goes from one attention to the one before.
        if memory.keeps_all(layers) {
            pass.linked(memory, gradients)?;
        } else {
            pass.block_by_block(memory, gradients)?;
        }
        let d_out = &training(&mut memory.backward).residuals[0];
        let tables = [ranges.table.clone(), ranges.positions.clone()];
        let d_tables = device.two_views_mut(gradients, tables);
        let tokens = (&memory.tokens, &memory.token_order);
        device.embedding_backward(d_tables, d_out, tokens, shapes.embedding, store)?;
        if exchanges {
            self.exchange(device, gradients, None)?;
            device.delay_parameters(false);
        }
        Ok(())
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

    /// The attention of a block.
    fn attention<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        index: usize,
    ) -> Result<(), Error> {
        let (layer, inputs) = (turn(&mut memory.layers, index), turn(&mut memory.inputs, index));
        device.attention_forward(
            &mut inputs.attention_out,
            &mut layer.attention_statistics,
            &layer.qkv,
            &mut memory.workspace,
            self.shapes.attention,
        )
    }

    /// From the attention of a block to that of the next, or to the final LayerNorm.
    fn chain<D: Operations>(
        &self,
        device: &D,
        memory: &mut DeviceMemory<D>,
        parameters: &D::Floats,
        index: usize,
    ) -> Result<(), Error> {
        let recomputes = memory.recomputes(self.ranges.layers.len());
        let view = |range: &Range<usize>| device.view(parameters, range.clone());
        let (ranges, next) = (&self.ranges.layers[index], self.ranges.layers.get(index + 1));
        let kept = memory.residuals.len();
        let places = [2 * index, 2 * index + 1, 2 * index + 2].map(|place| place % kept);
        let [residual, x1, x2] = memory
            .residuals
            .get_disjoint_mut(places)
            .expect("there are at least three residual buffers");
        let (layer, next_statistics, next_qkv) = layer_and_next(&mut memory.layers, index);
        let (inputs, next_normed) = inputs_and_next(&mut memory.inputs, index);
        let mlp_end = match next {
            Some(_) => NormedSum { x: x2, out: next_normed, statistics: next_statistics },
            None => NormedSum {
                x: x2,
                out: &mut memory.final_normed,
                statistics: &mut memory.final_statistics,
            },
        };
        let LayerParts { mlp_norm_statistics, mlp_up } = layer;
        let (out, statistics) = (inputs.mlp_normed, mlp_norm_statistics);
        let outputs = ChainOutputs {
            attention_end: NormedSum { x: x1, out, statistics },
            wide: mlp_up,
            activated: inputs.mlp_activated,
            mlp_end,
            qkv: next.is_some().then_some(next_qkv),
            product: &mut memory.branch,
        };
        let next_norm = next.map_or(&self.ranges.final_norm, |next| &next.attention_norm);
        let inputs = ChainInputs {
            left: inputs.attention_out,
            residual,
            projection: view(&ranges.attention_projection),
            mlp_norm: view(&ranges.mlp_norm),
            up: view(&ranges.mlp_up),
            down: view(&ranges.mlp_down),
            next_norm: view(next_norm),
            qkv: next.map(|next| view(&next.qkv)),
        };
        // What is computed once more is so in parts.
        match recomputes {
            true => forward_in_parts(device, outputs, inputs, self.shapes.chain()),
            false => device.chain_forward(outputs, inputs, self.shapes.chain()),
        }
    }

    /// The activations of a block once more, all that its backward pass wants, from the residual stream before
    /// it.
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

        let (shapes, ranges) = (&self.shapes, &self.ranges.layers[index]);
        let view = |range: &Range<usize>| device.view(parameters, range.clone());
        let (layer, inputs) = (turn(&mut memory.layers, index), turn(&mut memory.inputs, index));
        let qkv = view(&ranges.qkv);
        device.linear_forward(&mut layer.qkv, &inputs.attention_normed, qkv, shapes.qkv)?;
        self.attention(device, memory, index)?;

        let (layer, inputs) = (turn(&mut memory.layers, index), turn(&mut memory.inputs, index));
        let (residual, x) = two_of(&mut memory.residuals, [2 * index, 2 * index + 1]);
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
        device.linear_forward_gelu(activated, wide, &inputs.mlp_normed, up, shapes.mlp_up)
    }
}

/// A LayerNorm's gain and bias with the bias before them: that of the layer whose output was added
/// to the residual stream last.
fn with_bias_before(norm: &Range<usize>) -> Range<usize> {
    norm.start - norm.len() / 2..norm.end
}

/// The gradients that the LayerNorm before a block's attention finishes.
fn first_norm(ranges: &LayerRanges, index: usize) -> Range<usize> {
    match index {
        // Before the first block there are the tables.
        0 => ranges.attention_norm.clone(),
        _ => with_bias_before(&ranges.attention_norm),
    }
}

fn with_bias(store: Store) -> LinearStores {
    LinearStores { weight: store, bias: Some(store) }
}

/// For a layer that ends a branch: the gradient of its bias is the residual stream's, summed up.
fn without_bias(store: Store) -> LinearStores {
    LinearStores { weight: store, bias: None }
}

/// What a chain writes of a block's memory.
struct LayerParts<'a, F, A> {
    mlp_norm_statistics: &'a mut F,
    mlp_up: &'a mut A,
}

/// Of a block what its chain writes, and of the next the statistics of its first LayerNorm and qkv. Where all
/// blocks share one's buffers, these are parts of the same.
fn layer_and_next<F, A>(
    layers: &mut [LayerMemory<F, A>],
    index: usize,
) -> (LayerParts<'_, F, A>, &mut F, &mut A) {
    let kept = layers.len();
    let (here, there) = match layers {
        [only] => {
            let parts = LayerParts {
                mlp_norm_statistics: &mut only.mlp_norm_statistics,
                mlp_up: &mut only.mlp_up,
            };
            return (parts, &mut only.attention_norm_statistics, &mut only.qkv);
        }
        _ => two_of(layers, [index % kept, (index + 1) % kept]),
    };
    let parts =
        LayerParts { mlp_norm_statistics: &mut here.mlp_norm_statistics, mlp_up: &mut here.mlp_up };
    (parts, &mut there.attention_norm_statistics, &mut there.qkv)
}

/// What a chain reads and writes of the inputs of a block's layers.
struct InputParts<'a, A> {
    attention_out: &'a A,
    mlp_normed: &'a mut A,
    mlp_activated: &'a mut A,
}

/// Likewise of the inputs of layers, and the next block's first.
fn inputs_and_next<A>(inputs: &mut [LayerInputs<A>], index: usize) -> (InputParts<'_, A>, &mut A) {
    let kept = inputs.len();
    let (here, next) = match inputs {
        [only] => {
            let LayerInputs { attention_normed, attention_out, mlp_normed, mlp_activated } = only;
            let parts = InputParts { attention_out: &*attention_out, mlp_normed, mlp_activated };
            return (parts, attention_normed);
        }
        _ => two_of(inputs, [index % kept, (index + 1) % kept]),
    };
    let LayerInputs { attention_out, mlp_normed, mlp_activated, .. } = here;
    let parts = InputParts { attention_out: &*attention_out, mlp_normed, mlp_activated };
    (parts, &mut next.attention_normed)
}

/// Two buffers of several, one after the other.
fn two_of<T>(all: &mut [T], places: [usize; 2]) -> (&mut T, &mut T) {
    let [first, second] =
        all.get_disjoint_mut(places).expect("two blocks in a row have buffers of their own");
    (first, second)
}

/// Buffer number `index`, where there may be fewer that are used in turn.
fn turn<A>(buffers: &mut [A], index: usize) -> &mut A {
    let kept = buffers.len();
    &mut buffers[index % kept]
}

fn training<A>(backward: &mut Option<BackwardMemory<A>>) -> &mut BackwardMemory<A> {
    backward.as_mut().expect("`Gpt` runs a backward pass on training memory only")
}
