//! What a device must bring to run the network: its memory, and eleven small sets of operations.
//!
//! [`Device`] is memory and recording, without mathematics. The operation traits carry formula and
//! shapes; an implementation lives in a file of the trait's name (`cpu/linear.rs` for [`Linear`]).
//! [`Operations`] is their sum, implemented for whatever implements them all, and is what the
//! network asks for: a missing operation is a compile error.
//!
//! Conventions, which every implementation keeps:
//!
//! * Shapes are passed with every call; a buffer may be longer than a call needs, and the call then
//!   works on its front.
//! * An output is overwritten whole, never read, unless its doc says "adds to" or a [`Store`]
//!   decides.
//! * A pair of parameters (weight and bias, or gain and bias) is one view, bias last. So is the
//!   view of their gradients.
//! * A workspace is memory without meaning between calls, of at least `workspace_length` elements.
//! * Each trait has a `_plan` method that is called once for a shape, before any other call for it and
//!   never in a recording: there a device compiles, chooses and allocates what it will need.
//! * Otherwise nothing is allocated. Everything that differs from step to step is read from buffers (token
//!   ids, targets, loss scale), never from arguments, so that a device may record a sequence of
//!   calls once and replay it.
//! * The result does not depend on the number of threads or on timing.

mod beside;
mod decode;
mod exchange;

use std::ops::Range;

pub use crate::branch::{
    AttentionOutputs, Branch, BranchEndInputs, BranchEndOutputs, BranchStartInputs,
    BranchStartOutputs, ProjectedInputs,
};
pub use crate::chain::{
    Chain, ChainGradientInputs, ChainGradients, ChainInputs, ChainOutputs, ChainShapes, NextBlock,
    NormGradient, NormedSum,
};
pub use crate::device::{Device, FloatsLater, GatherShape};
pub use crate::shape::{
    AttentionShape, EmbeddingShape, GeluPlace, LayerNormShape, LinearShape, LinearStores,
    LossShape, Store,
};
pub use beside::Beside;
pub use decode::{Decode, DecodeCache};
pub use exchange::Exchange;

use crate::{Error, Purpose};

/// Token and position tables: `out[b, t] = table[token[b, t]] + positions[t]`.
pub trait Embedding: Device {
    /// Makes ready for calls of this shape.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embedding_plan(&self, shape: EmbeddingShape) -> Result<(), Error> {
        let _ = shape;
        Ok(())
    }

    /// Writes `out` `[B T, C]` from `table` `[V, C]` and `positions` `[context, C]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embedding_forward(
        &self,
        out: &mut Self::Activations,
        tokens: &Self::Tokens,
        table: Self::View<'_>,
        positions: Self::View<'_>,
        shape: EmbeddingShape,
    ) -> Result<(), Error>;

    /// Elements of `order`, which [`Embedding::embedding_order`] fills.
    fn embedding_order_length(&self, shape: EmbeddingShape) -> usize;

    /// Writes to `order` what this device wants to know of the tokens for the gradient of the table,
    /// such as which of them are equal.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embedding_order(
        &self,
        order: &mut Self::Floats,
        tokens: &Self::Tokens,
        shape: EmbeddingShape,
    ) -> Result<(), Error>;

    /// Adds to the rows of the table's gradient, for each row in the order of the tokens, and stores that of the positions,
    /// which is zero from T on:
    ///
    /// ```text
    /// d_table[token[b, t]] += d_out[b, t]          d_positions[t] = sum_b d_out[b, t]
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embedding_backward(
        &self,
        d_tables: [Self::ViewMut<'_>; 2],
        d_out: &Self::Activations,
        tokens_and_order: (&Self::Tokens, &Self::Floats),
        shape: EmbeddingShape,
        store: Store,
    ) -> Result<(), Error>;
}

