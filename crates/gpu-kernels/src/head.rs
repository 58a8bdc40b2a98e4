//! The output head with the cross-entropy behind it: logits in runs of rows, which turn into their
//! own gradient in place and are spent in two products before the next run comes.
//!
//! Logits are activations: in bf16 they never exist as f32 in memory.

#![expect(unsafe_code, reason = "queues products over addresses")]

use std::ops::Range;

use crate::buffer::{Held, check_length};
use crate::depth_tiles::{DepthProduct, Factor};
use crate::linear::alignment_bytes;
use crate::loss::CrossEntropy;
use crate::product::{Epilogue, Lane, Operands, Product, ProductShape, Products, Side};
use crate::programs::network::{LOGITS_STEP, logits_stride};
use crate::{Activations, Buffer, Error, Precision, ViewMut, Weights};

/// Bytes of the logits of one run, at most.
const LOGITS_BYTES_MAX: usize = 1 << 30;

/// Parts of the table's gradient where the rows are few.
const PARTS: usize = 4;

/// Shape of a [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadShape {
    /// Rows, B T.
    pub rows: usize,
    /// C.
    pub channels: usize,
    /// V.
    pub vocabulary: usize,
}

/// The output head of one shape, planned.
pub struct Head {
    /// For runs of full length, and for the last one if that is shorter.
    runs: [Option<Run>; 2],
    run_rows: usize,
    /// Parts of the table's gradient.
    table_parts: usize,
    cross_entropy: CrossEntropy,
    shape: HeadShape,
    precision: Precision,
}

/// The products of a run.
struct Run {
    logits: Product,
    /// For training: d_x and d_table.
    gradients: Option<[Product; 2]>,
}

/// Logits as f32, for whoever wants to see them.
pub struct Logits {
    product: Product,
    rows: usize,
    channels: usize,
    vocabulary: usize,
    precision: Precision,
}

/// What a pass over the head reads.
#[derive(Clone, Copy)]
pub struct HeadInputs<'a> {
    /// Output of the final LayerNorm, `[rows, C]`.
    pub x: &'a Activations,
    /// The token table, `[V, C]`.
    pub table: Weights<'a>,
    /// One id per row; one that is no id of the vocabulary is ignored.
    pub targets: &'a Buffer<u32>,
}

/// The gradients of `scale * sum(loss)`.
pub struct HeadGradients<'a> {
    /// Of x, overwritten.
    pub d_x: &'a mut Activations,
    /// Of the table, stored.
    pub d_table: ViewMut<'a, f32>,
    /// One number on the device.
    pub scale: &'a Buffer<f32>,
    /// Whether `d_table` is added to.
    pub adds: bool,
}

/// The part of the table's gradient that is left to be added up; it keeps the memory of all that it is computed from.
#[derive(Debug)]
pub struct TableGradient {
    d_table: Held,
    logits: Held,
    x: Held,
    is_short: bool,
    adds: bool,
}

impl TableGradient {
    /// The addresses of what it writes, and of what it reads.
    #[must_use]
    pub fn touched(&self) -> [u64; 3] {
        [&self.d_table, &self.logits, &self.x].map(Held::address)
    }
}

impl HeadShape {
    /// Rows of one run; runs come out nearly even.
    fn run_rows(self, precision: Precision) -> usize {
        let row_bytes = logits_stride(self.vocabulary) * precision.activation_bytes();
        let most = (LOGITS_BYTES_MAX / row_bytes).max(1);
        self.rows.div_ceil(self.rows.div_ceil(most).max(1)).max(1)
    }

    /// Elements of workspace, 4 bytes each, for the logits of a run.
    #[must_use]
    pub fn workspace_length(self, precision: Precision) -> usize {
        HeadShape { rows: self.run_rows(precision), ..self }.row_words(precision)
    }

