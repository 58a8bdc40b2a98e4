//! Generation: the network one token at a time, with the keys and values of earlier tokens kept.
//! Which token comes next is the caller's choice; this file stops at the logits.

use std::ops::Range;

use crate::activations::{Shapes, plan_operations};
use crate::ops::{AttentionShape, DecodeCache, Device, Operations};
use crate::params::{LayerRanges, ParameterRanges};
use crate::{Batch, Config, Error, Layout, Purpose};

/// A network on a device with a key/value cache, for one text at a time.
///
/// Its logits differ from those of [`Gpt`](crate::Gpt) by rounding only: the sums run in another
/// order.
pub struct Decoder<D: Operations> {
    device: D,
    layout: Layout,
    ranges: ParameterRanges,
    shapes: Shapes,
    /// The token and its position.
    place: D::Tokens,
    caches: Vec<LayerCache<D>>,
    rows: Rows<D>,
    recording: D::Recording,
    logits: Vec<f32>,
    position: usize,
}

struct LayerCache<D: Device> {
    keys: D::Activations,
    values: D::Activations,
}

/// The activations of the one token.
struct Rows<D: Device> {
    residual: D::Activations,
    sum: D::Activations,
    normed: D::Activations,
    statistics: D::Floats,
    qkv: D::Activations,
    attention_out: D::Activations,
    branch: D::Activations,
    wide: D::Activations,
    activated: D::Activations,
    logits: D::Floats,
    workspace: D::Floats,
}

impl<D: Operations> Decoder<D> {
    /// Takes the cache, two buffers of `[context, C]` a layer, and all other memory from the device.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] or [`Error::OutOfMemory`].
    pub fn new(device: D, config: Config) -> Result<Self, Error> {
        // One token, one window.
        let shapes = Shapes::new(config, Batch { rows: 1, time: 1 })?;
        plan_operations(&device, &shapes, Purpose::Evaluation)?;
        device.decode_plan(cached_attention(config))?;
        let layout = Layout::new(config);
        let channels = config.channels();
        let row = |multiple: usize| device.activations(multiple * channels);
        let cache = || -> Result<LayerCache<D>, Error> {
            Ok(LayerCache { keys: row(config.context())?, values: row(config.context())? })
        };
        let workspace = device.decode_workspace_length(cached_attention(config));
        Ok(Self {
            ranges: layout.ranges(),
            place: device.tokens(2)?,
            caches: (0..config.layers()).map(|_| cache()).collect::<Result<_, _>>()?,
            rows: Rows {
                residual: row(1)?,
                sum: row(1)?,
                normed: row(1)?,
                statistics: device.floats(2)?,
                qkv: row(3)?,
                attention_out: row(1)?,
                branch: row(1)?,
                wide: row(4)?,
                activated: row(4)?,
                logits: device.floats(config.vocabulary())?,
                workspace: device.floats(workspace)?,
            },
            recording: D::Recording::default(),
            logits: vec![0.0; config.vocabulary()],
            position: 0,
            device,
            layout,
            shapes,
        })
    }

    /// The shape of the network.
    pub fn config(&self) -> Config {
        self.shapes.config
    }

    /// Tokens fed since the start or the last reset.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets the text so far.
    pub fn reset(&mut self) {
        self.position = 0;
    }

    /// Feeds one token and returns the V logits of the next.
    ///
    /// # Errors
    ///
    /// [`Error::ContextFull`], [`Error::TokenOutOfRange`] or [`Error::Length`], all of which leave
    /// the decoder as it was, and those of the device.
    pub fn step(&mut self, parameters: &D::Floats, token: u32) -> Result<&[f32], Error> {
        self.layout.check_length("parameters", self.device.length(parameters))?;
        let config = self.config();
        let (context, vocabulary) = (config.context(), config.vocabulary());
        if self.position >= context {
            return Err(Error::ContextFull { context });
        }
        if token as usize >= vocabulary {
            let position = self.position;
            return Err(Error::TokenOutOfRange {
                what: "token",
                position,
                found: token,
                vocabulary,
            });
        }
        let position =
            u32::try_from(self.position).map_err(|_| Error::TooLarge { what: "the position" })?;
        self.device.upload_tokens(&mut self.place, 0, &[token, position])?;

        let Self { device, ranges, shapes, place, caches, rows, recording, .. } = self;
        device.reserve_parameters(parameters)?;
        let pass = TokenPass { device: &*device, shapes, ranges, parameters, place };
        device.record(recording, || {
            device.prepare_parameters(parameters, &ranges.in_order)?;
            pass.run(caches, rows)?;
            device.finish_pass()
        })?;
        self.device.download(&self.rows.logits, &mut self.logits)?;
        self.position += 1;
        Ok(&self.logits)
    }
}