/// LayerNorm over the channels of a row x, alone or fused with the residual sum before it:
///
/// ```text
/// mean = sum_c x[c] / C      deviation = sqrt(sum_c (x[c] - mean)^2 / C + 1e-5)
/// out[c] = (x[c] - mean) / deviation * gain[c] + bias[c]
/// ```
pub trait LayerNorm: Device {
    /// Makes ready for calls of this shape.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn layernorm_plan(&self, shape: LayerNormShape) -> Result<(), Error> {
        let _ = shape;
        Ok(())
    }

    /// Elements of workspace that [`LayerNorm::layernorm_backward`] needs.
    fn layernorm_workspace_length(&self, shape: LayerNormShape) -> usize;

    /// Writes `out` `[rows, C]`, and mean and 1 / deviation of each row to `statistics` `[rows, 2]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn layernorm_forward(
        &self,
        out: &mut Self::Activations,
        statistics: &mut Self::Floats,
        x: &Self::Activations,
        gain_bias: Self::View<'_>,
        shape: LayerNormShape,
    ) -> Result<(), Error>;

    /// Writes the residual sum `x = terms[0] + terms[1]` and then everything that
    /// [`LayerNorm::layernorm_forward`] writes for it.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn layernorm_forward_residual(
        &self,
        out: &mut Self::Activations,
        statistics: &mut Self::Floats,
        x: &mut Self::Activations,
        terms: [&Self::Activations; 2],
        gain_bias: Self::View<'_>,
        shape: LayerNormShape,
    ) -> Result<(), Error>;

    /// From the gradient of `out`, with n = (x - mean) / deviation and g = d_out * gain:
    ///
    /// ```text
    /// d_x    = (g - mean_c g - n mean_c(g n)) / deviation + d_residual     overwritten
    /// d_gain = sum_rows d_out n                                            stored
    /// d_bias = sum_rows d_out                                              stored
    /// d_b    = sum_rows d_x                                                stored
    /// ```
    ///
    /// `d_parameters` are gain and bias, and with C more in front also b: a bias that was added to x,
    /// as that of the linear layer before, whose gradient is this sum of d_x.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn layernorm_backward(
        &self,
        d_x: &mut Self::Activations,
        d_parameters: Self::ViewMut<'_>,
        forward: LayerNormInputs<'_, '_, Self>,
        workspace: &mut Self::Floats,
        shape: LayerNormShape,
        store: Store,
    ) -> Result<(), Error>;
}

/// What [`LayerNorm::layernorm_backward`] reads: the gradient of the output, and what the forward
/// pass left.
pub struct LayerNormInputs<'a, 'b, D: Device + 'b> {
    /// Gradient of the output, `[rows, C]`.
    pub d_out: &'a D::Activations,
    /// The input of the forward pass, `[rows, C]`.
    pub x: &'a D::Activations,
    /// Mean and 1 / deviation of each row, `[rows, 2]`.
    pub statistics: &'a D::Floats,
    /// Gain and bias, C each.
    pub gain_bias: D::View<'b>,
    /// The gradient that x has beside the one by way of the output, `[rows, C]`; none is zero.
    pub d_residual: Option<&'a D::Activations>,
}

/// `y = x W + b`, with W `[inputs, outputs]` and b `[outputs]` directly behind it.
pub trait Linear: Device {
    /// Makes ready for calls of this shape, with GELU before or after the layer if so, of `layers` layers
    /// whose gradients [`Linear::linear_joins_layers`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_plan(
        &self,
        shape: LinearShape,
        gelu: Option<GeluPlace>,
        purpose: Purpose,
        layers: usize,
    ) -> Result<(), Error> {
        let _ = (shape, gelu, purpose, layers);
        Ok(())
    }

    /// Whether [`Linear::linear_backward_parameters`] had better compute the gradients of all layers
    /// together, when the last of them is asked for. A pass then keeps what they are computed from.
    fn linear_joins_layers(&self, shape: LinearShape) -> bool {
        let _ = shape;
        false
    }

    /// Writes y `[rows, outputs]` from x `[rows, inputs]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_forward(
        &self,
        y: &mut Self::Activations,
        x: &Self::Activations,
        weight_bias: Self::View<'_>,
        shape: LinearShape,
    ) -> Result<(), Error>;

    /// Writes y as [`Linear::linear_forward`] does, and `activated` `[rows, outputs]`, its
    /// [GELU](Gelu).
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_forward_gelu(
        &self,
        activated: &mut Self::Activations,
        y: &mut Self::Activations,
        x: &Self::Activations,
        weight_bias: Self::View<'_>,
        shape: LinearShape,
    ) -> Result<(), Error>;

    /// Writes `d_x = d_y W^T`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_backward_input(
        &self,
        d_x: &mut Self::Activations,
        d_y: &Self::Activations,
        weight_bias: Self::View<'_>,
        shape: LinearShape,
    ) -> Result<(), Error>;

    /// Writes `d_z = (d_y W^T) gelu'(z)`, for a layer whose input was `gelu(z)`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_backward_input_gelu(
        &self,
        d_z: &mut Self::Activations,
        d_y: &Self::Activations,
        z: &Self::Activations,
        weight_bias: Self::View<'_>,
        shape: LinearShape,
    ) -> Result<(), Error>;

    /// Stores `d_W = x^T d_y` and `d_b = sum_rows d_y`, or leaves d_b as it is, for a layer whose
    /// output enters a residual sum: [`LayerNorm::layernorm_backward`] has stored it.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn linear_backward_parameters(
        &self,
        d_weight_bias: Self::ViewMut<'_>,
        d_y: &Self::Activations,
        x: &Self::Activations,
        shape: LinearShape,
        stores: LinearStores,
    ) -> Result<(), Error>;
}

