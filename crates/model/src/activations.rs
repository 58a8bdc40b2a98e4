//! The memory of one pass, planned once. The same text lists it by name and bytes, for a plan that
//! is shown before a run, and allocates it, so that the two cannot drift apart.
//!
//! A training pass keeps what the backward pass reads, layer by layer. An evaluation pass, and a training
//! pass that recomputes, give all layers the buffers of one. The buffers of the backward pass itself serve every layer in turn.

use crate::ops::{
    AttentionShape, ChainShapes, Device, EmbeddingShape, GeluPlace, LayerNormShape, LinearShape,
    LossShape, Operations,
};
use crate::{Batch, Config, Error, Purpose};

/// What a pass will take in memory, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of the parameters.
    pub parameter_bytes: u64,
    /// Bytes of the gradients, 0 for evaluation.
    pub gradient_bytes: u64,
    /// Everything else.
    pub buffers: Vec<PlannedBuffer>,
}

impl Plan {
    /// Plans a pass without allocating it.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyBatch`], [`Error::WindowTooLong`], or [`Error::TooLarge`].
    pub fn new<D: Operations>(
        device: &D,
        config: Config,
        batch: Batch,
        purpose: Purpose,
    ) -> Result<Self, Error> {
        let shapes = Shapes::new(config, batch)?;
        let mut listing = Listing { device, buffers: Vec::new() };
        let _: Memory<(), (), ()> =
            Memory::build(&mut listing, &shapes, Lengths::new(device, &shapes, purpose), purpose)?;
        let parameter_bytes = config.parameters() as u64 * device.float_bytes() as u64;
        Ok(Self {
            parameter_bytes,
            gradient_bytes: if purpose.is_training() { parameter_bytes } else { 0 },
            buffers: listing.buffers,
        })
    }

    /// Bytes of everything but parameters and gradients.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of everything.
    pub fn total_bytes(&self) -> u64 {
        self.parameter_bytes + self.gradient_bytes + self.buffer_bytes()
    }
}

/// One buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// What it holds, such as `h.0.mlp.c_fc`.
    pub name: String,
    /// Its elements.
    pub elements: usize,
    /// Its bytes on the device that it was planned for.
    pub bytes: u64,
}

/// The shape of every operation in a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub config: Config,
    pub batch: Batch,
    pub embedding: EmbeddingShape,
    pub layernorm: LayerNormShape,
    pub qkv: LinearShape,
    pub attention: AttentionShape,
    pub attention_projection: LinearShape,
    pub mlp_up: LinearShape,
    pub mlp_down: LinearShape,
    pub loss: LossShape,
}

impl Shapes {
    /// Shapes of a pass over B windows of T tokens.
    pub fn new(config: Config, batch: Batch) -> Result<Self, Error> {
        let Batch { rows: windows, time } = batch;
        let (channels, vocabulary, context) =
            (config.channels(), config.vocabulary(), config.context());
        if windows == 0 || time == 0 {
            return Err(Error::EmptyBatch { rows: windows, time });
        }
        if time > context {
            return Err(Error::WindowTooLong { time, context });
        }
        // A token keeps fewer than 32 C values a layer, in at most 8 bytes each; what holds for
        // their sum holds for each buffer.
        let bytes = [time, channels, config.layers() + 1, 32 * size_of::<f64>()]
            .into_iter()
            .try_fold(windows, usize::checked_mul);
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::TooLarge { what: "the activations" });
        }
        let rows = batch.tokens();
        let linear = |inputs, outputs| LinearShape {
            rows,
            inputs: inputs * channels,
            outputs: outputs * channels,
        };
        Ok(Self {
            config,
            batch,
            embedding: EmbeddingShape { batch: windows, time, channels, vocabulary, context },
            layernorm: LayerNormShape { rows, channels },
            qkv: linear(1, 3),
            attention: AttentionShape {
                batch: windows,
                time,
                heads: config.heads(),
                head_size: config.head_size(),
            },
            attention_projection: linear(1, 1),
            mlp_up: linear(1, 4),
            mlp_down: linear(4, 1),
            loss: LossShape { rows, channels, vocabulary },
        })
    }

    /// Shapes of what lies between two attentions.
    pub fn chain(&self) -> ChainShapes {
        ChainShapes {
            qkv: self.qkv,
            attention: self.attention,
            projection: self.attention_projection,
            up: self.mlp_up,
            down: self.mlp_down,
        }
    }

    /// Elements of the widest activation, the inside of the feed-forward branch.
    pub fn wide_elements(&self) -> usize {
        self.mlp_up.rows * self.mlp_up.outputs
    }
}

