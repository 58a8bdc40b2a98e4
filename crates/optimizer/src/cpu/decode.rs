//! The moments of a tensor as the next update would read them, for whoever asks; and moments from
//! elsewhere, stored as an update would have.

use formats::{E4Word, E4sWord, Format, Fp16Word, Moments, RandomStream, WordCodec};

use super::DecodedMoments;
use super::ahead::Ahead;
use super::arrays::ArraysMut;
use super::blocks::{self, BlockCodec, Memory, TILES_MAX};
use super::codecs::{CodecContext, Task};
use super::pass::TensorState;
use super::random::BlockRandom;
use super::step::counted;
use super::ustate1q::Spread;
use crate::groups::Layout;
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::Plain;

/// The moments of a tensor whose state lies elsewhere, in `sections`.
#[cfg(feature = "cuda")]
pub(crate) fn moments_of(
    layout: &Layout,
    position: usize,
    length: usize,
    bias: Option<formats::Bias>,
    written: u64,
    sections: &[Vec<u8>],
) -> DecodedMoments {
    let mut arrays = super::arrays::Arrays::fresh(layout.format_of(position), length);
    for (number, bytes) in sections.iter().enumerate() {
        arrays.overwrite(number, bytes);
    }
    moments(layout, position, &TensorState { arrays, bias, length }, written)
}

/// The moments of a tensor, whose state update `written` wrote.
pub(crate) fn moments(
    layout: &Layout,
    position: usize,
    tensor: &TensorState,
    written: u64,
) -> DecodedMoments {
    // A view for writing, of a copy.
    let mut arrays = tensor.arrays.clone();
    match arrays.view_mut() {
        ArraysMut::Moments { m, v } => DecodedMoments { m: m.to_vec(), v: v.to_vec() },
        ArraysMut::Words(words) => match layout.format_of(position) {
            Format::Fp16 => decode_words(Fp16Word::new(), words),
            _ => decode_words(E4Word::new(tensor.bias.unwrap_or_default()), words),
        },
        arrays => {
            let context = context(layout, position, written + 1, written);
            context.run(arrays, Decoding { length: tensor.length }).0
        }
    }
}

/// Stores moments as update `written` would have. Where a tensor has a scale, `add` replaces what its scale follows
/// from by the sum over all parts.
pub(crate) fn set_moments<E>(
    layout: &Layout,
    position: usize,
    tensor: &mut TensorState,
    written: u64,
    moments: &DecodedMoments,
    mut add: impl FnMut(&mut [f64]) -> Result<(), E>,
) -> Result<(), E> {
    let bias = tensor.bias.unwrap_or_default();
    let (m, v) = (&moments.m, &moments.v);
    match tensor.arrays.view_mut() {
        ArraysMut::Moments { m: own_m, v: own_v } => {
            own_m.copy_from_slice(m);
            own_v.copy_from_slice(v);
        }
        ArraysMut::Words(words) => {
            let seed = layout.options.seed;
            let part = layout.parts[position];
            let start = part.start;
            let stream = RandomStream::new(seed, written, part.tensor, (start >> 32) as u32);
            match layout.format_of(position) {
                Format::Fp16 => encode_words(Fp16Word::new(), moments, words, start),
                Format::E4s => encode_words(E4sWord::new(bias, stream), moments, words, start),
                _ => encode_words(E4Word::new(bias), moments, words, start),
            }
        }
        arrays => {
            let context = context(layout, position, written, written);
            let (_, mut spread) = context.run(arrays, Encoding { moments });
            if layout.format_of(position).is_bias_corrected() {
                // The first time finds the scale of the second.
                spread = spread_of_all(layout, position, spread, &mut add)?;
                tensor.arrays.advance_scales(|scale| spread.next_scale(scale));
                (_, spread) = context.run(tensor.arrays.view_mut(), Encoding { moments });
                spread = spread_of_all(layout, position, spread, &mut add)?;
                tensor.arrays.advance_scales(|scale| spread.next_scale(scale));
            }
        }
    }
    Ok(())
}

/// The spread of a whole tensor, from that of the part that lies here.
fn spread_of_all<E>(
    layout: &Layout,
    position: usize,
    own: Spread,
    add: &mut impl FnMut(&mut [f64]) -> Result<(), E>,
) -> Result<Spread, E> {
    let mut numbers = own.numbers();
    add(&mut numbers)?;
    Ok(counted(layout, position, Spread::of_numbers(numbers)))
}

fn context(layout: &Layout, position: usize, update: u64, written: u64) -> CodecContext<'_> {
    let group = layout.group_of(position);
    let update = update.max(1);
    let (seed, part) = (layout.options.seed, layout.parts[position]);
    let place = part.place(layout.tensors[position].group);
    CodecContext {
        layout,
        scalars: Scalars::at(group, update, group.learning_rate),
        block_scalars: BlockScalars::at(group, update, written),
        random: BlockRandom::new(seed, update, part.tensor, place, part.start),
    }
}

/// Reads all moments.
struct Decoding {
    length: usize,
}

/// Stores all moments.
struct Encoding<'a> {
    moments: &'a DecodedMoments,
}

impl Task for Decoding {
    type Output = DecodedMoments;

    fn run(self, codec: &mut impl BlockCodec) -> DecodedMoments {
        let Decoding { length } = self;
        let mut decoded = DecodedMoments { m: vec![0.0; length], v: vec![0.0; length] };
        let (block, mut memory) = (codec.block(), Memory::<TILES_MAX>::new(Ahead::new(&[], &[])));
        let parts = decoded.m.chunks_mut(block).zip(decoded.v.chunks_mut(block));
        for (number, moments) in parts.enumerate() {
            blocks::decode::<Plain, _>(codec, number * block, moments, &mut memory.room());
        }
        decoded
    }
}

impl Task for Encoding<'_> {
    type Output = ();

    fn run(self, codec: &mut impl BlockCodec) {
        let (block, mut memory) = (codec.block(), Memory::<TILES_MAX>::new(Ahead::new(&[], &[])));
        let DecodedMoments { m, v } = self.moments;
        for (number, moments) in m.chunks(block).zip(v.chunks(block)).enumerate() {
            blocks::encode::<Plain, _>(codec, number * block, moments, &mut memory.room());
        }
    }
}

fn decode_words(codec: impl WordCodec, words: &[u32]) -> DecodedMoments {
    let moments = words.iter().map(|&word| codec.decode(word));
    let (m, v) = moments.map(|moments| (moments.m, moments.r * moments.r)).unzip();
    DecodedMoments { m, v }
}

/// The first element is at `start` of its tensor.
fn encode_words(codec: impl WordCodec, moments: &DecodedMoments, words: &mut [u32], start: u64) {
    let pairs = moments.m.iter().zip(&moments.v);
    for (index, (word, (&m, &v))) in words.iter_mut().zip(pairs).enumerate() {
        let index_low = (start as u32).wrapping_add(index as u32);
        *word = codec.encode(Moments { m, r: v.sqrt() }, index_low).word;
    }
}