    /// Elements of 4 bytes that the logits of all rows take.
    fn row_words(self, precision: Precision) -> usize {
        self.rows * logits_stride(self.vocabulary) * precision.activation_bytes() / 4
    }
}

impl Head {
    /// Plans the products of a head; those of the backward pass only for training.
    ///
    /// # Errors
    ///
    /// What the library, the compiler or the driver refuses, and [`Error::Recording`].
    pub fn new(
        lane: &Lane,
        products: &Products,
        shape: HeadShape,
        is_training: bool,
    ) -> Result<Head, Error> {
        let run_rows = shape.run_rows(products.precision());
        Head::in_runs(lane, products, shape, is_training, run_rows)
    }

    /// [`Head::new`] with runs of so many rows, the last one shorter.
    ///
    /// # Errors
    ///
    /// As [`Head::new`].
    pub fn in_runs(
        lane: &Lane,
        products: &Products,
        shape: HeadShape,
        is_training: bool,
        run_rows: usize,
    ) -> Result<Head, Error> {
        let precision = products.precision();
        let last = shape.rows % run_rows;
        let is_divided =
            run_rows >= shape.rows && shape.vocabulary.is_multiple_of(PARTS * LOGITS_STEP);
        let table_parts = if is_divided { PARTS } else { 1 };
        let run = |rows: usize| -> Result<Option<Run>, Error> {
            if rows == 0 {
                return Ok(None);
            }
            let shape = HeadShape { rows, ..shape };
            Run::new(lane, products, shape, is_training.then_some(table_parts)).map(Some)
        };
        Ok(Head {
            runs: [run(run_rows.min(shape.rows))?, run(last)?],
            run_rows,
            table_parts,
            cross_entropy: CrossEntropy::new(lane.gpu(), precision, shape.vocabulary)?,
            shape,
            precision,
        })
    }