/// Causal attention. A row of `qkv` holds q, k and v, C each, the channels of a head side by side.
/// For each window and head, with s <= t:
///
/// ```text
/// p[t, s] = softmax_s(q[t] . k[s] / sqrt(D))      out[t] = sum_s p[t, s] v[s]
/// ```
///
/// The T x T probabilities are never kept: the backward pass computes them again.
pub trait Attention: Device {
    /// Makes ready for calls of this shape.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn attention_plan(&self, shape: AttentionShape) -> Result<(), Error> {
        let _ = shape;
        Ok(())
    }

    /// Elements of workspace that both passes need.
    fn attention_workspace_length(&self, shape: AttentionShape) -> usize;

    /// Writes `out` `[B T, C]` from `qkv` `[B T, 3 C]`, and to `statistics` `[B T, H, 2]` what this
    /// device's backward pass wants to know about each softmax.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn attention_forward(
        &self,
        out: &mut Self::Activations,
        statistics: &mut Self::Floats,
        qkv: &Self::Activations,
        workspace: &mut Self::Floats,
        shape: AttentionShape,
    ) -> Result<(), Error>;

    /// Writes `d_qkv` `[B T, 3 C]`:
    ///
    /// ```text
    /// o[t] = d_out[t] . out[t]
    /// dp[t, s] = d_out[t] . v[s]          ds[t, s] = p[t, s] (dp[t, s] - o[t]) / sqrt(D)
    /// dq[t] = sum_s ds[t, s] k[s]         dk[s] = sum_t ds[t, s] q[t]         dv[s] = sum_t p[t, s] d_out[t]
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn attention_backward(
        &self,
        d_qkv: &mut Self::Activations,
        forward: AttentionInputs<'_, Self>,
        workspace: &mut Self::Floats,
        shape: AttentionShape,
    ) -> Result<(), Error>;
}

/// What [`Attention::attention_backward`] reads: the gradient of the output, and what the forward
/// pass left.
pub struct AttentionInputs<'a, D: Device> {
    /// Gradient of the output, `[B T, C]`.
    pub d_out: &'a D::Activations,
    /// Output of the forward pass, `[B T, C]`.
    pub out: &'a D::Activations,
    /// Input of the forward pass, `[B T, 3 C]`.
    pub qkv: &'a D::Activations,
    /// As the forward pass wrote them, `[B T, H, 2]`.
    pub statistics: &'a D::Floats,
}

/// GELU in its tanh form, with u = sqrt(2 / pi) (x + 0.044715 x^3):
///
/// ```text
/// gelu(x) = x (1 + tanh u) / 2 = x / (1 + exp(-2 u))
/// ```
pub trait Gelu: Device {
    /// Writes `y = gelu(x)`, `length` elements.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn gelu_forward(
        &self,
        y: &mut Self::Activations,
        x: &Self::Activations,
        length: usize,
    ) -> Result<(), Error>;

    /// Multiplies a gradient in place: `gradient *= gelu'(x)`, which turns d_y into d_x.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn gelu_backward(
        &self,
        gradient: &mut Self::Activations,
        x: &Self::Activations,
        length: usize,
    ) -> Result<(), Error>;
}

/// The output head and the cross-entropy behind it, one operation so that no device need keep all
/// logits. For each row x with target y:
///
/// ```text
/// z[v] = x . table[v]      loss = ln(sum_v exp z[v]) - z[y]      0 where the target is IGNORED
/// ```
pub trait Loss: Device {
    /// Summed losses on their way to the host, in order.
    type Sums: Send;

