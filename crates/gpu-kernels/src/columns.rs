//! Sums over the rows of matrices: gradients of biases, and the second stage of other sums. Launches
//! `cuda/columns.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::{Held, check_length};
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network::{self, LANE_COLUMNS, SUM_THREADS, SUMS_MAX, THREADS};
use crate::{Buffer, Error, Gpu, Precision, ViewMut};

/// Rows of a run, at least.
const RUN_ROWS_MIN: usize = 64;
/// Most runs.
const RUNS_MAX: usize = 128;

/// The first stage: sums over runs of rows.
pub(crate) struct ColumnRuns {
    kernel: Kernel,
    vector: usize,
}

/// The second stage: sums over those runs, of many matrices in one launch.
pub struct RunSums {
    kernel: Kernel,
}

/// What the second stage is to add up: the last columns of partial sums `[runs, stride]`. It keeps the
/// memory of both, and may be queued when the partial sums have been.
#[derive(Debug)]
pub struct PendingSum {
    partials: Held,
    sums: Held,
    runs: usize,
    columns: usize,
    stride: usize,
    adds: bool,
}

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) address: u64,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Runs {
    matrix: u64,
    partials: u64,
    rows: u32,
    columns: u32,
    run_rows: u32,
    runs: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Columns {
    partials: u64,
    sums: u64,
    runs: u32,
    columns: u32,
    stride: u32,
    adds: u32,
    first_block: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AllColumns {
    count: u32,
    at: [Columns; SUMS_MAX],
}

impl ColumnRuns {
    /// For matrices of a number of columns that `divisor` divides.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        precision: Precision,
        divisor: usize,
    ) -> Result<ColumnRuns, Error> {
        let bytes = precision.activation_bytes();
        let vector = network::vector(divisor, bytes);
        let kernel = gpu.module(&network::columns(vector, bytes))?.kernel("column_runs")?;
        Ok(ColumnRuns { kernel, vector })
    }

    /// Elements of the partial sums of a matrix.
    pub(crate) fn workspace_length(rows: usize, columns: usize) -> usize {
        rows.div_ceil(run_rows(rows)) * columns
    }

    /// Overwrites `partials` from element `place` on with the sums of runs of rows of a matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    ///
    /// # Safety
    ///
    /// Duties 2 and 3 of [`launch`], for the matrix.
    pub(crate) unsafe fn queue(
        &self,
        gpu: &Gpu,
        partials: &Buffer<f32>,
        place: usize,
        matrix: Matrix,
    ) -> Result<(), Error> {
        let Matrix { address, rows, columns } = matrix;
        let vector = self.vector;
        assert!(columns.is_multiple_of(vector), "{columns} columns in vectors of {vector}");
        let needed = place + ColumnRuns::workspace_length(rows, columns);
        check_length("partial sums", needed, partials.len().min(needed))?;
        let run_rows = run_rows(rows);
        let runs = rows.div_ceil(run_rows);
        let argument = Runs {
            matrix: address,
            partials: partials.address() + 4 * place as u64,
            rows: rows as u32,
            columns: columns as u32,
            run_rows: run_rows as u32,
            runs: runs as u32,
        };
        let blocks = runs * columns.div_ceil(LANE_COLUMNS * vector);
        // SAFETY: 1. `Runs` is laid out as in columns.cu, which was compiled for these threads. 2. All
        // are as long as was checked, or the caller's. 3. The partial sums have no other use but by
        // this stream.
        unsafe { launch(gpu, &self.kernel, blocks as u32, THREADS, &argument) }
    }
}

impl PendingSum {
    /// The last columns of `partials` `[runs, stride]`, to be stored in `sums`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`].
    pub(crate) fn new(
        sums: &ViewMut<'_, f32>,
        partials: &Buffer<f32>,
        (runs, stride): (usize, usize),
        adds: bool,
    ) -> Result<PendingSum, Error> {
        let columns = sums.len();
        assert!(columns <= stride, "{columns} columns of {stride}");
        check_length("partial sums", runs * stride, partials.len().min(runs * stride))?;
        let (partials, sums) = (partials.held(), sums.held());
        Ok(PendingSum { partials, sums, runs, columns, stride, adds })
    }

    /// The sums of runs of a matrix `[rows, columns]`, from element `place` of `partials` on, to be
    /// stored in `sums`, which are as many as columns.
    pub(crate) fn of_runs(
        partials: &Buffer<f32>,
        place: usize,
        sums: Held,
        [rows, columns]: [usize; 2],
        adds: bool,
    ) -> PendingSum {
        let runs = ColumnRuns::workspace_length(rows, columns) / columns;
        let partials = partials.held().at(4 * place);
        PendingSum { partials, sums, runs, columns, stride: columns, adds }
    }

    /// The addresses of partial sums and sums.
    #[must_use]
    pub fn touched(&self) -> [u64; 2] {
        [self.partials.address(), self.sums.address()]
    }
}

impl RunSums {
    /// Sums that one launch takes, at most; more take several.
    pub const AT_ONCE: usize = SUMS_MAX;

    /// The kernel.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu) -> Result<RunSums, Error> {
        let kernel = gpu.module(&network::columns(1, 4))?.kernel("column_sums")?;
        Ok(RunSums { kernel })
    }

    /// Stores what was pending, all in the order of the runs.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn queue(&self, gpu: &Gpu, pending: &[PendingSum]) -> Result<(), Error> {
        for pending in pending.chunks(SUMS_MAX) {
            let mut argument =
                AllColumns { count: pending.len() as u32, at: [Columns::default(); SUMS_MAX] };
            let mut blocks = 0;
            for (place, sum) in argument.at.iter_mut().zip(pending) {
                *place = Columns {
                    partials: sum.partials.address(),
                    sums: sum.sums.address(),
                    runs: sum.runs as u32,
                    columns: sum.columns as u32,
                    stride: sum.stride as u32,
                    adds: u32::from(sum.adds),
                    first_block: blocks,
                };
                blocks += sum.columns.div_ceil(LANE_COLUMNS) as u32;
            }
            // SAFETY: 1. `AllColumns` is laid out as in columns.cu, which was compiled for these
            // threads. 2. and 3. Whoever made a pending sum checked its lengths, held its memory, and
            // borrowed the sums mutably; partial sums are queued before it.
            unsafe { launch(gpu, &self.kernel, blocks, SUM_THREADS, &argument)? };
        }
        Ok(())
    }
}

fn run_rows(rows: usize) -> usize {
    rows.div_ceil(RUNS_MAX).max(RUN_ROWS_MIN)
}