    /// Whether the backward pass is planned too.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.runs.iter().flatten().all(|run| run.gradients.is_some())
    }

    /// Whether [`Head::losses`] works on a second lane too.
    #[must_use]
    pub fn has_several_runs(&self) -> bool {
        self.run_rows < self.shape.rows
    }

    /// Overwrites the loss of each row, and with `gradients` also those, but for what it returns of the table's: that of the
    /// last run. Those of other runs are computed on the lane `side`, which takes over after the rest of the work so far, and
    /// which reads the workspace and `inputs.x` until it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the library or the driver refuses.
    ///
    /// # Panics
    ///
    /// For gradients, if the head was not planned for training.
    pub fn losses(
        &self,
        [lane, side]: [&Lane; 2],
        losses: &mut Buffer<f32>,
        inputs: HeadInputs<'_>,
        workspace: &mut Buffer<f32>,
        gradients: Option<HeadGradients<'_>>,
    ) -> Result<Option<TableGradient>, Error> {
        let HeadShape { rows, channels, vocabulary } = self.shape;
        inputs.x.check("input of the head", self.precision, rows * channels)?;
        check_length("the token table", vocabulary * channels, inputs.table.floats().len())?;
        let needed = HeadShape { rows: self.run_rows, ..self.shape }.row_words(self.precision);
        check_length("workspace for logits", needed, workspace.len().min(needed))?;
        if let Some(HeadGradients { d_x, d_table, scale, .. }) = &gradients {
            d_x.check("gradient of the head's input", self.precision, rows * channels)?;
            check_length("gradient of the table", vocabulary * channels, d_table.len())?;
            check_length("loss scale", 1, scale.len())?;
        }
        let mut table = None;
        for start in (0..rows).step_by(self.run_rows) {
            if let Some(table) = table.take() {
                side.gpu().wait_for(lane.gpu())?;
                self.add_table(side, &table, 0)?;
                // The logits of the run before are still read there.
                lane.gpu().wait_for(side.gpu())?;
            }
            let run = start..(start + self.run_rows).min(rows);
            // SAFETY: all are as long as was checked; what is written was borrowed mutably.
            table = unsafe {
                self.queue_run(lane, losses, inputs, workspace, gradients.as_ref(), run)?
            };
        }
        Ok(table)
    }

    /// Parts of what [`Head::losses`] leaves of the table's gradient: one, or some that are each computed beside something
    /// else.
    #[must_use]
    pub fn table_parts(&self) -> usize {
        self.table_parts
    }

    /// Adds up a part of what [`Head::losses`] left of the table's gradient.
    ///
    /// # Errors
    ///
    /// What the library or the driver refuses.
    ///
    /// # Panics
    ///
    /// If the head was not planned for training, or there is no such part.
    pub fn add_table(&self, lane: &Lane, table: &TableGradient, part: usize) -> Result<(), Error> {
        assert!(part < self.table_parts, "part {part} of {}", self.table_parts);
        let TableGradient { d_table, logits, x, is_short, adds } = table;
        let [_, weight] = self.run(*is_short).gradients();
        let HeadShape { channels, vocabulary, .. } = self.shape;
        let first = (part * (vocabulary / self.table_parts)) as u64;
        let operands = Operands {
            out: d_table.address() + first * (channels * size_of::<f32>()) as u64,
            a: logits.address() + first * self.precision.activation_bytes() as u64,
            b: x.address(),
            ..Operands::default()
        };
        // SAFETY: lengths were checked when it was made; it holds the memory, and the table's gradient was borrowed
        // mutably.
        unsafe { weight.queue(lane, operands, *adds) }
    }

    /// What [`Head::losses`] left of the table's gradient, all of it, as a product for [`DepthTiles`](crate::DepthTiles),
    /// if it can be one.
    #[must_use]
    pub fn depth_product(&self, table: &TableGradient) -> Option<DepthProduct> {
        let HeadShape { channels, vocabulary, .. } = self.shape;
        let TableGradient { d_table, logits, x, is_short, adds } = table;
        // One run has all rows.
        if self.has_several_runs()
            || *is_short
            || !DepthProduct::is_possible(self.precision, [channels, vocabulary])
        {
            return None;
        }
        Some(DepthProduct {
            out: d_table.clone(),
            bias: None,
            left: Factor { held: logits.clone(), columns: vocabulary },
            right: Factor { held: x.clone(), columns: channels },
            rows: self.shape.rows,
            by_rows: true,
            adds: *adds,
        })
    }

    fn run(&self, is_short: bool) -> &Run {
        self.runs[usize::from(is_short)].as_ref().expect("every length is planned")
    }

    /// One run of rows.
    ///
    /// # Safety
    ///
    /// The lengths of all buffers have been checked.
    unsafe fn queue_run(
        &self,
        lane: &Lane,
        losses: &mut Buffer<f32>,
        HeadInputs { x, table, targets }: HeadInputs<'_>,
        workspace: &mut Buffer<f32>,
        gradients: Option<&HeadGradients<'_>>,
        rows: Range<usize>,
    ) -> Result<Option<TableGradient>, Error> {
        let is_short = rows.len() < self.run_rows && rows.start > 0;
        let run = self.run(is_short);
        let logits = workspace.address();
        let front = rows.start * self.shape.channels * self.precision.activation_bytes();
        let (x, table) = (x.held().at(front), table.address(self.precision, 0)?);
        let start = rows.start;
        let operands = Operands { out: logits, a: x.address(), b: table, ..Operands::default() };
        // SAFETY: the caller's duty; the workspace has room for the logits of a run.
        unsafe { run.logits.queue(lane, operands, false)? };
        let scale = gradients.map(|gradients| gradients.scale);
        // SAFETY: as above.
        unsafe { self.cross_entropy.queue(lane.gpu(), losses, logits, targets, scale, rows)? };
        let Some(HeadGradients { d_x, d_table, adds, .. }) = gradients else { return Ok(None) };
        let [input, _] = run.gradients();
        let out = d_x.address() + front as u64;
        let operands = Operands { out, a: logits, b: table, ..Operands::default() };
        // SAFETY: as above; d_x was borrowed mutably by the caller.
        unsafe { input.queue(lane, operands, false)? };
        let (d_table, logits, adds) = (d_table.held(), workspace.held(), *adds || start > 0);
        Ok(Some(TableGradient { d_table, logits, x, is_short, adds }))
    }
}

