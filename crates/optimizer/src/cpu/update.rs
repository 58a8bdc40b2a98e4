//! The update of a tile in a format of blocks: the same arithmetic as in [`kernel`](super::kernel). An element that
//! would not be finite keeps its parameter, and enters the new block with the moments that it had.

use super::blocks::{BlockCodec, Room, Span, TileMoments};
use super::kernel::{Counts, Mode, is_finite};
use super::norm::SquareLanes;
use super::tiles::{self, Fours, Numbers, TILE, Tile, of_four, tile_of};
use crate::scalars::Scalars;
use crate::simd::Vectors;

/// The bits of the largest finite number.
const FINITE_MAX: u32 = f32::INFINITY.to_bits() - 1;

/// What updates tiles.
pub(crate) struct Update {
    pub(crate) mode: Mode,
    pub(crate) scalars: Scalars,
    pub(crate) clip_scale: f32,
    pub(crate) counts: Counts,
    pub(crate) squares: Option<SquareLanes>,
}

impl Update {
    /// Updates a unit, and has the codec keep its moments: whole tiles in one go, others by themselves.
    #[inline(always)]
    pub(crate) fn unit<V: Vectors, C: BlockCodec>(
        &mut self,
        codec: &C,
        Span { start, count }: Span,
        (parameters, gradients): (&mut [f32], &[f32]),
        room: &mut Room<'_>,
    ) {
        let tile_elements = tile_of(codec.tile_block());
        let (mut from, mut number) = (0, 0);
        while from < count {
            let whole = if tile_elements == TILE { (count - from) / TILE } else { 0 };
            let length = if whole > 0 { whole * TILE } else { tile_elements.min(count - from) };
            let tile = Tile { number, from, to: from + length.min(TILE) };
            let own = start + from..start + from + length;
            let (p_own, g_own) = (&mut parameters[own.clone()], &gradients[own]);
            let (mut p_padded, mut g_padded) = (None, None);
            let (p, g): (&mut [Numbers], &[Numbers]) = if whole > 0 {
                (p_own.as_chunks_mut().0, g_own.as_chunks().0)
            } else {
                let p = p_padded.insert([tiles::with_padding(p_own, p_own[0])]);
                (p, g_padded.insert([tiles::with_padding(g_own, g_own[0])]))
            };
            self.tiles::<V, C>(codec, (start, tile), (p, g), room);
            if let Some([padded]) = &p_padded {
                parameters[start + from..][..length].copy_from_slice(&padded[..length]);
            }
            from += length;
            number += whole.max(1);
        }
    }

    /// Updates tiles, the first of which is given; all have as many elements.
    #[inline(always)]
    fn tiles<V: Vectors, C: BlockCodec>(
        &mut self,
        codec: &C,
        (start, mut tile): (usize, Tile),
        (p, g): (&mut [Numbers], &[Numbers]),
        room: &mut Room<'_>,
    ) {
        let mut ahead = *room.ahead;
        let (kept, ready) = room.split(tile.number, p.len());
        for ((p, g), to) in p.iter_mut().zip(g).zip(kept) {
            ahead.ask();
            let before = codec.decode::<V>(start, tile, ready);
            let first = start + tile.from;
            let (p_new, moments) = self.tile::<V, C>((first, tile.count()), before, (p, g));
            if self.mode == Mode::Update {
                tiles::write::<V>(C::BY_FOURS, p_new, p);
                codec.keep::<V>(moments, to);
            }
            tile = Tile { number: tile.number + 1, from: tile.to, to: tile.to + tile.count() };
        }
        *room.ahead = ahead;
    }

