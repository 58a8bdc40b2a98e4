//! Updates that are queued several at a time, as a device wants them that is fed by recordings. Where a step is done
//! when it is asked for, they come one at a time.

use std::ops::Range;

use crate::{AdamW, CpuAdamW, Error, Report, SavedState};

/// State on its way to memory of its own: waits for the rest of the way, on any thread.
pub type SavedLater = Box<dyn FnOnce() -> Result<SavedState<'static>, Error> + Send>;

/// AdamW whose updates may be queued several at a time.
///
/// A few updates that follow each other are set at once, each at a position. Then, for each of them and perhaps in one
/// recording for all: [`select`](QueuedAdamW::select) and a step. Their reports come back together. Parameters, moments and
/// reports get the bits of one update after the other.
pub trait QueuedAdamW: AdamW {
    /// The parameters in another form, written by every update.
    type Copy;
    /// The update of some tensors, which somebody else queues later.
    type Later;

    /// Updates that can be set at once.
    fn updates_at_once(&self) -> usize;

    /// Has every update also write the parameters to a copy.
    ///
    /// # Errors
    ///
    /// If it is not one of as many parameters.
    fn set_copy(&mut self, copy: Self::Copy) -> Result<(), Error>;

    /// [`AdamW::set_update`] of the updates from number `first` on, as many as there are learning rates of all groups.
    /// The last of them is selected.
    ///
    /// # Errors
    ///
    /// As [`AdamW::set_update`].
    ///
    /// # Panics
    ///
    /// If they are none, or more than can be set at once.
    fn set_updates(&mut self, first: u64, learning_rates: &[Vec<f64>]) -> Result<(), Error>;

    /// Has what is queued from now on be of the update at a position.
    ///
    /// # Panics
    ///
    /// If there is no such position.
    fn select(&mut self, position: usize);

    /// [`AdamW::step_watching`] but for the update of some tensors: `pieces` of positions, which follow each other up to the
    /// last tensor. Each comes back to be done later; none if this step has done them all.
    ///
    /// # Errors
    ///
    /// As [`AdamW::step_watching`].
    ///
    /// # Panics
    ///
    /// If pieces do not follow each other to the end.
    fn step_but(
        &mut self,
        parameters: &mut Self::Buffer,
        gradients: &Self::Buffer,
        loss: &Self::Scalar,
        pieces: &[Range<usize>],
    ) -> Result<Vec<Self::Later>, Error> {
        let _ = pieces;
        self.step_watching(parameters, gradients, loss)?;
        Ok(Vec::new())
    }

    /// Queues the reports of all updates that were set last, without waiting for them.
    ///
    /// # Errors
    ///
    /// As [`AdamW::queue_report`].
    fn queue_reports(&mut self) -> Result<(), Error>;

    /// The oldest queued reports that were not taken yet, in order. `None` if there are none, or if they are still on
    /// their way and nobody `waits` for them.
    ///
    /// # Errors
    ///
    /// As [`AdamW::take_report`].
    fn take_reports(&mut self, waits: bool) -> Result<Option<Vec<Report>>, Error>;

    /// [`AdamW::save`] as of now, without waiting until all of it is there; steps may follow meanwhile.
    ///
    /// # Errors
    ///
    /// As [`AdamW::save`].
    fn save_later(&mut self) -> Result<SavedLater, Error> {
        let saved = self.save()?.into_owned();
        Ok(Box::new(move || Ok(saved)))
    }
}

/// One update at a time.
impl QueuedAdamW for CpuAdamW {
    type Copy = ();
    type Later = ();

    fn updates_at_once(&self) -> usize {
        1
    }

    fn set_copy(&mut self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    fn set_updates(&mut self, first: u64, learning_rates: &[Vec<f64>]) -> Result<(), Error> {
        let [rates] = learning_rates else { panic!("{} updates at once", learning_rates.len()) };
        self.set_update(first, rates)
    }

    fn select(&mut self, position: usize) {
        assert_eq!(position, 0, "there is one update at a time");
    }

    fn queue_reports(&mut self) -> Result<(), Error> {
        self.queue_report()
    }

    fn take_reports(&mut self, waits: bool) -> Result<Option<Vec<Report>>, Error> {
        Ok(self.take_report(waits)?.map(|report| vec![report]))
    }
}
