//! Attention of one token at a time, for generation. Launches `cuda/decode.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::check_length;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network::{self, THREADS};
use crate::{Activations, Buffer, Error, Gpu, Precision};

/// Attention of one token to a cache of keys and values.
pub struct Decode {
    attention: Kernel,
    precision: Precision,
    shape: DecodeShape,
}

/// Shape of [`Decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeShape {
    /// Positions that the cache has room for.
    pub context: usize,
    /// H.
    pub heads: usize,
    /// D; C = H D.
    pub head_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Attention {
    out: u64,
    keys: u64,
    values: u64,
    qkv: u64,
    place: u64,
    scores: u64,
    context: u32,
}

impl DecodeShape {
    /// C.
    #[must_use]
    pub fn channels(self) -> usize {
        self.heads * self.head_size
    }

    /// Elements of workspace that attention needs.
    #[must_use]
    pub fn workspace_length(self) -> usize {
        self.heads * self.context
    }
}

impl Decode {
    /// The kernels for a shape.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision, shape: DecodeShape) -> Result<Decode, Error> {
        let bytes = precision.activation_bytes();
        let module = gpu.module(&network::decode(shape.heads, shape.head_size, bytes))?;
        Ok(Decode { attention: module.kernel("decode_attention")?, precision, shape })
    }

    /// Stores k and v of this token at its position in the cache, and overwrites `out` with its
    /// attention to all positions up to its own.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub fn attention(
        &self,
        gpu: &Gpu,
        out: &mut Activations,
        (keys, values): (&mut Activations, &mut Activations),
        qkv: &Activations,
        place: &Buffer<u32>,
        workspace: &mut Buffer<f32>,
    ) -> Result<(), Error> {
        let (shape, channels) = (self.shape, self.shape.channels());
        out.check("attention of a token", self.precision, channels)?;
        qkv.check("q, k and v of a token", self.precision, 3 * channels)?;
        for (what, cache) in [("keys", &*keys), ("values", &*values)] {
            cache.check(what, self.precision, shape.context * channels)?;
        }
        check_length("the place of a token", 2, place.len())?;
        let needed = shape.workspace_length();
        check_length("scores", needed, workspace.len().min(needed))?;
        let argument = Attention {
            out: out.address(),
            keys: keys.address(),
            values: values.address(),
            qkv: qkv.address(),
            place: place.address(),
            scores: workspace.address(),
            context: shape.context as u32,
        };
        // SAFETY: 1. `Attention` is laid out as in decode.cu, which was compiled for these threads. 2. All
        // are as long as was checked, and the position is below the context, as the caller knows. 3.
        // What is written was borrowed mutably.
        unsafe { launch(gpu, &self.attention, shape.heads as u32, THREADS, &argument) }
    }
}