/// The buffers of one pass, over the three buffer types of a device.
pub(crate) struct Memory<F, A, K> {
    pub tokens: K,
    pub targets: K,
    /// What the gradient of the token table wants to know of the tokens.
    pub token_order: F,
    pub loss_scale: F,
    /// The residual stream before each LayerNorm: 2 L + 1 for training, three in turn otherwise.
    pub residuals: Vec<A>,
    /// One per layer for training that keeps them, one in all otherwise.
    pub layers: Vec<LayerMemory<F, A>>,
    /// Likewise, but of all layers where gradients of parameters are computed for all together.
    pub inputs: Vec<LayerInputs<A>>,
    /// The output of a branch, before it is added to the residual stream.
    pub branch: A,
    pub final_normed: A,
    pub final_statistics: F,
    pub losses: F,
    /// Logits of a run of rows, or whatever else the head works on.
    pub logits: F,
    pub workspace: F,
    pub backward: Option<BackwardMemory<A>>,
}

/// The memory of a pass on a device.
pub(crate) type DeviceMemory<D> =
    Memory<<D as Device>::Floats, <D as Device>::Activations, <D as Device>::Tokens>;

/// What one block keeps beside the inputs of its linear layers.
pub(crate) struct LayerMemory<F, A> {
    pub attention_norm_statistics: F,
    pub qkv: A,
    pub attention_statistics: F,
    pub mlp_norm_statistics: F,
    pub mlp_up: A,
}

/// The inputs of the linear layers of one block.
pub(crate) struct LayerInputs<A> {
    pub attention_normed: A,
    pub attention_out: A,
    pub mlp_normed: A,
    pub mlp_activated: A,
}

/// Gradients of activations.
pub(crate) struct BackwardMemory<A> {
    /// Of the residual stream, `[B T, C]`: 2 L + 1 where gradients of parameters are computed for all layers
    /// together, else two in turn.
    pub residuals: Vec<A>,
    /// Of a LayerNorm's output or of attention's, `[B T, C]`.
    pub narrow: A,
    /// Of qkv or of the inside of the feed-forward branch, `[B T, 3 C]` or `[B T, 4 C]`: 2 L of them
    /// likewise, else one.
    pub wides: Vec<A>,
}

impl<F, A, K> Memory<F, A, K> {
    /// Whether a backward pass computes the activations of blocks once more, of `layers`.
    pub fn recomputes(&self, layers: usize) -> bool {
        self.backward.is_some() && self.layers.len() < layers
    }

    /// Whether all blocks, of `layers`, have buffers of their own on both ways.
    pub fn keeps_all(&self, layers: usize) -> bool {
        let has_wides = |backward: &BackwardMemory<A>| backward.wides.len() == 2 * layers;
        self.layers.len() == layers && self.backward.as_ref().is_some_and(has_wides)
    }

