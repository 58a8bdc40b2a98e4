//! Where each parameter lives: named slots in one flat buffer, the same for parameters and
//! gradients, and their values before the first update. The buffers themselves belong to a device.
//!
//! Names are those of GPT-2's published checkpoints. A linear layer keeps its weight as
//! `[inputs, outputs]`, so that y = x W + b, and its bias directly behind it; a LayerNorm keeps its
//! gain and then its bias. Operations therefore take such a pair as one view. A LayerNorm, but for the
//! first, lies behind the bias of the layer that ends the branch before it, and their gradients
//! are one view too.

use std::ops::Range;

use formats::RandomStream;
use rayon::prelude::*;

use crate::{Config, Error};

/// What a parameter does, from which weight decay groups and initial values follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The token table, which is also the output head.
    TokenTable,
    /// The learned positions.
    Positions,
    /// A weight of a linear layer.
    Weight,
    /// The weight of a linear layer whose output is added to the residual stream.
    ResidualWeight,
    /// A bias, of a linear layer or of a LayerNorm.
    Bias,
    /// The gain of a LayerNorm.
    Gain,
}

impl Role {
    /// Whether weight decay customarily applies: to tables and matrices, not to biases and gains.
    pub fn decays(self) -> bool {
        !matches!(self, Role::Bias | Role::Gain)
    }
}

/// One named tensor of the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name in GPT-2's checkpoints, such as `h.0.ln_1.weight`.
    pub name: String,
    /// One or two sizes, row-major.
    pub shape: Vec<usize>,
    /// First element in the flat buffer.
    pub offset: usize,
    /// Elements, the product of the shape.
    pub length: usize,
    /// What it does.
    pub role: Role,
}

impl Slot {
    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.length
    }
}

/// All slots of a network, in the order of the flat buffer, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    config: Config,
    slots: Vec<Slot>,
}

impl Layout {
    /// The slots of a network of this shape.
    pub fn new(config: Config) -> Self {
        let channels = config.channels();
        let mut layout = Self { config, slots: Vec::with_capacity(4 + 12 * config.layers()) };
        layout.push("wte.weight", &[config.vocabulary(), channels], Role::TokenTable);
        layout.push("wpe.weight", &[config.context(), channels], Role::Positions);
        for layer in 0..config.layers() {
            let block = format!("h.{layer}");
            layout.push_norm(&format!("{block}.ln_1"));
            layout.push_linear(&format!("{block}.attn.c_attn"), 1, 3, Role::Weight);
            layout.push_linear(&format!("{block}.attn.c_proj"), 1, 1, Role::ResidualWeight);
            layout.push_norm(&format!("{block}.ln_2"));
            layout.push_linear(&format!("{block}.mlp.c_fc"), 1, 4, Role::Weight);
            layout.push_linear(&format!("{block}.mlp.c_proj"), 4, 1, Role::ResidualWeight);
        }
        layout.push_norm("ln_f");
        layout
    }

    /// The shape of the network.
    pub fn config(&self) -> Config {
        self.config
    }

