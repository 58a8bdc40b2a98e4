//! The one file of this crate with unsafe code. It gives the operations three safe tools:
//!
//! * [`Matrix`] and [`MatrixMut`], strided views that can be cut by rows and columns, and
//!   [`product`], one matrix product on one thread, by the `gemm` crate;
//! * [`for_each`], which cuts an output into disjoint [`Pieces`] and runs a task on each, on the
//!   threads of rayon's current pool;
//! * [`vector`], which compiles a loop for the widest vector instructions at hand.
//!
//! Results do not depend on the number of threads: a piece is always computed whole by one task,
//! the pieces are cut by shape alone, and only who computes which is left to chance.
#![expect(unsafe_code, reason = "tiles of a matrix and calls of gemm need raw pointers")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::element::Element;
use crate::ops::Store;

/// A strided matrix to read.
///
/// Invariant R: every element (r, c) with r < rows and c < columns lies at
/// `first + r * row_stride + c * column_stride`, inside a slice that is borrowed for `'a`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    first: *const T,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    data: PhantomData<&'a [T]>,
}

// SAFETY: a `Matrix` is a shared borrow of a slice (invariant R), and `&[T]` is `Send` and `Sync`
// where `T` is `Sync`.
unsafe impl<T: Sync> Send for Matrix<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Matrix<'_, T> {}

impl<'a, T> Matrix<'a, T> {
    /// The front of a slice as `[rows, columns]`.
    ///
    /// # Panics
    ///
    /// If the slice is shorter than that.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_fits(rows, columns, data.len());
        Self {
            first: data.as_ptr(),
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
            data: PhantomData,
        }
    }

    /// The matrix with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Some of its rows.
    ///
    /// # Panics
    ///
    /// If it does not have them.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of {}",
            self.rows
        );
        let first = self.first.wrapping_add(range.start * self.row_stride);
        Self { first, rows: range.len(), ..self }
    }

    /// Some of its columns.
    ///
    /// # Panics
    ///
    /// If it does not have them.
    pub fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// How many rows.
    pub fn row_count(self) -> usize {
        self.rows
    }

    /// One row.
    ///
    /// # Panics
    ///
    /// If it does not have that row, or its columns do not lie side by side.
    pub fn row(self, index: usize) -> &'a [T] {
        assert!(index < self.rows && self.column_stride == 1, "row {index} of {}", self.rows);
        // SAFETY: by invariant R the row's elements lie in the borrowed slice, and by the assertion
        // side by side.
        unsafe { std::slice::from_raw_parts(self.first.add(index * self.row_stride), self.columns) }
    }
}

/// A matrix to write, whose rows are contiguous.
///
/// Invariant W: as R, with a column stride of 1 and `row_stride >= columns`, and the elements are
/// borrowed mutably for `'a` through this value alone.
pub(super) struct MatrixMut<'a, T> {
    first: *mut T,
    rows: usize,
    columns: usize,
    row_stride: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a `MatrixMut` is an exclusive borrow of its elements (invariant W), and `&mut [T]` is
// `Send` where `T` is.
unsafe impl<T: Send> Send for MatrixMut<'_, T> {}

impl<'a, T> MatrixMut<'a, T> {
    /// The front of a slice as `[rows, columns]`.
    ///
    /// # Panics
    ///
    /// If the slice is shorter than that.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_fits(rows, columns, data.len());
        Self { first: data.as_mut_ptr(), rows, columns, row_stride: columns, data: PhantomData }
    }

    /// How many rows.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub fn column_count(&self) -> usize {
        self.columns
    }

    /// One row.
    ///
    /// # Panics
    ///
    /// If it does not have that row.
    pub fn row(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: by invariant W the row's elements are borrowed through `self` alone, which this
        // method borrows mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.first.add(index * self.row_stride), self.columns)
        }
    }

    /// Some of its rows, for a while.
    ///
    /// # Panics
    ///
    /// If it does not have them.
    pub fn rows(&mut self, range: Range<usize>) -> MatrixMut<'_, T> {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of {}",
            self.rows
        );
        let first = self.first.wrapping_add(range.start * self.row_stride);
        MatrixMut { first, rows: range.len(), data: PhantomData, ..*self }
    }

    /// The columns before `at`, and those from there on.
    ///
    /// # Panics
    ///
    /// If it has fewer columns.
    pub fn split_columns(self, at: usize) -> (Self, Self) {
        assert!(at <= self.columns, "split at {at} of {} columns", self.columns);
        let right = Self { first: self.first.wrapping_add(at), columns: self.columns - at, ..self };
        (Self { columns: at, ..self }, right)
    }

    /// Its elements, to read for a while.
    pub fn as_matrix(&self) -> Matrix<'_, T> {
        Matrix {
            first: self.first,
            rows: self.rows,
            columns: self.columns,
            row_stride: self.row_stride,
            column_stride: 1,
            data: PhantomData,
        }
    }

    /// Cut into tiles of at most this many rows and columns.
    pub fn tiles(self, rows: usize, columns: usize) -> Tiles<'a, T> {
        let group_rows = self.rows;
        self.grouped_tiles(group_rows, rows, columns)
    }

    /// Cut first into groups of `group_rows` rows, then each into tiles. Tiles are numbered by their
    /// place in the group, then by group, then by column.
    ///
    /// # Panics
    ///
    /// If the groups do not come out even.
    pub fn grouped_tiles(self, group_rows: usize, rows: usize, columns: usize) -> Tiles<'a, T> {
        assert!(rows > 0 && columns > 0 && self.rows.is_multiple_of(group_rows.max(1)));
        Tiles {
            groups: self.rows / group_rows.max(1),
            column_tiles: self.columns.div_ceil(columns),
            matrix: self,
            group_rows,
            rows,
            columns,
        }
    }
}