    fn build<M>(
        maker: &mut M,
        shapes: &Shapes,
        lengths: Lengths,
        purpose: Purpose,
    ) -> Result<Self, Error>
    where
        M: Maker<Floats = F, Activations = A, Tokens = K>,
    {
        let rows = shapes.batch.tokens();
        let narrow = rows * shapes.config.channels();
        let layers = shapes.config.layers();
        let (kept_layers, kept_residuals) = match purpose {
            Purpose::Training => (layers, 2 * layers + 1),
            Purpose::TrainingRecomputed => (1, 2 * layers + 1),
            Purpose::Evaluation => (1, 3),
        };
        // Together, the gradients of parameters are computed from the inputs of all layers.
        let joins_layers = purpose.is_training() && lengths.joins_layers;
        let kept_inputs = if joins_layers { layers } else { kept_layers };
        Ok(Self {
            tokens: maker.tokens("tokens", rows)?,
            targets: maker.tokens("targets", rows)?,
            token_order: maker.floats("tokens.order", lengths.token_order)?,
            loss_scale: maker.floats("loss_scale", 1)?,
            residuals: (0..kept_residuals)
                .map(|index| maker.activations(&format!("residual.{index}"), narrow))
                .collect::<Result<_, _>>()?,
            layers: (0..kept_layers)
                .map(|layer| LayerMemory::build(maker, shapes, layer))
                .collect::<Result<_, _>>()?,
            inputs: LayerInputs::build(maker, shapes, kept_inputs)?,
            branch: maker.activations("branch", narrow)?,
            final_normed: maker.activations("ln_f", narrow)?,
            final_statistics: maker.floats("ln_f.statistics", 2 * rows)?,
            losses: maker.floats("losses", rows)?,
            logits: maker.floats("logits", lengths.logits)?,
            workspace: maker.floats("workspace", lengths.workspace)?,
            backward: match purpose.of_operations() {
                Purpose::Training => {
                    let (residuals, wides) =
                        if lengths.joins_layers { (2 * layers + 1, 2 * layers) } else { (2, 1) };
                    let numbered = |name: &str, count: usize| -> Vec<String> {
                        (0..count).map(|index| format!("{name}.{index}")).collect()
                    };
                    let residuals = numbered("gradient.residual", residuals);
                    let wides = numbered("gradient.wide", wides);
                    Some(BackwardMemory {
                        residuals: maker.side_by_side(&residuals, narrow)?,
                        narrow: maker.activations("gradient.narrow", narrow)?,
                        wides: maker.side_by_side(&wides, shapes.wide_elements())?,
                    })
                }
                _ => None,
            },
        })
    }
}

impl<A> LayerInputs<A> {
    /// Of `count` layers, whose buffers of one kind lie side by side, so that an operation can take them
    /// together.
    fn build<M>(maker: &mut M, shapes: &Shapes, count: usize) -> Result<Vec<Self>, Error>
    where
        M: Maker<Activations = A>,
    {
        let narrow = shapes.batch.tokens() * shapes.config.channels();
        let mut of_layers = |part: &str, length| {
            let names: Vec<String> = (0..count).map(|layer| format!("h.{layer}.{part}")).collect();
            maker.side_by_side(&names, length)
        };
        let attention_normed = of_layers("ln_1", narrow)?;
        let attention_out = of_layers("attn", narrow)?;
        let mlp_normed = of_layers("ln_2", narrow)?;
        let mlp_activated = of_layers("mlp.gelu", shapes.wide_elements())?;
        let norms = attention_normed.into_iter().zip(mlp_normed);
        let outs = attention_out.into_iter().zip(mlp_activated);
        let inputs = norms.zip(outs).map(
            |((attention_normed, mlp_normed), (attention_out, mlp_activated))| LayerInputs {
                attention_normed,
                attention_out,
                mlp_normed,
                mlp_activated,
            },
        );
        Ok(inputs.collect())
    }
}

impl<F, A> LayerMemory<F, A> {
    fn build<M>(maker: &mut M, shapes: &Shapes, layer: usize) -> Result<Self, Error>
    where
        M: Maker<Floats = F, Activations = A>,
    {
        let rows = shapes.batch.tokens();
        let narrow = rows * shapes.config.channels();
        let wide = shapes.wide_elements();
        let name = |part: &str| format!("h.{layer}.{part}");
        Ok(Self {
            attention_norm_statistics: maker.floats(&name("ln_1.statistics"), 2 * rows)?,
            qkv: maker.activations(&name("attn.c_attn"), 3 * narrow)?,
            attention_statistics: maker
                .floats(&name("attn.statistics"), 2 * rows * shapes.config.heads())?,
            mlp_norm_statistics: maker.floats(&name("ln_2.statistics"), 2 * rows)?,
            mlp_up: maker.activations(&name("mlp.c_fc"), wide)?,
        })
    }
}

/// Allocates the memory of a pass.
pub(crate) fn allocate<D: Operations>(
    device: &D,
    shapes: &Shapes,
    purpose: Purpose,
) -> Result<DeviceMemory<D>, Error> {
    let lengths = Lengths::new(device, shapes, purpose);
    Memory::build(&mut Allocating { device }, shapes, lengths, purpose)
}

/// What a device decides: lengths, and whether gradients of all layers are kept.
#[derive(Clone, Copy)]
struct Lengths {
    token_order: usize,
    logits: usize,
    workspace: usize,
    joins_layers: bool,
}

