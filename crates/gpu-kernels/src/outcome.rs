//! What the host learns of a step.

use crate::table::Control;

/// What the steps since the last `set_update` found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The update.
    pub update: u64,
    /// The norm of all gradients before clipping, over finite elements; NaN if it was not measured.
    pub gradient_norm: f64,
    /// What gradients were multiplied by.
    pub clip_scale: f32,
    /// Elements that were left alone because something was not finite.
    pub nonfinite: u64,
    /// Elements whose first moment was clamped at the largest finite code.
    pub saturated_m: u64,
    /// Elements whose second moment was clamped at the largest finite code.
    pub saturated_r: u64,
    /// The first of the non-finite elements, counted over all tensors.
    pub first_nonfinite: Option<u64>,
    /// Gradients that are not finite, if the norm was measured.
    pub nonfinite_gradients: u64,
    /// Whether the update was dropped because a gradient or the loss is not finite, or because updates
    /// are dropped for good.
    pub is_dropped: bool,
}

/// The outcome in the words of a control.
pub(crate) fn read(words: &[u32]) -> Outcome {
    let control: Control = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
    let first = control.first_nonfinite;
    Outcome {
        update: control.update,
        gradient_norm: control.gradient_norm,
        clip_scale: control.clip_scale,
        nonfinite: control.nonfinite,
        saturated_m: control.saturated_m,
        saturated_r: control.saturated_r,
        first_nonfinite: (first != u64::MAX).then_some(first),
        nonfinite_gradients: control.nonfinite_gradients,
        is_dropped: control.is_dropped != 0,
    }
}
