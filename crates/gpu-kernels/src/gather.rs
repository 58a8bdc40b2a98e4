//! The rows of the next update out of tapes on the device. Launches `cuda/gather.cu`.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::buffer::check_length;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network::{self, SUM_THREADS};
use crate::{Buffer, Error, Gpu};

/// Gathers batches.
pub struct Gather {
    kernel: Kernel,
}

/// Which rows of an update a batch has.
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

#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    tokens: u64,
    targets: u64,
    ids: u64,
    ids_length: u64,
    schedule: u64,
    rows: u32,
    time: u32,
    first_row: u32,
    update_rows: u32,
    updates: u32,
    advances: u32,
}

impl Gather {
    /// The kernel, which writes `ignored` where a row has no target.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, ignored: u32) -> Result<Gather, Error> {
        Ok(Gather { kernel: gpu.module(&network::gather(ignored))?.kernel("gather")? })
    }

    /// Overwrites `tokens` and `targets`, `[rows, time]`, with rows out of `ids`. `schedule` is the number of
    /// the update, and then for every row of every update where it begins in `ids`, and how many tokens it
    /// has. What lies beyond either of them counts as missing.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    ///
    /// # Panics
    ///
    /// If the rows of the batch are not among those of the update.
    pub fn queue(
        &self,
        gpu: &Gpu,
        [tokens, targets]: [&mut Buffer<u32>; 2],
        ids: &Buffer<u32>,
        schedule: &mut Buffer<u32>,
        shape: GatherShape,
    ) -> Result<(), Error> {
        let GatherShape { rows, time, first_row, update_rows, advances } = shape;
        check_length("gathered tokens", rows * time, tokens.len())?;
        check_length("gathered targets", rows * time, targets.len())?;
        assert!(0 < rows && first_row + rows <= update_rows, "{shape:?}");
        let needed = 1 + 2 * update_rows;
        check_length("a schedule", needed, schedule.len().min(needed))?;
        let argument = Argument {
            tokens: tokens.address(),
            targets: targets.address(),
            ids: ids.address(),
            ids_length: ids.len() as u64,
            schedule: schedule.address(),
            rows: rows as u32,
            time: time as u32,
            first_row: first_row as u32,
            update_rows: update_rows as u32,
            updates: ((schedule.len() - 1) / (2 * update_rows)) as u32,
            advances: u32::from(advances),
        };
        // SAFETY: 1. `Argument` is laid out as `Gather` in gather.cu, which was compiled for these threads.
        // 2. The kernel reads no further than the lengths that it is given. 3. All that is written was borrowed mutably.
        unsafe { launch(gpu, &self.kernel, 1, SUM_THREADS, &argument) }
    }
}
