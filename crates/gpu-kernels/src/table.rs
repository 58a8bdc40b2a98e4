//! What kernels find in memory: the table of tensors, and the scalars and counters of a step. The
//! same bytes as `cuda/table.cuh`, which checks their sizes against these.

#![expect(unsafe_code, reason = "plain layouts that kernels read")]

use bytemuck::{Pod, Zeroable};

/// The bias of a tensor that has none yet.
pub(crate) const BIAS_UNSET: i32 = -1;

/// Addresses that those in the table count from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) parameters: u64,
    pub(crate) remainders: u64,
    pub(crate) gradients: u64,
    pub(crate) state: u64,
}

/// One tensor. Addresses are bytes from the bases of a launch; those that its kind has no use for
/// are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) parameters: u64,
    pub(crate) remainders: u64,
    pub(crate) gradients: u64,
    /// The first and the second array of the state.
    pub(crate) first: u64,
    pub(crate) second: u64,
    pub(crate) length: u64,
    /// How many elements all tensors before it have.
    pub(crate) first_element: u64,
    pub(crate) group: u32,
    /// How many elements before the tensor its blocks begin, at a border of a wide access; 4 if its
    /// arrays do not agree on one.
    pub(crate) shift: u32,
    pub(crate) kind: u32,
    /// What group and place add to the keys of published random numbers.
    pub(crate) published: u32,
}

/// What a tensor is a part of, where others have the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartRow {
    pub(crate) start: u64,
    pub(crate) tensor: u32,
    /// The position of its numbers among those that all parts add up.
    pub(crate) spreads: u32,
}

/// A tensor whose first moments have a scale, which is that of all parts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scaled {
    /// The address of its [`UStateRecord`].
    pub(crate) record: u64,
    /// Elements that count where those without a first moment do too; 0 where only others do.
    pub(crate) whole: u64,
    pub(crate) group: u32,
    pub(crate) padding: u32,
}

/// The scalars of one group of tensors at one update.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// `beta1`
    pub beta1: f32,
    /// `1 - beta1`
    pub one_minus_beta1: f32,
    /// `beta2`
    pub beta2: f32,
    /// `1 - beta2`
    pub one_minus_beta2: f32,
    /// `eps`
    pub eps: f32,
    /// `1 - lr weight_decay`
    pub decay: f32,
    /// `lr / (1 - beta1^t)`
    pub step: f32,
    /// `1 / sqrt(1 - beta2^t)`
    pub rms_scale: f32,
    /// What formats of blocks read besides.
    pub blocks: BlockScalars,
}

/// What formats of blocks read of an update: bounds of moments, and units of first moments.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScalars {
    /// The largest `|m| / sqrt(v)` of exact moments at this update.
    pub ratio_max: f32,
    /// The same at the update before it.
    pub ratio_max_before: f32,
    /// Its inverse; 0 at the first update.
    pub inverse_ratio_max_before: f32,
    /// The largest normalised update.
    pub normalised_max: f32,
    /// `1 / (1 - beta1^t)`
    pub inverse_correction: f32,
    /// `1 - beta1^t`
    pub correction: f32,
    /// Nothing.
    pub padding: [f32; 2],
}

/// What a step reads and leaves besides the tensors; the groups follow it.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Control {
    pub(crate) update: u64,
    pub(crate) inner_key: u32,
    pub(crate) outer_key: u32,
    pub(crate) gradient_norm: f64,
    pub(crate) clip_scale: f32,
    /// Blocks of the norm that are done; back at zero after it.
    pub(crate) blocks_done: u32,
    pub(crate) nonfinite: u64,
    pub(crate) saturated_m: u64,
    pub(crate) saturated_r: u64,
    /// Counted over all tensors; all ones if there is none.
    pub(crate) first_nonfinite: u64,
    pub(crate) nonfinite_gradients: u64,
    /// Where the word lies that drops all updates once anything was not finite; 0 if there is none.
    pub(crate) gate: u64,
    /// Whether the norm found that the update is to be dropped.
    pub(crate) is_dropped: u32,
    /// The lower half of the seed, for published random numbers.
    pub(crate) seed_low: u32,
    pub(crate) padding: u64,
}

/// What a tensor's first moments in `ustate1q` have besides codes and means, in the array of its
/// scales, which are its front.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UStateRecord {
    pub(crate) decode_scale: f32,
    pub(crate) encode_scale: f32,
    pub(crate) zero: f32,
    /// The units and the bound that the state was written with, and the update that wrote it.
    pub(crate) normalised_max: f32,
    pub(crate) correction: f32,
    pub(crate) rms_scale: f32,
    pub(crate) written: u64,
    /// What blocks add up in the course of an update.
    pub(crate) sums: [u64; 4],
}

macro_rules! plain {
    ($($name:ty),*) => {
        $(
            // SAFETY: all fields are numbers, for which zero bits are a value.
            unsafe impl Zeroable for $name {}
            // SAFETY: a C layout of numbers in which no byte is padding, which the sizes below show;
            // any bits are a value.
            unsafe impl Pod for $name {}
        )*
    };
}
plain!(PartRow, Scaled, UStateRecord, BlockScalars, Bases, Tensor, Group, Control);

const _: () = assert!(size_of::<Tensor>() == 7 * 8 + 4 * 4);
const _: () = assert!(size_of::<PartRow>() == 16 && size_of::<Scaled>() == 24);
const _: () = assert!(size_of::<Group>() == 16 * 4);
const _: () = assert!(size_of::<UStateRecord>() == 64);
const _: () = assert!(size_of::<Control>() == 8 + 2 * 4 + 8 + 2 * 4 + 5 * 8 + 8 + 2 * 4 + 8);
