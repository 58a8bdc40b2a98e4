//! The shapes of operations, and how they store: plain numbers and choices that come with every
//! call. Public in [`ops`](crate::ops), where the operations are.

/// Whether an output replaces what was there or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The output replaces what was there, which is not read.
    Overwrite,
    /// The output is added to what was there.
    Add,
}

/// Shape of an [`Embedding`](crate::ops::Embedding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingShape {
    /// B.
    pub batch: usize,
    /// T.
    pub time: usize,
    /// C.
    pub channels: usize,
    /// V.
    pub vocabulary: usize,
    /// Learned positions, at least T.
    pub context: usize,
}

/// Shape of a [`LayerNorm`](crate::ops::LayerNorm).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormShape {
    /// Rows, B T.
    pub rows: usize,
    /// C.
    pub channels: usize,
}

/// Shape of a [`Linear`](crate::ops::Linear) layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearShape {
    /// Rows, B T.
    pub rows: usize,
    /// Width of x.
    pub inputs: usize,
    /// Width of y.
    pub outputs: usize,
}

/// How [`Linear::linear_backward_parameters`](crate::ops::Linear::linear_backward_parameters) stores.
#[derive(Clone, Copy, Debug)]
pub struct LinearStores {
    /// For the gradient of W.
    pub weight: Store,
    /// For the gradient of b; `None` leaves it as it is.
    pub bias: Option<Store>,
}

/// Where a layer has GELU beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeluPlace {
    /// Its input comes from GELU.
    Before,
    /// Its output goes to GELU.
    After,
}

/// Shape of an [`Attention`](crate::ops::Attention).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// B.
    pub batch: usize,
    /// T.
    pub time: usize,
    /// H.
    pub heads: usize,
    /// D; C = H D.
    pub head_size: usize,
}

/// Shape of a [`Loss`](crate::ops::Loss).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossShape {
    /// Rows, B T.
    pub rows: usize,
    /// C.
    pub channels: usize,
    /// V.
    pub vocabulary: usize,
}
