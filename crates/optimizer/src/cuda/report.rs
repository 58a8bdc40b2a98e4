//! What a device counted, in the words of the contract.

use gpu_kernels::Outcome;

use crate::groups::Layout;
use crate::{Location, OnNonfinite, Report};

/// The report of an outcome.
pub(super) fn of(layout: &Layout, outcome: &Outcome) -> Report {
    // The update itself counts nothing when it was dropped before.
    let nonfinite =
        if outcome.is_dropped { outcome.nonfinite_gradients } else { outcome.nonfinite };
    let skips = layout.options.on_nonfinite == OnNonfinite::Skip;
    Report {
        update: outcome.update,
        gradient_norm: outcome.gradient_norm,
        clip_scale: outcome.clip_scale,
        nonfinite,
        saturated_m: outcome.saturated_m,
        saturated_r: outcome.saturated_r,
        first_nonfinite: outcome.first_nonfinite.and_then(|position| locate(layout, position)),
        skipped: outcome.is_dropped || (skips && outcome.nonfinite > 0),
    }
}

/// The element at `position` among those of all tensors.
fn locate(layout: &Layout, position: u64) -> Option<Location> {
    let mut rest = usize::try_from(position).ok()?;
    layout.tensors.iter().enumerate().find_map(|(tensor, spec)| {
        if rest < spec.length {
            return Some(Location { tensor, index: rest + layout.parts[tensor].start as usize });
        }
        rest -= spec.length;
        None
    })
}