    /// One f64 on the device.
    type Scalar;

    /// Makes ready for calls of this shape.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn loss_plan(&self, shape: LossShape, purpose: Purpose) -> Result<(), Error> {
        let _ = (shape, purpose);
        Ok(())
    }

    /// Elements of workspace that both passes need.
    fn loss_workspace_length(&self, shape: LossShape) -> usize;

    /// Writes the loss of each row in nats, from x `[rows, C]` and `table` `[V, C]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn loss_forward(
        &self,
        losses: &mut Self::Floats,
        x: &Self::Activations,
        table: Self::View<'_>,
        targets: &Self::Tokens,
        workspace: &mut Self::Floats,
        shape: LossShape,
    ) -> Result<(), Error>;

    /// Writes losses as [`Loss::loss_forward`] does, and the gradients of `scale * sum(loss)`:
    ///
    /// ```text
    /// dz[v] = scale (softmax(z)[v] - (1 if v = y else 0))     0 where the target is IGNORED
    /// d_x = dz table                                          written
    /// d_table[v] = sum_rows dz[v] x                           stored by `store`
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn loss_forward_backward(
        &self,
        outputs: LossOutputs<'_, Self>,
        inputs: LossInputs<'_, Self>,
        workspace: &mut Self::Floats,
        shape: LossShape,
        store: Store,
    ) -> Result<(), Error>;

    /// Writes the logits of some rows, `[rows.len(), V]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn logits(
        &self,
        out: &mut Self::Floats,
        x: &Self::Activations,
        table: Self::View<'_>,
        rows: Range<usize>,
        shape: LossShape,
    ) -> Result<(), Error>;

    /// The sum of the first `length` losses in `f64`, by one fixed tree, read back after all work
    /// that was asked for.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn sum(&self, losses: &Self::Floats, length: usize) -> Result<f64, Error>;

    /// Sums, of which none is on its way.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn sums(&self) -> Result<Self::Sums, Error>;

    /// Stores what [`Loss::sum`] gives as the total of `sums`, at the latest when the pass is finished; can be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn total(
        &self,
        sums: &mut Self::Sums,
        losses: &Self::Floats,
        length: usize,
        store: Store,
    ) -> Result<(), Error>;

    /// Replaces the total by one from the host; cannot be recorded.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn set_total(&self, sums: &mut Self::Sums, nats: f64) -> Result<(), Error>;

    /// The total, on the device.
    fn scalar<'a>(&self, sums: &'a Self::Sums) -> &'a Self::Scalar;

    /// Has the total from now on be that of the update at a position, of several that are queued together; the first
    /// one without it.
    ///
    /// # Panics
    ///
    /// If the device has no room for as many.
    fn select_total(&self, sums: &mut Self::Sums, position: usize);

    /// Queues the totals up to the selected position for the host, without waiting.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn queue_totals(&self, sums: &mut Self::Sums) -> Result<(), Error>;

    /// The oldest queued totals that were not taken yet. `None` if there are none, or if they are still on
    /// their way and nobody `waits` for them.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    fn take_totals(&self, sums: &mut Self::Sums, waits: bool) -> Result<Option<Vec<f64>>, Error>;
}

/// What [`Loss::loss_forward_backward`] writes.
pub struct LossOutputs<'a, D: Device> {
    /// Nats of each row.
    pub losses: &'a mut D::Floats,
    /// Gradient of x, `[rows, C]`.
    pub d_x: &'a mut D::Activations,
    /// Gradient of the table, `[V, C]`.
    pub d_table: D::ViewMut<'a>,
}

/// What [`Loss::loss_forward_backward`] reads.
pub struct LossInputs<'a, D: Device + 'a> {
    /// Output of the final LayerNorm, `[rows, C]`.
    pub x: &'a D::Activations,
    /// The token table, `[V, C]`.
    pub table: D::View<'a>,
    /// One id per row, or [`crate::IGNORED`].
    pub targets: &'a D::Tokens,
    /// One element: what each loss is multiplied with.
    pub scale: &'a D::Floats,
}

/// Everything the network needs.
pub trait Operations: Embedding + Chain + Gelu + Loss + Decode + Exchange + Beside {}

impl<D: Embedding + Chain + Gelu + Loss + Decode + Exchange + Beside> Operations for D {}
