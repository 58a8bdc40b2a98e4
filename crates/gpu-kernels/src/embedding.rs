//! Token and position tables. Launches `cuda/embedding.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::{check_aligned, check_length};
use crate::launch::{blocks_of, launch, striding_blocks};
use crate::module::Kernel;
use crate::programs::network::{self, PLACES_OF_RUN, THREADS};
use crate::{Activations, Buffer, Error, Gpu, Precision, View, ViewMut};

/// Tables whose rows have one width.
pub struct Embedding {
    forward: Kernel,
    forward_one: Kernel,
    sort: Kernel,
    rank: Kernel,
    backward: Kernel,
    precision: Precision,
    channels: usize,
}

/// The windows that are looked up.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// B.
    pub batch: usize,
    /// T.
    pub time: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Lookup {
    out: u64,
    tokens: u64,
    table: u64,
    positions: u64,
    rows: u32,
    time: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Rank {
    order: u64,
    counts: u64,
    run_tokens: u64,
    run_places: u64,
    tokens: u64,
    rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Gradients {
    d_table: u64,
    d_positions: u64,
    d_out: u64,
    tokens: u64,
    order: u64,
    counts: u64,
    rows: u32,
    batch: u32,
    time: u32,
    context: u32,
    adds: u32,
}

impl Windows {
    fn rows(self) -> usize {
        self.batch * self.time
    }
}

impl Embedding {
    /// The kernels for tables of `channels`.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision, channels: usize) -> Result<Embedding, Error> {
        let module = gpu.module(&network::embedding(channels, precision.activation_bytes()))?;
        Ok(Embedding {
            forward: module.kernel("embedding_forward")?,
            forward_one: module.kernel("embedding_forward_one")?,
            sort: module.kernel("embedding_sort")?,
            rank: module.kernel("embedding_rank")?,
            backward: module.kernel("embedding_backward")?,
            precision,
            channels,
        })
    }

    /// Elements, 4 bytes each, of the sorted places of tokens and the counts of equal ones, and of what these are made from.
    #[must_use]
    pub fn order_length(windows: Windows) -> usize {
        4 * windows.rows()
    }

    /// Overwrites `out[b, t] = table[token[b, t]] + positions[t]`. Ids are below the rows of the
    /// table, which the caller has checked.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub fn forward(
        &self,
        gpu: &Gpu,
        out: &mut Activations,
        tokens: &Buffer<u32>,
        (table, positions): (View<'_, f32>, View<'_, f32>),
        windows: Windows,
    ) -> Result<(), Error> {
        let rows = windows.rows();
        out.check("embedded tokens", self.precision, rows * self.channels)?;
        check_length("tokens", rows, tokens.len().min(rows))?;
        let needed = windows.time * self.channels;
        check_length("positions", needed, positions.len().min(needed))?;
        check_aligned("the token table", table.address(), self.is_wide())?;
        check_aligned("positions", positions.address(), self.is_wide())?;
        let argument = Lookup {
            out: out.address(),
            tokens: tokens.address(),
            table: table.address(),
            positions: positions.address(),
            rows: rows as u32,
            time: windows.time as u32,
        };
        let blocks = self.piece_blocks(gpu, rows);
        // SAFETY: 1. `Lookup` is laid out as in embedding.cu, which was compiled for these threads. 2. All
        // are as long as was checked, and ids are the caller's duty. 3. `out` was borrowed mutably.
        unsafe { launch(gpu, &self.forward, blocks, THREADS, &argument) }
    }

    /// Overwrites `out[c] = table[token, c] + positions[position, c]`, with both read from `place`,
    /// where the caller has checked them.
    ///
    /// # Errors
    ///
    /// As [`Embedding::forward`].
    pub fn forward_one(
        &self,
        gpu: &Gpu,
        out: &mut Activations,
        place: &Buffer<u32>,
        (table, positions): (View<'_, f32>, View<'_, f32>),
    ) -> Result<(), Error> {
        out.check("an embedded token", self.precision, self.channels)?;
        check_length("the place of a token", 2, place.len())?;
        let argument = Lookup {
            out: out.address(),
            tokens: place.address(),
            table: table.address(),
            positions: positions.address(),
            rows: 1,
            time: 1,
        };
        // SAFETY: as in `forward`; the place is within the tables, as the caller knows.
        unsafe { launch(gpu, &self.forward_one, 1, THREADS, &argument) }
    }

    /// Sorts the places of the tokens into `order`, for [`Embedding::backward`].
    ///
    /// # Errors
    ///
    /// As [`Embedding::forward`].
    pub fn rank(
        &self,
        gpu: &Gpu,
        order: &mut Buffer<f32>,
        tokens: &Buffer<u32>,
        windows: Windows,
    ) -> Result<(), Error> {
        let rows = windows.rows();
        let needed = Embedding::order_length(windows);
        check_length("sorted places", needed, order.len().min(needed))?;
        check_length("tokens", rows, tokens.len().min(rows))?;
        let part = |number: u64| order.address() + number * 4 * rows as u64;
        let argument = Rank {
            order: part(0),
            counts: part(1),
            run_tokens: part(2),
            run_places: part(3),
            tokens: tokens.address(),
            rows: rows as u32,
        };
        let blocks = |of: u32| blocks_of(rows as u64, u64::from(of));
        // SAFETY: as in `forward`, for `Rank`; any 4 bytes hold a place.
        unsafe {
            launch(gpu, &self.sort, blocks(PLACES_OF_RUN)?, PLACES_OF_RUN, &argument)?;
            launch(gpu, &self.rank, blocks(THREADS)?, THREADS, &argument)
        }
    }

    /// Adds to the rows of the table's gradient, for each id in the order of its places, and stores
    /// `d_positions[t] = sum_b d_out[b, t]`, and zero at positions from T on; or adds to that too.
    ///
    /// # Errors
    ///
    /// As [`Embedding::forward`].
    pub fn backward(
        &self,
        gpu: &Gpu,
        [d_table, d_positions]: [ViewMut<'_, f32>; 2],
        d_out: &Activations,
        (tokens, order): (&Buffer<u32>, &Buffer<f32>),
        windows: Windows,
        adds: bool,
    ) -> Result<(), Error> {
        let rows = windows.rows();
        d_out.check("gradient of embedded tokens", self.precision, rows * self.channels)?;
        check_length("sorted places", 2 * rows, order.len().min(2 * rows))?;
        check_length("tokens", rows, tokens.len().min(rows))?;
        let context = d_positions.len() / self.channels;
        check_length("gradients of positions", context * self.channels, d_positions.len())?;
        check_aligned("gradients of positions", d_positions.address(), self.is_wide())?;
        let argument = Gradients {
            d_table: d_table.address(),
            d_positions: d_positions.address(),
            d_out: d_out.address(),
            tokens: tokens.address(),
            order: order.address(),
            counts: order.address() + 4 * rows as u64,
            rows: rows as u32,
            batch: windows.batch as u32,
            time: windows.time as u32,
            context: context as u32,
            adds: u32::from(adds),
        };
        let blocks = rows as u32 + self.piece_blocks(gpu, context);
        // SAFETY: as in `forward`, for `Gradients`; `order` holds what `rank` left there.
        unsafe { launch(gpu, &self.backward, blocks, THREADS, &argument) }
    }

    fn is_wide(&self) -> bool {
        network::vector(self.channels, self.precision.activation_bytes()) > 1
    }

    /// Blocks whose threads take an access each of so many rows.
    fn piece_blocks(&self, gpu: &Gpu, rows: usize) -> u32 {
        let vector = network::vector(self.channels, self.precision.activation_bytes());
        striding_blocks(gpu, rows * self.channels / vector, THREADS)
    }
}
