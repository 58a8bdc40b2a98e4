//! Sums over the rows of a matrix: gradients of biases, and the second stage of other sums.
//! Launches `cuda/columns.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::check_length;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::network::{self, LANE_COLUMNS, SUM_THREADS, THREADS};
use crate::{Activations, Buffer, Error, Gpu, Precision, ViewMut};

/// Rows of a run, at least.
const RUN_ROWS_MIN: usize = 64;
/// Most runs.
const RUNS_MAX: usize = 128;

/// Sums of columns.
pub(crate) struct ColumnSums {
    runs: Kernel,
    sums: Kernel,
    vector: usize,
    precision: Precision,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Runs {
    matrix: u64,
    partials: u64,
    rows: u32,
    columns: u32,
    run_rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Columns {
    partials: u64,
    sums: u64,
    runs: u32,
    columns: u32,
    stride: u32,
    adds: u32,
}

impl ColumnSums {
    /// For matrices of a number of columns that `divisor` divides.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        precision: Precision,
        divisor: usize,
    ) -> Result<ColumnSums, Error> {
        let bytes = precision.activation_bytes();
        let vector = network::vector(divisor, bytes);
        let module = gpu.module(&network::columns(vector, bytes))?;
        let (runs, sums) = (module.kernel("column_runs")?, module.kernel("column_sums")?);
        Ok(ColumnSums { runs, sums, vector, precision })
    }

    /// Elements of the partial sums of a matrix.
    pub(crate) fn workspace_length(rows: usize, columns: usize) -> usize {
        rows.div_ceil(run_rows(rows)) * columns
    }

    /// Stores in `sums` those of the columns of a matrix `[rows, sums.len()]`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub(crate) fn of_matrix(
        &self,
        gpu: &Gpu,
        sums: ViewMut<'_, f32>,
        matrix: &Activations,
        rows: usize,
        partials: &Buffer<f32>,
        adds: bool,
    ) -> Result<(), Error> {
        let columns = sums.len();
        assert!(
            columns.is_multiple_of(self.vector),
            "{columns} columns in vectors of {}",
            self.vector
        );
        matrix.check("a matrix", self.precision, rows * columns)?;
        let needed = ColumnSums::workspace_length(rows, columns);
        check_length("partial sums", needed, partials.len().min(needed))?;
        let run_rows = run_rows(rows);
        let argument = Runs {
            matrix: matrix.address(),
            partials: partials.address(),
            rows: rows as u32,
            columns: columns as u32,
            run_rows: run_rows as u32,
        };
        let runs = rows.div_ceil(run_rows);
        let blocks = runs * columns.div_ceil(LANE_COLUMNS * self.vector);
        // SAFETY: 1. `Runs` is laid out as in columns.cu, which was compiled for these threads. 2. All
        // are as long as was checked. 3. The partial sums have no other use but by this stream.
        unsafe { launch(gpu, &self.runs, blocks as u32, THREADS, &argument)? };
        self.of_runs(gpu, sums, partials, (runs, columns), adds)
    }

    /// Stores in `sums` those of the last columns of partial sums `[runs, stride]`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub(crate) fn of_runs(
        &self,
        gpu: &Gpu,
        sums: ViewMut<'_, f32>,
        partials: &Buffer<f32>,
        (runs, stride): (usize, usize),
        adds: bool,
    ) -> Result<(), Error> {
        let columns = sums.len();
        assert!(columns <= stride, "{columns} columns of {stride}");
        check_length("partial sums", runs * stride, partials.len().min(runs * stride))?;
        let argument = Columns {
            partials: partials.address(),
            sums: sums.address(),
            runs: runs as u32,
            columns: columns as u32,
            stride: stride as u32,
            adds: u32::from(adds),
        };
        let blocks = columns.div_ceil(LANE_COLUMNS) as u32;
        // SAFETY: as above, for `Columns`; the sums were borrowed mutably.
        unsafe { launch(gpu, &self.sums, blocks, SUM_THREADS, &argument) }
    }
}

fn run_rows(rows: usize) -> usize {
    rows.div_ceil(RUNS_MAX).max(RUN_ROWS_MIN)
}
