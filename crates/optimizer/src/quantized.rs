//! Block-wise 8-bit AdamW as one function over bf16 parameters and gradients, without an optimizer
//! around it: codes and absmaxes go in and out.

use formats::half_floats::{bf16_nearest, bf16_to_f32};
use formats::{Block8, Maps};
use rayon::prelude::*;

use crate::cpu::ahead::Ahead;
use crate::cpu::arrays::Block8Mut;
use crate::cpu::block8::Block8Codec;
use crate::cpu::blocks::{self, BLOCK_MAX, Memory};
use crate::cpu::maps::MapTables;
use crate::cpu::tiles::TILE;
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::Plain;
use crate::{Error, Group};

/// One moment in 8-bit codes.
#[derive(Debug)]
pub struct QuantizedMoment<'a> {
    /// A code for every parameter.
    pub codes: &'a mut [u8],
    /// The largest magnitude of every block, the last of which may be shorter.
    pub absmax: &'a mut [f32],
}

/// One update of block-wise 8-bit AdamW.
///
/// ```text
/// m = beta1 M1[c1] a1 + (1 - beta1) g        v = beta2 M2[c2] a2 + (1 - beta2) g^2
/// p = bf16(p (1 - lr wd) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps))
/// ```
///
/// Parameters and gradients are bits of bf16; everything else is f32, in the order of operations of the
/// optimizer, and p is rounded once, to nearest. The update uses the moments before they are
/// quantised. Then a is the largest magnitude of each block, and a code that of the entry nearest to
/// the moment over a, of two equally near entries the even one. None of the mendings of the `block8`
/// format takes part, and what is not finite spreads through its block.
///
/// `group` gives learning rate, betas, eps and weight decay; its format is not looked at. `maps` are
/// [`Maps::plain`], or any others.
///
/// # Errors
///
/// If a hyperparameter is out of range, `update` is 0, the block is not a power of two from 64 to
/// 4096, or a slice has not one element for each parameter or for each block.
pub fn quantized_adamw_step(
    parameters: &mut [u16],
    gradients: &[u16],
    first: QuantizedMoment<'_>,
    second: QuantizedMoment<'_>,
    (maps, block): (&Maps, usize),
    group: &Group,
    update: u64,
) -> Result<(), Error> {
    group.check_update(update)?;
    check_block(block)?;
    let (elements, blocks) = (parameters.len(), parameters.len().div_ceil(block));
    let lengths = [
        ("gradients", gradients.len(), elements),
        ("codes of the first moment", first.codes.len(), elements),
        ("codes of the second moment", second.codes.len(), elements),
        ("absmaxes of the first moment", first.absmax.len(), blocks),
        ("absmaxes of the second moment", second.absmax.len(), blocks),
    ];
    for (buffer, found, expected) in lengths {
        if found != expected {
            return Err(Error::BufferLength { buffer: buffer.to_owned(), expected, found });
        }
    }
    let scalars = Scalars::at(group, update, group.learning_rate);
    let block_scalars = BlockScalars::at(group, update, update - 1);
    let maps = &MapTables::new(Box::new(maps.clone()));
    let options = Block8 { block: block as u32, ..Block8::ORIGINAL };
    let elements = parameters.par_chunks_mut(block).zip(gradients.par_chunks(block));
    let codes = first.codes.par_chunks_mut(block).zip(second.codes.par_chunks_mut(block));
    let absmaxes = first.absmax.par_chunks_mut(1).zip(second.absmax.par_chunks_mut(1));
    elements.zip(codes).zip(absmaxes).for_each_init(
        scratch,
        |scratch, (((parameters, gradients), (m_codes, v_codes)), (m_absmax, v_absmax))| {
            let arrays = Block8Mut { options, m_codes, v_codes, m_absmax, v_absmax };
            let codec = Block8Codec::<false> { arrays, maps, scalars: block_scalars };
            step_block(scalars, codec, parameters, gradients, scratch);
        },
    );
    Ok(())
}

/// Room for a block. It lies on the heap, since parallel loops keep one on the stack for every time that they part.
struct Scratch {
    memory: Memory<{ BLOCK_MAX / TILE }>,
    moments: [[f32; BLOCK_MAX]; 2],
}

#[inline(never)]
fn scratch() -> Box<Scratch> {
    Box::new(Scratch { memory: Memory::new(Ahead::new(&[], &[])), moments: [[0.0; BLOCK_MAX]; 2] })
}

#[inline(never)]
fn step_block(
    scalars: Scalars,
    mut codec: Block8Codec<'_, false>,
    parameters: &mut [u16],
    gradients: &[u16],
    Scratch { memory, moments: [m, v] }: &mut Scratch,
) {
    let (m, v) = (&mut m[..parameters.len()], &mut v[..parameters.len()]);
    blocks::decode::<Plain, _>(&codec, 0, (&mut *m, &mut *v), &mut memory.room());
    update_block(scalars, parameters, gradients, m, v);
    blocks::encode::<Plain, _>(&mut codec, 0, (m, v), &mut memory.room());
}

/// Whether blocks may have so many elements.
pub(crate) fn check_block(block: usize) -> Result<(), Error> {
    if block.is_power_of_two() && (64..=BLOCK_MAX).contains(&block) {
        Ok(())
    } else {
        Err(Error::Block { found: block })
    }
}

fn update_block(
    s: Scalars,
    parameters: &mut [u16],
    gradients: &[u16],
    m: &mut [f32],
    v: &mut [f32],
) {
    let moments = m.iter_mut().zip(v);
    for ((p, &g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
        let g = bf16_to_f32(g);
        *m = s.beta1.mul_add(*m, s.one_minus_beta1 * g);
        *v = s.beta2.mul_add(*v, (s.one_minus_beta2 * g) * g);
        let direction = *m / v.sqrt().mul_add(s.rms_scale, s.eps);
        *p = bf16_nearest((-s.step).mul_add(direction, bf16_to_f32(*p) * s.decay));
    }
}