    /// The slots in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// N, the elements of the flat buffer.
    pub fn parameters(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.range().end)
    }

    /// The slot of that name.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name == name)
    }

    /// The slot that holds an element of the flat buffer.
    pub fn slot_of(&self, element: usize) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.range().contains(&element))
    }

    /// Parameters before the first update, a flat buffer of N.
    ///
    /// Gains are 1 and biases 0. All else is drawn with mean 0 and a standard deviation of
    ///
    /// ```text
    /// tables             0.02
    /// weights            0.02 sqrt(768 / C)
    /// residual weights   0.02 sqrt(768 / C) / sqrt(2 L)
    /// ```
    ///
    /// 0.02 is GPT-2's figure, for C = 768. A layer sums C products, so at other widths the square
    /// root keeps its outputs as large as they are there; small models learn faster for it. The
    /// last line keeps the residual stream from starting out wider for being deeper.
    ///
    /// A draw is the sum of twelve 16-bit uniform integers u, from six words of the counter hash:
    ///
    /// ```text
    /// z = (sum u - 12 * 32767.5) / 65536      mean 0, variance 1 - 2^-32, |z| < 6
    /// ```
    ///
    /// times the standard deviation, in `f64`, rounded once to `f32`. Integer sums, one product
    /// and a correctly rounded root: the bits are the same on every platform and for any number of
    /// threads.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; self.parameters()];
        let weight_deviation =
            DEVIATION * (DEVIATION_CHANNELS / self.config.channels() as f64).sqrt();
        let residual_deviation = weight_deviation / (2.0 * self.config.layers() as f64).sqrt();
        for (index, slot) in self.slots.iter().enumerate() {
            let values = &mut values[slot.range()];
            match slot.role {
                Role::Bias => {}
                Role::Gain => values.fill(1.0),
                Role::ResidualWeight => draw(values, seed, index, residual_deviation),
                Role::Weight => draw(values, seed, index, weight_deviation),
                Role::TokenTable | Role::Positions => draw(values, seed, index, DEVIATION),
            }
        }
        values
    }

    /// Refuses a flat buffer of another length.
    pub(crate) fn check_length(&self, what: &'static str, found: usize) -> Result<(), Error> {
        let expected = self.parameters();
        if found == expected { Ok(()) } else { Err(Error::Length { what, expected, found }) }
    }

    /// Where the operations find their parameters.
    pub(crate) fn ranges(&self) -> ParameterRanges {
        // The order of `new`: two tables, twelve slots a layer, the final LayerNorm.
        let pair = |first: usize| {
            let (weight, bias) = (&self.slots[first], &self.slots[first + 1]);
            weight.offset..bias.range().end
        };
        let layers = (0..self.config.layers()).map(|layer| {
            let first = 2 + 12 * layer;
            LayerRanges {
                attention_norm: pair(first),
                qkv: pair(first + 2),
                attention_projection: pair(first + 4),
                mlp_norm: pair(first + 6),
                mlp_up: pair(first + 8),
                mlp_down: pair(first + 10),
            }
        });
        let layers: Vec<LayerRanges> = layers.collect();
        let table = self.slots[0].range();
        let blocks = layers.iter().map(|layer| layer.attention_norm.start..layer.mlp_down.end);
        ParameterRanges {
            in_order: blocks.chain([table.clone()]).collect(),
            table,
            positions: self.slots[1].range(),
            layers,
            final_norm: pair(self.slots.len() - 2),
        }
    }

    /// The flat buffer in pieces, in the order in which they are sent: the blocks from the last to the second, each piece
    /// half of what is left of them, within bounds, and the block behind which all of it is finished; then, finished at
    /// the end (`None`), the tables, and the first block, whose weights can have their gradients while the tables are on
    /// their way.
    #[must_use]
    pub fn finished_pieces(&self) -> Vec<(Option<usize>, Range<usize>)> {
        let ranges = self.ranges();
        let mut pieces = Vec::new();
        let mut end = self.parameters();
        // The bias before the first LayerNorm of a block is finished with it; before the first block lie the tables.
        let start_of = |layer: &LayerRanges| layer.attention_norm.start - self.config.channels();
        let second = ranges.layers.get(1).map_or(end, start_of);
        for (index, layer) in ranges.layers.iter().enumerate().skip(1).rev() {
            let start = start_of(layer);
            // Few sums cost other work less than many; the last ones are short, so that they end in time.
            let enough = ((end - second) / 2).clamp(PIECE_ELEMENTS.start, PIECE_ELEMENTS.end);
            if end - start >= enough {
                pieces.push((Some(index), start..end));
                end = start;
            }
        }
        let tables_end = ranges.layers.first().map_or(end, |layer| layer.attention_norm.start);
        if end - tables_end >= PIECE_ELEMENTS.start {
            pieces.extend([(None, 0..tables_end), (None, tables_end..end)]);
        } else {
            pieces.push((None, 0..end));
        }
        pieces
    }

    fn push(&mut self, name: &str, shape: &[usize], role: Role) {
        self.slots.push(Slot {
            name: name.to_owned(),
            shape: shape.to_vec(),
            offset: self.parameters(),
            length: shape.iter().product(),
            role,
        });
    }

    fn push_norm(&mut self, name: &str) {
        let channels = self.config.channels();
        self.push(&format!("{name}.weight"), &[channels], Role::Gain);
        self.push(&format!("{name}.bias"), &[channels], Role::Bias);
    }

    /// A linear layer whose inputs and outputs are these multiples of C.
    fn push_linear(&mut self, name: &str, inputs: usize, outputs: usize, role: Role) {
        let channels = self.config.channels();
        self.push(&format!("{name}.weight"), &[inputs * channels, outputs * channels], role);
        self.push(&format!("{name}.bias"), &[outputs * channels], Role::Bias);
    }
}

/// The ranges of the flat buffer that the operations read; a pair is weight (or gain), then bias.
#[derive(Clone, Debug)]
pub(crate) struct ParameterRanges {
    pub table: Range<usize>,
    pub positions: Range<usize>,
    pub layers: Vec<LayerRanges>,
    pub final_norm: Range<usize>,
    /// What products read, in the order of the forward pass: layer by layer, then the table.
    pub in_order: Vec<Range<usize>>,
}

/// The pairs of one block.
#[derive(Clone, Debug)]
pub(crate) struct LayerRanges {
    pub attention_norm: Range<usize>,
    pub qkv: Range<usize>,
    pub attention_projection: Range<usize>,
    pub mlp_norm: Range<usize>,
    pub mlp_up: Range<usize>,
    pub mlp_down: Range<usize>,
}

/// Elements of gradients that are sent to other ranks at once while more are computed: the least that are worth it, and as
/// many as are worth waiting for.
const PIECE_ELEMENTS: Range<usize> = 1 << 21..1 << 25;

/// Standard deviation of the initial tables, and of the initial weights at the width below.
const DEVIATION: f64 = 0.02;

/// C of the network that [`DEVIATION`] was chosen for.
const DEVIATION_CHANNELS: f64 = 768.0;

/// Elements that one task draws.
const DRAW_CHUNK: usize = 1 << 16;

fn draw(values: &mut [f32], seed: u64, slot: usize, deviation: f64) {
    let tensor = u32::try_from(slot).expect("a layout has far fewer than 2^32 slots");
    values.par_chunks_mut(DRAW_CHUNK).enumerate().for_each(|(chunk, values)| {
        let first = chunk * DRAW_CHUNK;
        // Update 0 is before the first one, so no update's rounding draws the same words. A chunk
        // never crosses a multiple of 2^32, which DRAW_CHUNK divides.
        let index_high = (first as u64 >> 32) as u32;
        let streams: [RandomStream; 6] = std::array::from_fn(|word| {
            RandomStream::new(seed, 0, tensor, 6 * index_high + word as u32)
        });
        for (index, value) in values.iter_mut().enumerate() {
            let index_low = (first + index) as u32;
            let sum: u32 = streams
                .iter()
                .map(|stream| stream.word(index_low))
                .map(|word| (word & 0xFFFF) + (word >> 16))
                .sum();
            let normal = (f64::from(sum) - 12.0 * 32767.5) / 65536.0;
            *value = (deviation * normal) as f32;
        }
    });
}
