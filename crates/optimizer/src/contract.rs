//! The contract that a trainer uses: one flat buffer of parameters, one of
//! gradients, and what must be set, stepped, reported, saved and loaded.

use crate::saved::SavedState;
use crate::{Error, Group, TensorSpec};

/// AdamW over the tensors of a model that lie one after the other in a flat buffer.
///
/// One update is `set_update`, then `step`. Only `set_update` changes what a step
/// does, so a device may record a step once and replay it.
pub trait AdamW {
    /// A flat buffer of f32 on the device.
    type Buffer;

    /// One f64 on the device.
    type Scalar;

    /// The tensors, in the order in which they lie in the buffers.
    fn tensors(&self) -> &[TensorSpec];

    /// The update that the next step does, counted from 1, and the learning rate of
    /// each group for it. Numbers need not follow each other; the bias corrections
    /// and the random words are those of `update`.
    ///
    /// # Errors
    ///
    /// If `update` is 0, the number of rates is not that of groups, or a rate cannot
    /// be used. The update set before stays set.
    fn set_update(&mut self, update: u64, learning_rates: &[f64]) -> Result<(), Error>;

    /// Gives a group other betas, eps, decay and learning rate, from the next `set_update` on. Its format and bias
    /// stay.
    ///
    /// # Errors
    ///
    /// If there is no such group, a hyperparameter is out of range, or the format is another. Nothing is
    /// changed then.
    fn set_group(&mut self, position: usize, group: Group) -> Result<(), Error>;

    /// Updates `parameters` and the moments from `gradients`. An update that is
    /// skipped, because something is not finite, is a success; the report tells.
    ///
    /// # Errors
    ///
    /// If no update is set, or a buffer has another length than the tensors
    /// together. Nothing is changed then.
    fn step(
        &mut self,
        parameters: &mut Self::Buffer,
        gradients: &Self::Buffer,
    ) -> Result<(), Error>;

    /// [`AdamW::step`] by the gradients of `loss`. One that is not finite drops the update, as a gradient would,
    /// where options ask for [`Skip`](crate::OnNonfinite::Skip) or [`Hold`](crate::OnNonfinite::Hold).
    ///
    /// # Errors
    ///
    /// As [`AdamW::step`].
    fn step_watching(
        &mut self,
        parameters: &mut Self::Buffer,
        gradients: &Self::Buffer,
        loss: &Self::Scalar,
    ) -> Result<(), Error>;

    /// What happened in the last step.
    ///
    /// # Errors
    ///
    /// If there was none.
    fn report(&mut self) -> Result<Report, Error>;

    /// Queues the report of the last step, without waiting for it.
    ///
    /// # Errors
    ///
    /// If there was no step, and what the device refuses.
    fn queue_report(&mut self) -> Result<(), Error>;

    /// The oldest queued report that was not taken yet. `None` if there is none, or if it is still on
    /// its way and nobody `waits` for it.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    fn take_report(&mut self, waits: bool) -> Result<Option<Report>, Error>;

    /// The bytes of the stored moments: what is allocated, exactly.
    fn state_bytes(&self) -> u64;

    /// The moments as named arrays, with all that must match when they are loaded.
    ///
    /// # Errors
    ///
    /// If a device cannot be read.
    fn save(&self) -> Result<SavedState<'_>, Error>;

    /// Takes over saved moments, biases and the update number. A `set_update` must
    /// follow before the next step.
    ///
    /// # Errors
    ///
    /// If the state was saved with other tensors, formats, biases, hyperparameters
    /// or another version, or is damaged; the message has both values. Nothing is
    /// changed then.
    fn load(&mut self, state: &SavedState<'_>) -> Result<(), Error>;
}

/// AdamW over parts of tensors of which others, such as the ranks of a training, have the rest. The parts end
/// with the bits that whole tensors would have.
///
/// All who share list the same whole tensors in the same order, each as a [`Part`](crate::Part); a part may be
/// empty. One update is `set_update`, then three stages with two sums between them, or all five in one call:
///
/// ```text
/// measure    add measured() up    update    add spreads() up    finish
/// ```
///
/// Both are f64 numbers, as many for everybody. Adding them up is exact in any order: each is a whole number,
/// or that of one part alone and zero elsewhere. On a device nothing is waited for, and all may be
/// recorded. Counts in a report are those of the own parts; the gradient norm is that of all, where it is
/// measured.
pub trait SharedAdamW: AdamW {
    /// Numbers on the device.
    type Sums: ?Sized;

    /// Looks at gradients, and at their loss, if there is one. A loss that is not finite drops the update
    /// where options ask for [`Hold`](crate::OnNonfinite::Hold).
    ///
    /// # Errors
    ///
    /// If no update is set, the buffer has another length, or no tensor is a part.
    fn measure(
        &mut self,
        gradients: &Self::Buffer,
        loss: Option<&Self::Scalar>,
    ) -> Result<(), Error>;

    /// What [`SharedAdamW::measure`] found, to be replaced by the sums over all who share. `None` if nothing
    /// is measured, for all of them.
    fn measured(&mut self) -> Option<&mut Self::Sums>;

    /// Updates the own parts.
    ///
    /// # Errors
    ///
    /// If nothing was measured before, or a buffer has another length.
    fn update_parts(
        &mut self,
        parameters: &mut Self::Buffer,
        gradients: &Self::Buffer,
    ) -> Result<(), Error>;

    /// What [`SharedAdamW::update_parts`] found, likewise; `None` if no format has a scale for whole tensors.
    fn spreads(&mut self) -> Option<&mut Self::Sums>;

    /// Ends the step.
    ///
    /// # Errors
    ///
    /// If there was no update before, and what a device refuses.
    fn finish(&mut self) -> Result<(), Error>;

    /// All stages; `add` replaces numbers by their sums over all who share.
    ///
    /// # Errors
    ///
    /// Those of the stages, and of `add`.
    fn step_shared<E: From<Error>>(
        &mut self,
        parameters: &mut Self::Buffer,
        gradients: &Self::Buffer,
        loss: Option<&Self::Scalar>,
        mut add: impl FnMut(&mut Self::Sums) -> Result<(), E>,
    ) -> Result<(), E> {
        self.measure(gradients, loss)?;
        self.measured().map_or(Ok(()), &mut add)?;
        self.update_parts(parameters, gradients)?;
        self.spreads().map_or(Ok(()), &mut add)?;
        Ok(self.finish()?)
    }
}

/// What happened in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The update.
    pub update: u64,
    /// The norm of all gradients together before clipping, over finite elements.
    pub gradient_norm: f64,
    /// What the gradients were multiplied by; 1 without clipping.
    pub clip_scale: f32,
    /// Elements left as they were because their gradient, or their new moments or
    /// parameter, is not finite.
    pub nonfinite: u64,
    /// Elements whose first moment was clamped at the largest finite code.
    pub saturated_m: u64,
    /// Elements whose RMS was clamped at the largest finite code.
    pub saturated_r: u64,
    /// The first of the non-finite elements.
    pub first_nonfinite: Option<Location>,
    /// Whether the update was dropped, as [`Skip`](crate::OnNonfinite::Skip) or
    /// [`Hold`](crate::OnNonfinite::Hold) ask. Nothing was encoded then, so nothing
    /// counts as saturated.
    pub skipped: bool,
}

/// An element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The position of the tensor among all.
    pub tensor: usize,
    /// The position of the element in the whole tensor.
    pub index: usize,
}
