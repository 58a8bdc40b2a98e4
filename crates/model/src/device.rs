//! Memory of a device and the recording of steps: the seam below the operations, without any
//! mathematics. Public as `ops::Device`.

use std::ops::Range;

use crate::Error;

/// Which rows of an update [`Device::gather`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherShape {
    /// B: rows of the batch.
    pub rows: usize,
    /// T: tokens of a row.
    pub time: usize,
    /// The first of them among the rows of the update.
    pub first_row: usize,
    /// Rows of the update.
    pub update_rows: usize,
    /// Whether the next update comes after this batch.
    pub advances: bool,
}

/// Floats on their way to the host; see [`Device::download_later`].
pub type FloatsLater = Box<dyn FnOnce() -> Result<Vec<f32>, Error> + Send>;

/// Memory of a device, and steps that can be replayed. A clone is the same device.
pub trait Device: Sized + Clone + Send + Sync {
    /// Parameters, gradients, statistics and losses.
    type Floats: Send + Sync;
    /// A part of [`Device::Floats`], to read.
    type View<'a>: Copy + Send + Sync
    where
        Self: 'a;
    /// A part of [`Device::Floats`], to write.
    type ViewMut<'a>: Send;
    /// What flows between operations; its precision is a property of the device.
    type Activations: Send + Sync;
    /// Token ids.
    type Tokens: Send + Sync;
    /// The other form that a device keeps of parameters, see [`Device::reserve_parameters`].
    type Copy;
    /// A step as this device remembers it; the default has nothing recorded.
    type Recording: Default + Send;

    /// Bytes of one element of [`Device::Floats`].
    fn float_bytes(&self) -> usize;

    /// Bytes of one element of [`Device::Activations`].
    fn activation_bytes(&self) -> usize;

    /// A buffer of zeros.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    fn floats(&self, length: usize) -> Result<Self::Floats, Error>;

    /// A buffer of zeros.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    fn activations(&self, length: usize) -> Result<Self::Activations, Error>;

    /// Buffers of zeros, which a device may put where one operation can take them all.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    fn activations_side_by_side(
        &self,
        length: usize,
        count: usize,
    ) -> Result<Vec<Self::Activations>, Error> {
        (0..count).map(|_| self.activations(length)).collect()
    }

    /// A buffer of zeros.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    fn tokens(&self, length: usize) -> Result<Self::Tokens, Error>;

    /// Elements of a buffer.
    fn length(&self, floats: &Self::Floats) -> usize;

    /// Overwrites the front of a buffer from the host.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the buffer is shorter than `from`.
    fn upload(&self, to: &mut Self::Floats, from: &[f32]) -> Result<(), Error>;

    /// Overwrites the elements of a buffer from `start` on from the host.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if there are fewer than in `from`.
    fn upload_tokens(&self, to: &mut Self::Tokens, start: usize, from: &[u32])
    -> Result<(), Error>;

    /// Memory that is free, of a device with memory of its own.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn free_bytes(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Bytes of that other form of so many parameters that [`Device::reserve_parameters`] makes room for.
    fn parameter_copy_bytes(&self, parameters: usize) -> u64 {
        let _ = parameters;
        0
    }

    /// Token ids that the device can spare memory for, beside all that was asked for so far; 0 where more
    /// memory gains nothing.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn spare_tokens(&self) -> Result<u64, Error> {
        Ok(0)
    }

    /// The first `length` floats as they are now, without waiting until all of them are there: work may change them
    /// meanwhile. What is returned waits for the rest of the way, on any thread.
    ///
    /// # Errors
    ///
    /// As [`Device::download`].
    fn download_later(&self, from: &Self::Floats, length: usize) -> Result<FloatsLater, Error> {
        let mut floats = vec![0.0; length];
        self.download(from, &mut floats)?;
        Ok(Box::new(move || Ok(floats)))
    }

    /// Tokens that a pass without gradients should have at once to keep the device busy; 0 where few do.
    fn scoring_tokens(&self) -> usize {
        0
    }

    /// Overwrites `tokens` and `targets`, `[rows, time]`, with rows out of `ids`; can be recorded.
    ///
    /// ```text
    /// tokens[b, t]  = ids[start + t]         0 from t = count on
    /// targets[b, t] = ids[start + t + 1]     IGNORED from t = count on
    /// ```
    ///
    /// `schedule` is the number of an update, and then start and count of every row of every update; those
    /// of that update are taken, and where the shape says so the number goes up by one. What lies beyond
    /// `ids` or the schedule counts as missing.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] for buffers of another size, and those of the device.
    fn gather(
        &self,
        batch: [&mut Self::Tokens; 2],
        ids: &Self::Tokens,
        schedule: &mut Self::Tokens,
        shape: GatherShape,
    ) -> Result<(), Error>;

    /// Copies the front of a buffer to the host, after all work that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the buffer is shorter than `to`.
    fn download(&self, from: &Self::Floats, to: &mut [f32]) -> Result<(), Error>;

    /// Makes room for what the device keeps of a parameter buffer in another form, such as a rounded
    /// copy. Called before the first pass over that buffer, and never in a recording; a second call
    /// does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and those of the device.
    fn reserve_parameters(&self, parameters: &Self::Floats) -> Result<(), Error> {
        let _ = parameters;
        Ok(())
    }

    /// That other form, for whoever changes parameters to change it too; `None` if none is kept. After
    /// [`Device::reserve_parameters`].
    fn parameter_copy(&self, parameters: &Self::Floats) -> Option<Self::Copy>;

    /// Brings that other form up to date with the parameters; every pass begins with it, unless whoever changes parameters
    /// keeps it up to date. `ranges` are
    /// those that products read, in the order in which the pass comes to them.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn prepare_parameters(
        &self,
        parameters: &Self::Floats,
        ranges: &[Range<usize>],
    ) -> Result<(), Error> {
        let _ = (parameters, ranges);
        Ok(())
    }

    /// Every pass ends with it: a device that does some work aside brings that to its end before
    /// whatever follows.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn finish_pass(&self) -> Result<(), Error> {
        Ok(())
    }

    /// A part of a buffer, to read.
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    fn view<'a>(&'a self, floats: &'a Self::Floats, range: Range<usize>) -> Self::View<'a>;

    /// A part of a buffer, to write.
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    fn view_mut<'a>(&self, floats: &'a mut Self::Floats, range: Range<usize>) -> Self::ViewMut<'a>;

    /// Two parts of a buffer, to write, of which the first ends before the second begins.
    ///
    /// # Panics
    ///
    /// If it does not, or they are not within the buffer.
    fn two_views_mut<'a>(
        &self,
        floats: &'a mut Self::Floats,
        ranges: [Range<usize>; 2],
    ) -> [Self::ViewMut<'a>; 2];

    /// Runs a step, or replays it: with an empty recording the closure is called, and a device may
    /// remember the operations it asked for; with a filled one those operations run again, on the
    /// same buffers, and the closure is not called. A `record` inside a `record` just calls its
    /// closure.
    ///
    /// # Errors
    ///
    /// Those of the closure, and those of the device.
    fn record<F, E>(&self, recording: &mut Self::Recording, step: F) -> Result<(), E>
    where
        F: FnOnce() -> Result<(), E> + Send,
        E: From<Error> + Send;

    /// Operations that a replay launches; 0 with nothing recorded, and where a recording is just
    /// the closure.
    fn launches(&self, recording: &Self::Recording) -> u64;
}