/// Attention of one token to a whole cache.
fn cached_attention(config: Config) -> AttentionShape {
    AttentionShape {
        batch: 1,
        time: config.context(),
        heads: config.heads(),
        head_size: config.head_size(),
    }
}

/// What one token's pass only reads.
struct TokenPass<'a, D: Operations> {
    device: &'a D,
    shapes: &'a Shapes,
    ranges: &'a ParameterRanges,
    parameters: &'a D::Floats,
    place: &'a D::Tokens,
}

impl<'a, D: Operations> TokenPass<'a, D> {
    fn run(&self, caches: &mut [LayerCache<D>], rows: &mut Rows<D>) -> Result<(), Error> {
        let Self { device, shapes, ranges, place, .. } = self;
        device.decode_embedding(
            &mut rows.residual,
            place,
            self.view(&ranges.table),
            self.view(&ranges.positions),
            shapes.embedding,
        )?;
        for (index, (cache, ranges)) in caches.iter_mut().zip(&ranges.layers).enumerate() {
            if index == 0 {
                device.layernorm_forward(
                    &mut rows.normed,
                    &mut rows.statistics,
                    &rows.residual,
                    self.view(&ranges.attention_norm),
                    shapes.layernorm,
                )?;
            } else {
                self.add_and_normalise(rows, &ranges.attention_norm)?;
            }
            self.attention(cache, rows, ranges)?;
            self.add_and_normalise(rows, &ranges.mlp_norm)?;
            self.mlp(rows, ranges)?;
        }
        self.add_and_normalise(rows, &ranges.final_norm)?;
        let (logits, table) = (&mut rows.logits, self.view(&ranges.table));
        device.logits(logits, &rows.normed, table, 0..1, shapes.loss)
    }

    fn attention(
        &self,
        cache: &mut LayerCache<D>,
        rows: &mut Rows<D>,
        ranges: &LayerRanges,
    ) -> Result<(), Error> {
        let Self { device, shapes, .. } = self;
        let Rows { normed, qkv, attention_out, branch, workspace, .. } = rows;
        device.linear_forward(qkv, normed, self.view(&ranges.qkv), shapes.qkv)?;
        let cache = DecodeCache { keys: &mut cache.keys, values: &mut cache.values };
        let shape = cached_attention(shapes.config);
        device.decode_attention(attention_out, cache, qkv, self.place, workspace, shape)?;
        let projection = self.view(&ranges.attention_projection);
        device.linear_forward(branch, attention_out, projection, shapes.attention_projection)
    }

    fn mlp(&self, rows: &mut Rows<D>, ranges: &LayerRanges) -> Result<(), Error> {
        let Self { device, shapes, .. } = self;
        let Rows { normed, wide, activated, branch, .. } = rows;
        let up = self.view(&ranges.mlp_up);
        device.linear_forward_gelu(activated, wide, normed, up, shapes.mlp_up)?;
        device.linear_forward(branch, activated, self.view(&ranges.mlp_down), shapes.mlp_down)
    }

    fn add_and_normalise(&self, rows: &mut Rows<D>, norm: &Range<usize>) -> Result<(), Error> {
        self.device.layernorm_forward_residual(
            &mut rows.normed,
            &mut rows.statistics,
            &mut rows.sum,
            [&rows.residual, &rows.branch],
            self.view(norm),
            self.shapes.layernorm,
        )?;
        std::mem::swap(&mut rows.sum, &mut rows.residual);
        Ok(())
    }

    fn view(&self, range: &Range<usize>) -> D::View<'a> {
        self.device.view(self.parameters, range.clone())
    }
}
