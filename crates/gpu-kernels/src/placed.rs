//! Steps over the tensors of another library: wherever they lie, on its streams, each an update of its own that
//! the host need not prepare, so that the library's recordings of them go on by themselves.
//!
//! Places that change from step to step are copied to the device from pinned memory. A recording keeps
//! the memory that it copies from, since its replays copy it again.

use crate::advance::{Advance, Rule};
use crate::buffer::check_device;
use crate::layout::Layout;
use crate::ring::Uploads;
use crate::table::{Bases, Tensor};
use crate::{Error, FusedAdamW, Gpu, Pinned, Placement};

/// What steps over placed tensors keep.
pub(crate) struct Placed {
    /// Loaded when it is first asked for.
    advance: Option<Advance>,
    /// Where the tensors of the last step lie.
    placement: Option<Placement>,
    /// Whether the table on the device says the same, as far as the host can know.
    is_table_current: bool,
    /// None where kernels have the table in their argument.
    uploads: Option<Uploads<Tensor>>,
    /// Memory for a table that the next recording copies; recordings cannot allocate.
    spare: Option<Pinned<Tensor>>,
    /// What recordings copy.
    recorded: Vec<Pinned<Tensor>>,
}

/// Tables that may be on their way to the device at once. A host that is further ahead waits.
const TABLES_UNDER_WAY: usize = 16;

impl Placed {
    /// `reads_table` says whether kernels read the table of tensors from memory.
    pub(crate) fn new(gpu: &Gpu, layout: &Layout, reads_table: bool) -> Result<Placed, Error> {
        let tensors = layout.tensors.len();
        let needs_table = layout.is_placed && reads_table && tensors > 0;
        let spare = needs_table.then(|| Pinned::zeros(gpu, tensors)).transpose()?;
        let uploads = || Uploads::of_length(gpu, tensors, TABLES_UNDER_WAY);
        Ok(Placed {
            advance: None,
            placement: None,
            is_table_current: false,
            uploads: needs_table.then(uploads).transpose()?,
            spare,
            recorded: Vec::new(),
        })
    }
}

impl FusedAdamW {
    /// Queues a step over tensors that lie where `placement` says. The table of tensors is copied
    /// anew where a place has changed and a kernel reads the table from memory.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], [`Error::Recording`] for a second recording without a step
    /// outside of one in between, and what the driver refuses.
    ///
    /// # Panics
    ///
    /// If the model was made for tensors that lie one after the other.
    pub fn step_placed(&mut self, placement: &Placement) -> Result<(), Error> {
        let bases = self.placed_bases(placement)?;
        self.queue(bases, None)
    }

    /// The bases of tensors that lie where `placement` says, once kernels find them there.
    pub(crate) fn placed_bases(&mut self, placement: &Placement) -> Result<Bases, Error> {
        assert!(self.layout.is_placed, "the tensors of this model lie one after the other");
        if self.placed.placement.as_ref() != Some(placement) {
            self.layout.place(placement)?;
            self.argument.set_tensors(&self.layout);
            self.placed.placement = Some(placement.clone());
            self.placed.is_table_current = false;
        }
        self.queue_table()?;
        Ok(Bases { state: self.state.address(), ..Bases::default() })
    }

    /// Has the table on the device say where the tensors are, if kernels read it there.
    fn queue_table(&mut self) -> Result<(), Error> {
        let Placed { is_table_current, uploads, spare, recorded, .. } = &mut self.placed;
        let Some(uploads) = uploads else { return Ok(()) };
        if self.gpu.is_recording()? {
            // What the table says when this is replayed, nobody knows: it is copied in any case.
            let operation = "a second recording of steps without a step outside of one in between";
            let mut staging = spare.take().ok_or(Error::Recording { operation })?;
            staging.write()?.copy_from_slice(&self.layout.tensors);
            staging.queue_upload_for_good(&mut self.table)?;
            recorded.push(staging);
            return Ok(());
        }
        if spare.is_none() {
            *spare = Some(Pinned::zeros(&self.gpu, self.layout.tensors.len())?);
        }
        // A replay may have overwritten the table since.
        if !*is_table_current || !recorded.is_empty() {
            uploads.queue(self.table.view_mut(), &self.layout.tensors)?;
            *is_table_current = true;
        }
        Ok(())
    }

    /// Loads what [`queue_next_update`](Self::queue_next_update) launches, which a recording could not.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn prepare_next_update(&mut self) -> Result<(), Error> {
        if self.placed.advance.is_none() {
            self.placed.advance = Some(Advance::new(&self.gpu)?);
        }
        Ok(())
    }

    /// Queues what [`set_update`](Self::set_update) does for the update after the one that the device
    /// is at, worked out on the device itself: it may be recorded, and then every replay is another
    /// update.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    ///
    /// # Panics
    ///
    /// If `rules` are not as many as the groups that the model has.
    pub fn queue_next_update(&mut self, rules: &[Rule]) -> Result<(), Error> {
        self.prepare_next_update()?;
        let others = (self.options.seed, self.gate_address(), self.unmeasured_norm());
        let advance = self.placed.advance.as_ref().expect("it was just loaded");
        advance.queue(&self.gpu, &mut self.control, rules, others)?;
        self.slots.is_fresh = true;
        Ok(())
    }

    /// The update that the device is at.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub fn update_number(&self) -> Result<u64, Error> {
        let words = self.control.view().part(0..2).to_vec()?;
        Ok(u64::from(words[0]) | u64::from(words[1]) << 32)
    }

    /// Says which update the device is at.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn set_update_number(&mut self, update: u64) -> Result<(), Error> {
        let words = [update as u32, (update >> 32) as u32];
        self.control.view_mut().part(0..2).upload(&words)
    }

    /// Queues later work on another stream of the same device. Whoever changes streams orders the work
    /// of both.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`].
    pub fn set_stream(&mut self, gpu: &Gpu) -> Result<(), Error> {
        check_device("the stream", &self.gpu, gpu)?;
        self.gpu = gpu.clone();
        self.table.set_stream(gpu);
        self.first_blocks.set_stream(gpu);
        self.state.set_stream(gpu);
        self.maps.set_stream(gpu);
        self.biases.set_stream(gpu);
        self.gradient_maxima.set_stream(gpu);
        self.set_stream_of_slots(gpu)?;
        self.gate.set_stream(gpu);
        if let Some(norm) = &mut self.norm {
            norm.set_stream(gpu);
        }
        if let Some(shared) = &mut self.shared {
            shared.set_stream(gpu);
        }
        Ok(())
    }
}