impl Lengths {
    fn new<D: Operations>(device: &D, shapes: &Shapes, purpose: Purpose) -> Self {
        let order = device.embedding_order_length(shapes.embedding);
        // Operations run one after the other, so the largest need is enough for all but the head, whose last product may
        // still be under way when others begin.
        let workspace = device
            .layernorm_workspace_length(shapes.layernorm)
            .max(device.attention_workspace_length(shapes.attention));
        Self {
            token_order: if purpose.is_training() { order } else { 0 },
            logits: device.loss_workspace_length(shapes.loss),
            workspace,
            joins_layers: device.linear_joins_layers(shapes.mlp_up),
        }
    }
}

/// Makes a device ready for the operations of a pass.
pub(crate) fn plan_operations<D: Operations>(
    device: &D,
    shapes: &Shapes,
    purpose: Purpose,
) -> Result<(), Error> {
    let purpose = purpose.of_operations();
    device.embedding_plan(shapes.embedding)?;
    device.layernorm_plan(shapes.layernorm)?;
    let layers = match device.linear_joins_layers(shapes.mlp_up) {
        true => shapes.config.layers(),
        false => 1,
    };
    device.linear_plan(shapes.qkv, None, purpose, layers)?;
    device.linear_plan(shapes.attention_projection, None, purpose, layers)?;
    device.linear_plan(shapes.mlp_up, Some(GeluPlace::After), purpose, layers)?;
    device.linear_plan(shapes.mlp_down, Some(GeluPlace::Before), purpose, layers)?;
    for branch in [[shapes.qkv, shapes.attention_projection], [shapes.mlp_up, shapes.mlp_down]] {
        device.branch_plan(branch, purpose)?;
    }
    device.attention_plan(shapes.attention)?;
    device.chain_plan(shapes.chain(), purpose)?;
    device.loss_plan(shapes.loss, purpose)
}

/// Makes buffers, or makes believe.
trait Maker {
    type Floats;
    type Activations;
    type Tokens;
    fn floats(&mut self, name: &str, length: usize) -> Result<Self::Floats, Error>;
    fn activations(&mut self, name: &str, length: usize) -> Result<Self::Activations, Error>;
    /// One for each name, where one operation can take them all.
    fn side_by_side(
        &mut self,
        names: &[String],
        length: usize,
    ) -> Result<Vec<Self::Activations>, Error>;
    fn tokens(&mut self, name: &str, length: usize) -> Result<Self::Tokens, Error>;
}

struct Allocating<'a, D> {
    device: &'a D,
}

impl<D: Device> Maker for Allocating<'_, D> {
    type Floats = D::Floats;
    type Activations = D::Activations;
    type Tokens = D::Tokens;

    fn floats(&mut self, _: &str, length: usize) -> Result<D::Floats, Error> {
        self.device.floats(length)
    }

    fn activations(&mut self, _: &str, length: usize) -> Result<D::Activations, Error> {
        self.device.activations(length)
    }

    fn side_by_side(
        &mut self,
        names: &[String],
        length: usize,
    ) -> Result<Vec<D::Activations>, Error> {
        self.device.activations_side_by_side(length, names.len())
    }

    fn tokens(&mut self, _: &str, length: usize) -> Result<D::Tokens, Error> {
        self.device.tokens(length)
    }
}

struct Listing<'a, D> {
    device: &'a D,
    buffers: Vec<PlannedBuffer>,
}

impl<D> Listing<'_, D> {
    fn push(&mut self, name: &str, elements: usize, element_bytes: usize) {
        let bytes = elements as u64 * element_bytes as u64;
        self.buffers.push(PlannedBuffer { name: name.to_owned(), elements, bytes });
    }
}

impl<D: Device> Maker for Listing<'_, D> {
    type Floats = ();
    type Activations = ();
    type Tokens = ();

    fn floats(&mut self, name: &str, length: usize) -> Result<(), Error> {
        self.push(name, length, self.device.float_bytes());
        Ok(())
    }

    fn activations(&mut self, name: &str, length: usize) -> Result<(), Error> {
        self.push(name, length, self.device.activation_bytes());
        Ok(())
    }

    fn side_by_side(&mut self, names: &[String], length: usize) -> Result<Vec<()>, Error> {
        names.iter().map(|name| self.activations(name, length)).collect()
    }

    fn tokens(&mut self, name: &str, length: usize) -> Result<(), Error> {
        self.push(name, length, size_of::<u32>());
        Ok(())
    }
}