    /// What parameters and moments become, from those before: some elements from `first` of the chunk on.
    #[inline(always)]
    fn tile<V: Vectors, C: BlockCodec>(
        &mut self,
        (first, count): (usize, usize),
        [m0, v0]: [Fours<V>; 2],
        (p, g): (&Numbers, &Numbers),
    ) -> (Fours<V>, TileMoments<V>) {
        let (p0, own_g) = (tiles::read::<V>(C::BY_FOURS, p), tiles::read::<V>(C::BY_FOURS, g));
        let [(pa, a), (pb, b), (pc, c), (pd, d)] =
            of_four!(|k| self.updated::<V, C>([p0[k], m0[k], v0[k]], own_g[k]));
        let mut p = [pa, pb, pc, pd];
        let mut moments = TileMoments::<V> {
            m: [a[0], b[0], c[0], d[0]],
            v: [a[1], b[1], c[1], d[1]],
            r: [a[2], b[2], c[2], d[2]],
        };
        let is_above = V::is_below(V::words(FINITE_MAX), largest::<V>(p, moments.v));
        if count == TILE && V::count(is_above) == 0 {
            if let Some(squares) = &mut self.squares {
                squares.add_finite::<V>(first, g);
            }
        } else {
            let after = [&mut p, &mut moments.m, &mut moments.v];
            self.settle::<V>(C::BY_FOURS, (first, &g[..count]), [p0, m0, v0], after);
            moments.r = of_four!(|k| V::sqrt(moments.v[k]));
        }
        (p, moments)
    }

    /// The parameter, and m, v and r, from those before: p, m, v.
    #[inline(always)]
    fn updated<V: Vectors, C: BlockCodec>(
        &self,
        [p, m0, v0]: [V::Floats; 3],
        gradient: V::Floats,
    ) -> (V::Floats, [V::Floats; 3]) {
        let s = self.scalars;
        let g = V::mul(gradient, V::splat(self.clip_scale));
        let m = V::fused(V::splat(s.beta1), m0, V::mul(V::splat(s.one_minus_beta1), g));
        let v = V::mul(V::mul(V::splat(s.one_minus_beta2), g), g);
        let v = V::fused(V::splat(s.beta2), v0, v);
        let r = V::sqrt(v);
        let direction = V::div(m, V::fused(r, V::splat(s.rms_scale), V::splat(s.eps)));
        let (step, decay) = (V::splat(-s.step), V::splat(s.decay));
        let p = if C::DECAYS_LAST {
            V::mul(V::fused(step, direction, p), decay)
        } else {
            V::fused(step, direction, V::mul(p, decay))
        };
        (p, [m, v, r])
    }

    /// Puts back what is not finite, and counts it. Beyond the last element, moments become those of the first.
    #[inline(always)]
    fn settle<V: Vectors>(
        &mut self,
        by_fours: bool,
        gradients: (usize, &[f32]),
        before: [Fours<V>; 3],
        after: [&mut Fours<V>; 3],
    ) {
        let (mut old, mut new) = ([[0.0; TILE]; 3], [[0.0; TILE]; 3]);
        for ((old, new), (before, after)) in
            old.iter_mut().zip(&mut new).zip(before.into_iter().zip(&after))
        {
            tiles::write::<V>(by_fours, before, old);
            tiles::write::<V>(by_fours, **after, new);
        }
        self.settle_numbers(gradients, &old, &mut new);
        for (new, after) in new.iter().zip(after) {
            *after = tiles::read::<V>(by_fours, new);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_numbers(
        &mut self,
        (first, gradients): (usize, &[f32]),
        old: &[Numbers; 3],
        new: &mut [Numbers; 3],
    ) {
        let count = gradients.len();
        for index in 0..count {
            if !is_finite(new[0][index], new[2][index]) {
                self.counts.nonfinite += 1;
                self.counts.first_nonfinite.get_or_insert(first + index);
                for (new, old) in new.iter_mut().zip(old) {
                    new[index] = old[index];
                }
            }
        }
        for numbers in new {
            let first = numbers[0];
            numbers[count..].fill(first);
        }
        if let Some(squares) = &mut self.squares {
            squares.add(first, gradients);
        }
    }
}

/// Bits of which one is beyond [`FINITE_MAX`] if a number is not finite; v has no sign, unless it is NaN.
#[inline(always)]
fn largest<V: Vectors>(p: Fours<V>, v: Fours<V>) -> V::Words {
    let magnitude = V::words(0x7FFF_FFFF);
    tiles::larger::<V>(of_four!(|k| V::larger(V::and(V::bits(p[k]), magnitude), V::bits(v[k]))))
}
