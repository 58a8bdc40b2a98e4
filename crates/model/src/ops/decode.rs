//! What generation asks of a device beside what training does.

use super::{AttentionShape, Device, EmbeddingShape};
use crate::Error;

/// The two operations that generation adds: one token at one position, which it reads from
/// `place`, a token id followed by a position.
pub trait Decode: Device {
    /// Makes ready for calls of this shape.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn decode_plan(&self, shape: AttentionShape) -> Result<(), Error> {
        let _ = shape;
        Ok(())
    }

    /// Elements of workspace that [`Decode::decode_attention`] needs.
    fn decode_workspace_length(&self, shape: AttentionShape) -> usize;

    /// Writes `out[c] = table[token, c] + positions[position, c]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn decode_embedding(
        &self,
        out: &mut Self::Activations,
        place: &Self::Tokens,
        table: Self::View<'_>,
        positions: Self::View<'_>,
        shape: EmbeddingShape,
    ) -> Result<(), Error>;

    /// Stores k and v of this token, C each, at its position in `keys` and `values` `[context, C]`,
    /// and writes `out` `[C]`, its attention to all positions up to its own, as [`Attention`](super::Attention) does.
    /// `shape` has B = 1 and T = context.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn decode_attention(
        &self,
        out: &mut Self::Activations,
        cache: DecodeCache<'_, Self>,
        qkv: &Self::Activations,
        place: &Self::Tokens,
        workspace: &mut Self::Floats,
        shape: AttentionShape,
    ) -> Result<(), Error>;
}

/// Keys and values of one layer, `[context, C]` each.
pub struct DecodeCache<'a, D: Device> {
    /// One row per position.
    pub keys: &'a mut D::Activations,
    /// One row per position.
    pub values: &'a mut D::Activations,
}
