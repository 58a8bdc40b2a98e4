//! How attention of a shape is cut into blocks of threads: which kernels, the sizes of their tiles,
//! their shared memory.

use crate::{Error, Precision};

/// Shape of causal attention: C = H D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// B.
    pub batch: usize,
    /// T.
    pub time: usize,
    /// H.
    pub heads: usize,
    /// D.
    pub head_size: usize,
}

/// Rows that the planes of a head are padded to a multiple of: the largest tile.
const ROWS_OF_TILE_MAX: usize = 128;

/// Shared memory that every device since compute capability 8.0 gives a block.
const SHARED_BYTES_MAX: u32 = 99 * 1024;

/// Most sums in f32 that a thread has for one of its outputs.
const SUMS_MAX: u32 = 32;

impl AttentionShape {
    /// B T.
    #[must_use]
    pub fn rows(self) -> usize {
        self.batch * self.time
    }

    /// C.
    #[must_use]
    pub fn channels(self) -> usize {
        self.heads * self.head_size
    }

    pub(crate) fn padded_time(self) -> usize {
        self.time.next_multiple_of(ROWS_OF_TILE_MAX)
    }
}

/// The blocks of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) head_size: u32,
    pub(crate) element_bytes: u32,
    pub(crate) threads: u32,
    pub(crate) rows_a_thread: u32,
    pub(crate) columns_a_thread: u32,
    /// Whether the tiles of a head come one after the other, for the sake of the cache; else long
    /// tiles come first, for the sake of balance.
    pub(crate) by_head: bool,
}

impl Plan {
    /// The plans of the forward and the backward pass on a device of so many multiprocessors.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] for heads that shared memory has no room for.
    pub(crate) fn of(
        precision: Precision,
        shape: AttentionShape,
        multiprocessors: u32,
    ) -> Result<(Plan, Plan), Error> {
        let candidates = [(4, 4), (4, 2), (2, 2), (2, 1), (1, 1)];
        let plans = candidates.map(|(rows_a_thread, columns_a_thread)| {
            let mut plan = Plan {
                head_size: shape.head_size as u32,
                element_bytes: precision.activation_bytes() as u32,
                threads: 128,
                rows_a_thread,
                columns_a_thread,
                by_head: false,
            };
            let tiles = shape.batch * shape.heads * shape.time.div_ceil(plan.rows() as usize);
            plan.by_head = tiles > 8 * multiprocessors as usize;
            plan
        });
        let fits = |plan: &&Plan| {
            plan.shared_bytes() <= SHARED_BYTES_MAX && plan.sums_a_thread() <= SUMS_MAX
        };
        let plan = plans.iter().find(fits).ok_or(Error::TooLarge {
            what: "a head of attention",
            limit: "512 channels, for which shared memory has room",
        })?;
        Ok((*plan, *plan))
    }

    /// Rows that a block owns.
    pub(crate) fn rows(&self) -> u32 {
        self.threads / 16 * self.rows_a_thread
    }

    /// Rows that a block visits at a time.
    fn columns(&self) -> u32 {
        16 * self.columns_a_thread
    }

    fn sums_a_thread(&self) -> u32 {
        4 * self.rows_a_thread * self.head_size.div_ceil(64)
    }

    /// Floats of shared memory, laid out as `cuda/attention.cu` does.
    pub(crate) fn shared_floats(&self) -> u32 {
        let stride = (self.head_size.div_ceil(4) | 1) * 4;
        let (rows, columns) = (self.rows(), self.columns());
        2 * (rows + columns) * stride + 2 * rows * (columns + 4) + 3 * columns
    }

    /// Bytes of shared memory.
    pub(crate) fn shared_bytes(&self) -> u32 {
        4 * self.shared_floats()
    }
}