fn assert_fits(rows: usize, columns: usize, length: usize) {
    let fits = rows.checked_mul(columns).is_some_and(|elements| elements <= length);
    assert!(fits, "{rows} x {columns} of {length} elements");
}

/// `out = scale * left * right`, or added to `out`, on this thread.
///
/// The order of each element's sum follows from the shapes and the machine's caches; an element
/// that is overwritten is not read.
///
/// # Panics
///
/// If the shapes do not fit.
pub(super) fn product<T: Element>(
    out: &mut MatrixMut<'_, T>,
    store: Store,
    scale: T,
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
) {
    let (rows, columns, depth) = (out.rows, out.columns, left.columns);
    assert!(
        left.rows == rows && right.columns == columns && right.rows == depth,
        "a {} x {depth} by {} x {} product does not fit {rows} x {columns}",
        left.rows,
        right.rows,
        right.columns,
    );
    // SAFETY: the shapes fit each other, so gemm touches elements inside the three matrices only.
    // By invariants R and W they are valid to read, and to write, and the output overlaps no input.
    // A stride is at most a slice's length, which fits an isize.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            out.first,
            1,
            out.row_stride as isize,
            store == Store::Add,
            left.first,
            left.column_stride as isize,
            left.row_stride as isize,
            right.first,
            right.column_stride as isize,
            right.row_stride as isize,
            T::ONE,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// An output, cut into disjoint pieces.
///
/// # Safety
///
/// An implementation promises:
/// 1. pieces of different indices below `count` do not overlap;
/// 2. whatever a piece touches is borrowed mutably by the implementor.
pub(super) unsafe trait Pieces: Sync {
    /// What a task gets.
    type Piece;

    /// How many pieces.
    fn count(&self) -> usize;

    /// One piece.
    ///
    /// # Safety
    ///
    /// The caller promises:
    /// 1. `index < count`;
    /// 2. no index is asked for twice.
    unsafe fn piece(&self, index: usize) -> Self::Piece;
}

/// A matrix cut into tiles.
pub(super) struct Tiles<'a, T> {
    matrix: MatrixMut<'a, T>,
    groups: usize,
    group_rows: usize,
    column_tiles: usize,
    rows: usize,
    columns: usize,
}

// SAFETY: through a shared `Tiles` elements are reached only by `Pieces::piece`, which hands out
// disjoint exclusive borrows; that needs `T: Send`.
unsafe impl<T: Send> Sync for Tiles<'_, T> {}

/// One tile, and where it lies in its matrix.
pub(super) struct Tile<'a, T> {
    /// Its elements.
    pub out: MatrixMut<'a, T>,
    /// Its rows in the whole matrix.
    pub rows: Range<usize>,
    /// Its columns in the whole matrix.
    pub columns: Range<usize>,
}

// SAFETY: (1) tiles are disjoint: their indices name different cells of a grid over the rows of
// each group and over the columns. (2) They lie in a matrix that `Tiles` owns.
unsafe impl<'a, T: Send> Pieces for Tiles<'a, T> {
    type Piece = Tile<'a, T>;

    fn count(&self) -> usize {
        self.group_rows.div_ceil(self.rows) * self.groups * self.column_tiles
    }

    unsafe fn piece(&self, index: usize) -> Tile<'a, T> {
        let (row, column) = (index / self.column_tiles, index % self.column_tiles);
        let (tile, group) = (row / self.groups, row % self.groups);
        let start = tile * self.rows;
        let end = (start + self.rows).min(self.group_rows);
        let rows = group * self.group_rows + start..group * self.group_rows + end;
        let columns = column * self.columns..((column + 1) * self.columns).min(self.matrix.columns);
        let out = MatrixMut {
            first: self
                .matrix
                .first
                .wrapping_add(rows.start * self.matrix.row_stride + columns.start),
            rows: rows.len(),
            columns: columns.len(),
            row_stride: self.matrix.row_stride,
            data: PhantomData,
        };
        Tile { out, rows, columns }
    }
}