impl Run {
    fn gradients(&self) -> &[Product; 2] {
        self.gradients.as_ref().expect("a backward pass is planned for")
    }

    fn new(
        lane: &Lane,
        products: &Products,
        shape: HeadShape,
        training_parts: Option<usize>,
    ) -> Result<Run, Error> {
        let HeadShape { rows, channels, vocabulary } = shape;
        let logits = logits_shape(products.precision(), shape, logits_stride(vocabulary));
        let row = logits.out_row;
        let input = ProductShape {
            n: channels,
            k: vocabulary,
            a: Side { is_transposed: false, row },
            b: Side { is_transposed: false, row: channels },
            out_row: channels,
            ..logits.clone()
        };
        let weight = ProductShape {
            m: vocabulary / training_parts.unwrap_or(1),
            k: rows,
            a: Side { is_transposed: true, row },
            is_bf16_out: false,
            ..input.clone()
        };
        let gradients = || -> Result<[Product; 2], Error> {
            Ok([Product::new(lane, products, input)?, Product::new(lane, products, weight)?])
        };
        Ok(Run {
            gradients: if training_parts.is_some() { Some(gradients()?) } else { None },
            logits: Product::new(lane, products, logits)?,
        })
    }
}

impl Logits {
    /// Plans the logits of `shape.rows` rows.
    ///
    /// # Errors
    ///
    /// As [`Head::new`].
    pub fn new(lane: &Lane, products: &Products, shape: HeadShape) -> Result<Logits, Error> {
        let HeadShape { rows, channels, vocabulary } = shape;
        let precision = products.precision();
        let product = ProductShape {
            is_bf16_out: false,
            alignment_bytes: alignment_bytes(precision, &[channels, vocabulary]).min(4),
            ..logits_shape(precision, shape, vocabulary)
        };
        let product = Product::new(lane, products, product)?;
        Ok(Logits { product, rows, channels, vocabulary, precision })
    }

    /// Overwrites `out` `[rows, V]` with the logits of the rows of x from `start` on.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the library or the driver refuses.
    pub fn queue(
        &self,
        lane: &Lane,
        out: &mut Buffer<f32>,
        x: &Activations,
        table: Weights<'_>,
        start: usize,
    ) -> Result<(), Error> {
        let Logits { rows, channels, vocabulary, precision, .. } = *self;
        x.check("input of the head", precision, (start + rows) * channels)?;
        check_length("logits", rows * vocabulary, out.len().min(rows * vocabulary))?;
        check_length("the token table", vocabulary * channels, table.floats().len())?;
        let front = (start * channels * precision.activation_bytes()) as u64;
        let operands = Operands {
            out: out.address(),
            a: x.address() + front,
            b: table.address(precision, 0)?,
            ..Operands::default()
        };
        // SAFETY: all are as long as was checked; `out` was borrowed mutably.
        unsafe { self.product.queue(lane, operands, false) }
    }
}

/// The product that makes logits in rows of `stride`.
fn logits_shape(precision: Precision, shape: HeadShape, stride: usize) -> ProductShape {
    let HeadShape { rows, channels, vocabulary } = shape;
    ProductShape {
        m: rows,
        n: vocabulary,
        k: channels,
        a: Side { is_transposed: false, row: channels },
        b: Side { is_transposed: true, row: channels },
        out_row: stride,
        precision,
        is_bf16_out: precision.is_bf16(),
        epilogue: Epilogue::None,
        alignment_bytes: alignment_bytes(precision, &[channels, stride]),
        count: 1,
    }
}
