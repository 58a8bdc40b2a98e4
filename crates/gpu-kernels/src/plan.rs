//! How attention of a shape is cut into blocks of threads: which kernels, the sizes of their tiles,
//! their shared memory. The numbers here reach the kernels as macros.

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

/// Largest head that fits the registers of the kernels for tensor cores.
const MATRIX_HEAD_SIZE_MAX: usize = 128;

/// Most sums in f32 that a thread has for one of its outputs, without tensor cores.
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

    /// Rows of a head in a plane of the workspace.
    pub(crate) fn padded_time(self) -> usize {
        self.time.next_multiple_of(ROWS_OF_TILE_MAX)
    }
}

/// The blocks of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kernels: Kernels,
    pub(crate) threads: u32,
    /// Blocks of a multiprocessor, if their numbers fit registers.
    pub(crate) blocks_min: u32,
    /// Rows that a block owns.
    pub(crate) rows: u32,
    pub(crate) shared_bytes: u32,
    /// Macros that only these kernels have.
    pub(crate) numbers: Vec<(&'static str, u32)>,
    /// Whether the tiles of a head come one after the other, for the sake of the cache; else long
    /// tiles come first, for the sake of balance.
    pub(crate) by_head: bool,
}

/// Which kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// `attention.cu`, both passes.
    General,
    /// `attention_mma_forward.cu`
    MatrixForward,
    /// `attention_mma_backward.cu`
    MatrixBackward,
}

/// What both passes are planned for.
#[derive(Clone, Copy)]
struct Request {
    shape: AttentionShape,
    head_size: u32,
    element_bytes: u32,
    multiprocessors: u32,
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
        let request = Request {
            shape,
            head_size: shape.head_size as u32,
            element_bytes: precision.activation_bytes() as u32,
            multiprocessors,
        };
        let has_whole_pieces = shape.head_size * precision.activation_bytes() % 16 == 0;
        let is_small = shape.head_size <= MATRIX_HEAD_SIZE_MAX;
        if precision != Precision::Fp32 && has_whole_pieces && is_small {
            Ok((request.matrix(Kernels::MatrixForward), request.matrix(Kernels::MatrixBackward)))
        } else {
            let plan = request.general()?;
            Ok((plan.clone(), plan))
        }
    }
}

impl Request {
    /// Tiles of so many rows, of all heads.
    fn tiles(&self, rows: u32) -> usize {
        self.shape.batch * self.shape.heads * self.shape.time.div_ceil(rows as usize)
    }

    /// Whether there are so many tiles that their order no longer matters for balance.
    fn by_head(&self, rows: u32) -> bool {
        self.tiles(rows) > 8 * self.multiprocessors as usize
    }

    /// f32 arithmetic: the largest tiles that fit.
    fn general(&self) -> Result<Plan, Error> {
        const THREADS: u32 = 128;
        const LANES_OF_ROW: u32 = 16;
        let plan = |(rows_a_thread, columns_a_thread): (u32, u32)| {
            let rows = THREADS / LANES_OF_ROW * rows_a_thread;
            let columns = LANES_OF_ROW * columns_a_thread;
            let stride = (self.head_size.div_ceil(4) | 1) * 4;
            let floats = 2 * (rows + columns) * stride + 2 * rows * (columns + 4) + 3 * columns;
            let sums = 4 * rows_a_thread * self.head_size.div_ceil(4 * LANES_OF_ROW);
            let numbers = vec![
                ("HEAD_SIZE", self.head_size),
                ("ELEMENT_BYTES", self.element_bytes),
                ("ROWS_A_THREAD", rows_a_thread),
                ("COLUMNS_A_THREAD", columns_a_thread),
                ("SHARED_FLOATS", floats),
            ];
            let plan = Plan {
                kernels: Kernels::General,
                threads: THREADS,
                blocks_min: 2,
                rows,
                shared_bytes: 4 * floats,
                numbers,
                by_head: self.by_head(rows),
            };
            (plan.shared_bytes <= SHARED_BYTES_MAX && sums <= SUMS_MAX).then_some(plan)
        };
        let sizes = [(4, 4), (4, 2), (2, 2), (2, 1), (1, 1)];
        sizes.into_iter().find_map(plan).ok_or(Error::TooLarge {
            what: "a head of attention",
            limit: "512 channels, for which shared memory has room",
        })
    }

    /// Tensor cores: with many tiles large ones, of which a warp has 32 rows so that what it loads of
    /// visited rows serves twice; with few tiles small ones, whose visited rows are shared out to
    /// groups of warps, so that no tile takes long.
    fn matrix(&self, kernels: Kernels) -> Plan {
        let is_wide = self.head_size > 64;
        let mut sizes = Vec::new();
        if self.tiles(128) >= 2 * self.multiprocessors as usize {
            let row_tiles = if is_wide { 1 } else { 2 };
            for (row_warps, visited) in [(4, 64), (4, 32), (4, 16), (2, 16)] {
                sizes.push(Tiles { row_warps, row_tiles, groups: 1, visited });
            }
        } else {
            for (groups, visited) in [(4, 32), (4, 16), (2, 16), (1, 16)] {
                sizes.push(Tiles { row_warps: 2, row_tiles: 1, groups, visited });
            }
        }
        let plans = sizes.iter().map(|tiles| tiles.plan(self, kernels));
        let mut fitting = plans.filter(|plan| plan.shared_bytes <= SHARED_BYTES_MAX);
        fitting.next().expect("the last sizes fit the largest heads")
    }
}

/// The tiles of a kernel for tensor cores.
#[derive(Clone, Copy)]
struct Tiles {
    row_warps: u32,
    row_tiles: u32,
    groups: u32,
    visited: u32,
}

impl Tiles {
    fn plan(self, request: &Request, kernels: Kernels) -> Plan {
        let Tiles { row_warps, row_tiles, groups, visited } = self;
        let rows = 16 * row_warps * row_tiles;
        let round = groups * visited;
        let steps = (request.head_size * request.element_bytes).div_ceil(32);
        let pitch = (2 * steps | 1) * 16;
        // Sums of a lane for one output, and bytes of all lanes' numbers that groups leave behind.
        let sums = row_tiles * steps * 32 / request.element_bytes / 8 * 4;
        let left_behind = |numbers: u32| (groups - 1) * row_warps * numbers * 128;
        let (shared_bytes, left_bytes) = match kernels {
            Kernels::MatrixBackward => {
                let half = 2 * round * pitch + 2 * round * 4;
                (2 * rows * pitch + 2 * half, left_behind(2 * sums))
            }
            _ => (rows * pitch + 2 * 2 * round * pitch, left_behind(sums + 4 * row_tiles)),
        };
        let shared_bytes = shared_bytes.max(left_bytes);
        let mut numbers = vec![
            ("HEAD_SIZE", request.head_size),
            ("ELEMENT_BYTES", request.element_bytes),
            ("ROW_WARPS", row_warps),
            ("ROW_TILES", row_tiles),
            ("WARP_GROUPS", groups),
            ("VISITED", visited),
            ("SHARED_BYTES", shared_bytes),
        ];
        if kernels == Kernels::MatrixBackward {
            numbers.push(("CHUNK_TILES", 2));
        }
        Plan {
            kernels,
            threads: 32 * row_warps * groups,
            blocks_min: 2,
            rows,
            shared_bytes,
            numbers,
            by_head: request.by_head(rows),
        }
    }
}