/// A slice cut into chunks of one length, the last one perhaps shorter.
pub(super) struct Chunks<'a, T> {
    first: *mut T,
    length: usize,
    chunk: usize,
    data: PhantomData<&'a mut [T]>,
}

impl<'a, T> Chunks<'a, T> {
    /// Cuts a slice.
    pub fn new(data: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0);
        Self { first: data.as_mut_ptr(), length: data.len(), chunk, data: PhantomData }
    }
}

// SAFETY: as for `Tiles`.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

// SAFETY: (1) chunks of different indices are disjoint ranges (2) of a slice that `Chunks` borrows.
unsafe impl<'a, T: Send> Pieces for Chunks<'a, T> {
    type Piece = &'a mut [T];

    fn count(&self) -> usize {
        self.length.div_ceil(self.chunk)
    }

    unsafe fn piece(&self, index: usize) -> &'a mut [T] {
        let start = index * self.chunk;
        let length = self.chunk.min(self.length - start);
        // SAFETY: in bounds by the caller's duty 1, borrowed once by the caller's duty 2.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), length) }
    }
}

/// The pieces of one output, followed by those of another.
pub(super) struct Chain<A, B>(pub A, pub B);

// SAFETY: (1, 2) hold for both parts, and an index falls into exactly one.
unsafe impl<A: Pieces, B: Pieces<Piece = A::Piece>> Pieces for Chain<A, B> {
    type Piece = A::Piece;

    fn count(&self) -> usize {
        self.0.count() + self.1.count()
    }

    unsafe fn piece(&self, index: usize) -> A::Piece {
        match index.checked_sub(self.0.count()) {
            // SAFETY: the caller's duties, and the count of the first part is above the index.
            None => unsafe { self.0.piece(index) },
            // SAFETY: the caller's duties, less the count of the first part.
            Some(index) => unsafe { self.1.piece(index) },
        }
    }
}

// SAFETY: (1, 2) hold for each output, and the outputs are different borrows.
unsafe impl<A: Pieces, B: Pieces> Pieces for (A, B) {
    type Piece = (A::Piece, B::Piece);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count(), "outputs cut into different numbers of pieces");
        self.0.count()
    }

    unsafe fn piece(&self, index: usize) -> Self::Piece {
        // SAFETY: both counts are equal, so the caller's duties hold for both.
        unsafe { (self.0.piece(index), self.1.piece(index)) }
    }
}

/// Runs a task on every piece of an output, on rayon's current pool; the task is told the index.
pub(super) fn for_each<P: Pieces>(pieces: P, task: impl Fn(usize, P::Piece) + Sync) {
    let mut none = [(); 0];
    for_each_with(&mut none, 0, pieces, |index, piece, _: &mut [()]| task(index, piece));
}

/// As [`for_each`], with a slot of workspace for each task: `slot` elements, of any content. As many
/// tasks run at a time as the workspace has slots.
///
/// # Panics
///
/// If the workspace has no room for one slot.
pub(super) fn for_each_with<P: Pieces, T: Send>(
    workspace: &mut [T],
    slot: usize,
    pieces: P,
    task: impl Fn(usize, P::Piece, &mut [T]) + Sync,
) {
    let count = pieces.count();
    let slots = workspace.len().checked_div(slot).unwrap_or(usize::MAX);
    assert!(slots > 0, "a workspace of {} elements has no slot of {slot}", workspace.len());
    let lanes = rayon::current_num_threads().min(slots).min(count);
    let next = AtomicUsize::new(0);
    let run_lane = |slot: &mut [T]| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            // SAFETY: (1) just checked; (2) the counter never gives a number twice, and `pieces`
            // is owned here, so nobody else asks.
            task(index, unsafe { pieces.piece(index) }, slot);
        }
    };
    if lanes <= 1 {
        run_lane(&mut workspace[..slot]);
    } else if slot == 0 {
        (0..lanes).into_par_iter().with_max_len(1).for_each(|_| run_lane(&mut []));
    } else {
        workspace.par_chunks_exact_mut(slot).take(lanes).with_max_len(1).for_each(run_lane);
    }
}

/// Runs a loop compiled for the widest vector instructions of this processor. Pass a closure marked
/// `#[inline(always)]`, or the loop stays as narrow as the build's baseline.
///
/// Multiplications and additions are never fused, so the bits are the same at every width.
#[inline]
pub(super) fn vector<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn wide<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx2")]
        fn middle<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the four features were just detected.
            return unsafe { wide(body) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { middle(body) };
        }
    }
    body()
}
