//! What is known of a tensor before its memory is: how long it is, what its arrays hold, and what it is a part of.

use crate::Kind;

/// A tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The number of elements, 0 allowed.
    pub length: usize,
    /// The position of its group.
    pub group: usize,
    /// What its arrays hold.
    pub kind: Kind,
    /// Its exponent bias; `None` to choose one from its first gradient that is not zero. Kinds
    /// without a bias have any.
    pub bias: Option<u32>,
    /// What its group and place add to the keys of published random numbers, see
    /// [`published_key`](crate::published_key).
    pub published: u32,
    /// What it is a part of; `None` for a whole tensor at its own position.
    pub part: Option<TensorPart>,
}

/// What a tensor is a part of, where others have the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The position of the whole tensor among all, which random words go by.
    pub tensor: u32,
    /// The position of the part's first element in the whole tensor.
    pub start: u64,
    /// The number of elements of the whole tensor.
    pub whole: u64,
}

impl TensorPlan {
    /// The part that the tensor is, at position `position` of the plan.
    pub(crate) fn part(&self, position: usize) -> TensorPart {
        let (tensor, whole) = (position as u32, self.length as u64);
        self.part.unwrap_or(TensorPart { tensor, start: 0, whole })
    }
}
