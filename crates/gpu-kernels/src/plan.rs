//! How attention of a shape is cut into blocks of threads: which kernels, the sizes of their tiles,
//! their shared memory. The numbers here reach the kernels as macros.

mod ring;
mod wide;

use self::ring::Ring;
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

/// What plans depend on of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) compute_capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    /// Shared memory that a block can have.
    pub(crate) shared_bytes_max: u32,
    /// Whether blocks may be clusters.
    pub(crate) has_clusters: bool,
}

impl Room {
    /// The room of the devices that kernels are built for beforehand, of 100 multiprocessors.
    pub(crate) const RELEASED: [Room; 4] = [
        Room::of((8, 0), 163),
        Room::of((8, 9), 99),
        Room::of((9, 0), 227),
        Room::of((10, 0), 227),
    ];

    /// The same room for kernels whose blocks are by themselves.
    pub(crate) fn without_clusters(self) -> Room {
        Room { has_clusters: false, ..self }
    }

    /// The same room for kernels that all devices since compute capability 8.0 run.
    pub(crate) fn without_four_warps(self) -> Room {
        Room { compute_capability: (8, 0), ..self }
    }

    const fn of(compute_capability: (u32, u32), shared_kib_max: u32) -> Room {
        Room {
            compute_capability,
            multiprocessors: 100,
            shared_bytes_max: 1024 * shared_kib_max,
            has_clusters: true,
        }
    }
}

/// The blocks of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kernels: Kernels,
    pub(crate) threads: u32,
    /// Macros by which to compile, the best first, as long as all numbers fit registers.
    pub(crate) choices: Vec<[(&'static str, u32); 2]>,
    /// Rows that a block owns.
    pub(crate) rows: u32,
    /// Visited rows of a part of a tile; 0 where tiles are not cut.
    pub(crate) part_rows: u32,
    /// Numbers that a block leaves of its part.
    pub(crate) part_numbers: u32,
    pub(crate) shared_bytes: u32,
    /// Macros that only these kernels have.
    pub(crate) numbers: Vec<(&'static str, u32)>,
    /// Whether the tiles of a head come one after the other, for the sake of the cache; else long
    /// tiles come first, for the sake of balance.
    pub(crate) by_head: bool,
    /// How the blocks of a ring are cut; `None` of other kernels.
    ring: Option<Ring>,
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
    /// `attention_ring_forward.cu`
    RingForward,
    /// `attention_ring_backward.cu`
    RingBackward,
    /// `attention_wide_forward.cu`
    WideForward,
    /// `attention_wide_backward.cu`
    WideBackward,
}

/// What both passes are planned for.
#[derive(Clone, Copy)]
struct Request {
    shape: AttentionShape,
    head_size: u32,
    element_bytes: u32,
    room: Room,
}

impl Plan {
    /// Blocks of a forward launch: one for each part of what the tiles of each head visit.
    pub(crate) fn forward_blocks(&self, shape: AttentionShape) -> u64 {
        let (time, rows) = (shape.time as u64, u64::from(self.rows));
        let parts_of = |tile: u64| match self.part_rows {
            0 => 1,
            part_rows => ((tile + 1) * rows).min(time).div_ceil(u64::from(part_rows)),
        };
        let blocks: u64 = (0..time.div_ceil(rows)).map(parts_of).sum();
        blocks * (shape.batch * shape.heads) as u64
    }

    /// The plans of the forward and the backward pass.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] for heads that shared memory has no room for.
    pub(crate) fn of(
        precision: Precision,
        shape: AttentionShape,
        room: Room,
    ) -> Result<(Plan, Plan), Error> {
        let request = Request {
            shape,
            head_size: shape.head_size as u32,
            element_bytes: precision.activation_bytes() as u32,
            room,
        };
        let has_whole_pieces = (shape.head_size * precision.activation_bytes()).is_multiple_of(16);
        let is_small = shape.head_size <= MATRIX_HEAD_SIZE_MAX;
        if request.has_ring() {
            Ok((request.ring(Kernels::RingForward), request.ring(Kernels::RingBackward)))
        } else if precision == Precision::Tf32 && request.has_wide() {
            Ok((request.wide(Kernels::WideForward), request.wide(Kernels::WideBackward)))
        } else if precision != Precision::Fp32 && has_whole_pieces && is_small {
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

    /// Whether there are so many tiles that a block may take large ones, and long over each.
    fn has_many_tiles(&self) -> bool {
        self.tiles(128) >= 2 * self.room.multiprocessors as usize
    }

    /// Whether there are so many tiles that their order no longer matters for balance.
    fn by_head(&self, rows: u32) -> bool {
        self.tiles(rows) > 8 * self.room.multiprocessors as usize
    }

    /// f32 arithmetic: the largest tiles that fit, and with few of them several teams of threads
    /// that share out what they visit.
    fn general(&self) -> Result<Plan, Error> {
        let sizes = [(4, 4), (4, 2), (2, 2), (2, 1), (1, 1)];
        let size = sizes.into_iter().find(|&(rows_a_thread, columns_a_thread)| {
            let sums = 4 * rows_a_thread * self.head_size.div_ceil(4 * 16);
            let plan = self.general_of(rows_a_thread, columns_a_thread, 1);
            plan.shared_bytes <= self.room.shared_bytes_max && sums <= SUMS_MAX
        });
        let (rows_a_thread, columns_a_thread) = size.ok_or(Error::TooLarge {
            what: "a head of attention",
            limit: "the shared memory of a block, which has room for some 512 channels",
        })?;
        let plan = |shares| self.general_of(rows_a_thread, columns_a_thread, shares);
        let one = plan(1);
        if one.by_head {
            return Ok(one);
        }
        let fits = |plan: &Plan| plan.shared_bytes <= self.room.shared_bytes_max;
        // Three teams leave a thread too few registers for the sums of wide heads.
        let shares: &[u32] = if self.head_size <= 64 { &[3, 2] } else { &[2] };
        Ok(shares.iter().map(|&shares| plan(shares)).find(fits).unwrap_or(one))
    }

    fn general_of(&self, rows_a_thread: u32, columns_a_thread: u32, shares: u32) -> Plan {
        const TEAM: u32 = 128;
        const LANES_OF_ROW: u32 = 16;
        let rows = TEAM / LANES_OF_ROW * rows_a_thread;
        let columns = LANES_OF_ROW * columns_a_thread;
        let stride = (self.head_size.div_ceil(4) | 1) * 4;
        let floats_of_team = 2 * columns * stride + 2 * rows * (columns + 4) + 3 * columns;
        let floats = 2 * rows * stride + shares * floats_of_team;
        let numbers = vec![
            ("HEAD_SIZE", self.head_size),
            ("ELEMENT_BYTES", self.element_bytes),
            ("ROWS_A_THREAD", rows_a_thread),
            ("COLUMNS_A_THREAD", columns_a_thread),
            ("SHARES", shares),
            ("SHARED_FLOATS", floats),
        ];
        let blocks_max = if shares == 1 { 2 } else { 1 };
        let choice = |blocks| [("BLOCKS_MIN", blocks), ("CHUNK_TILES", 0)];
        Plan {
            kernels: Kernels::General,
            threads: TEAM * shares,
            choices: (1..=blocks_max).rev().map(choice).collect(),
            rows,
            part_rows: 0,
            part_numbers: 0,
            shared_bytes: 4 * floats,
            numbers,
            by_head: self.by_head(rows),
            ring: None,
        }
    }

    /// Tensor cores: the first tiles for which a block has the shared memory.
    fn matrix(&self, kernels: Kernels) -> Plan {
        let plans = self.tiles_of(kernels).into_iter().map(|tiles| tiles.plan(self, kernels));
        let mut fitting = plans.filter(|plan| plan.shared_bytes <= self.room.shared_bytes_max);
        fitting.next().expect("the last tiles fit the largest heads")
    }

    /// The tiles worth having, the best first, as measured on an H200 for heads of 64.
    ///
    /// With many tiles a block works alone on large ones, of which a warp has 32 rows where registers allow, so
    /// that what it loads of visited rows serves twice. With few tiles those are small, and groups of warps share
    /// out what they visit, or parts of it are blocks of their own, so that no block takes long.
    fn tiles_of(&self, kernels: Kernels) -> Vec<Tiles> {
        let is_forward = kernels == Kernels::MatrixForward;
        let (is_bf16, is_narrow) = (self.element_bytes == 2, self.head_size <= 64);
        let are_many = self.has_many_tiles();
        let is_cut = !are_many && is_forward && !is_bf16 && is_narrow;
        let sizes: &[[u32; 4]] = match (are_many, is_bf16, is_forward) {
            (true, true, _) if is_narrow => &[[4, 2, 1, 64]],
            (true, false, true) if is_narrow => &[[4, 2, 1, 32]],
            (true, false, false) if is_narrow => &[[4, 2, 1, 16]],
            (true, _, _) => &[[4, 1, 1, 64], [4, 1, 1, 32], [4, 1, 1, 16]],
            (false, true, true) => &[[2, 1, 4, 64], [2, 1, 4, 32], [2, 1, 4, 16], [2, 1, 2, 16]],
            (false, true, false) if is_narrow => &[[1, 2, 4, 32]],
            (false, false, true) if is_cut => &[[4, 1, 1, 32]],
            (false, false, true) => &[[2, 1, 4, 32], [2, 1, 4, 16], [2, 1, 2, 16]],
            (false, _, false) => &[[2, 1, 4, 16], [2, 1, 2, 16]],
        };
        // Own rows are kept where a warp has room for them beside its sums.
        let keeps = is_forward || (!are_many && !is_bf16);
        let tiles = |&[row_warps, row_tiles, groups, visited]: &[u32; 4]| Tiles {
            row_warps,
            row_tiles,
            groups,
            visited,
            left_kept_max: if keeps { 8 } else { 0 },
            blocks_max: 2,
            // In the backward pass, what parts leave behind costs more than they gain.
            part_rows: if is_cut { 256 } else { 0 },
        };
        sizes.iter().chain(&[[2, 1, 1, 16]]).map(tiles).collect()
    }
}

/// The tiles of a kernel for tensor cores.
#[derive(Clone, Copy)]
struct Tiles {
    row_warps: u32,
    row_tiles: u32,
    groups: u32,
    visited: u32,
    left_kept_max: u32,
    /// Blocks that a multiprocessor shall have, if their numbers fit registers.
    blocks_max: u32,
    /// Visited rows of a part of a tile; 0 where tiles are not cut.
    part_rows: u32,
}

impl Tiles {
    fn plan(self, request: &Request, kernels: Kernels) -> Plan {
        let Tiles { row_warps, row_tiles, groups, visited, .. } = self;
        let rows = 16 * row_warps * row_tiles;
        let shared_bytes = self.shared_bytes(request, kernels);
        let round = groups * visited;
        assert!(self.part_rows.is_multiple_of(round.max(rows)), "whole rounds and tiles");
        let numbers = vec![
            ("HEAD_SIZE", request.head_size),
            ("ELEMENT_BYTES", request.element_bytes),
            ("ROW_WARPS", row_warps),
            ("ROW_TILES", row_tiles),
            ("WARP_GROUPS", groups),
            ("VISITED", visited),
            ("SHARED_BYTES", shared_bytes),
            ("LEFT_KEPT_MAX", self.left_kept_max),
            ("PART_ROWS", self.part_rows),
        ];
        Plan {
            kernels,
            threads: 32 * row_warps * groups,
            choices: self.choices(kernels),
            rows,
            part_rows: self.part_rows,
            part_numbers: row_warps * 32 * self.numbers_of_lane(request, kernels),
            shared_bytes,
            numbers,
            by_head: self.part_rows == 0 && request.by_head(rows),
            ring: None,
        }
    }

    /// First fewer visited rows at once, then fewer blocks of a multiprocessor.
    fn choices(self, kernels: Kernels) -> Vec<[(&'static str, u32); 2]> {
        let chunks: &[u32] = match kernels {
            Kernels::MatrixBackward if self.visited >= 32 => &[4, 2],
            _ => &[2],
        };
        let blocks = (1..=self.blocks_max).rev();
        let choice = |blocks, chunk| [("BLOCKS_MIN", blocks), ("CHUNK_TILES", chunk)];
        blocks.flat_map(|blocks| chunks.iter().map(move |&chunk| choice(blocks, chunk))).collect()
    }

    /// Bytes of shared memory, laid out as the kernels do.
    fn shared_bytes(self, request: &Request, kernels: Kernels) -> u32 {
        let Tiles { row_warps, row_tiles, groups, visited, .. } = self;
        let (rows, round) = (16 * row_warps * row_tiles, groups * visited);
        let steps = (request.head_size * request.element_bytes).div_ceil(32);
        let pitch = ((2 * steps) | 1) * 16;
        let bytes = match kernels {
            Kernels::MatrixBackward => 2 * rows * pitch + 2 * round * (2 * pitch + 8),
            _ => rows * pitch + 2 * round * 2 * pitch,
        };
        bytes.max((groups - 1) * row_warps * self.numbers_of_lane(request, kernels) * 128)
    }

    /// Numbers that a lane leaves behind of what it found.
    fn numbers_of_lane(self, request: &Request, kernels: Kernels) -> u32 {
        let steps = (request.head_size * request.element_bytes).div_ceil(32);
        let sums = self.row_tiles * steps * 32 / request.element_bytes / 8 * 4;
        match kernels {
            Kernels::MatrixBackward => 2 * sums,
            _ => sums + 4 * self.row_tiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_of_tensor_cores_has_a_plan_that_fits() {
        for room in Room::RELEASED {
            for (precision, batch) in
                Precision::ALL.into_iter().flat_map(|precision| [(precision, 1), (precision, 1000)])
            {
                for head_size in 1..=512 {
                    let shape = AttentionShape { batch, time: 1024, heads: 3, head_size };
                    let plans = Plan::of(precision, shape, room);
                    let fits_always = head_size <= 256 || room.shared_bytes_max > 99 * 1024;
                    assert!(plans.is_ok() || !fits_always, "{precision} {head_size} {room:?}");
                    let Ok((forward, backward)) = plans else { continue };
                    for plan in [forward, backward] {
                        assert!(plan.shared_bytes <= room.shared_bytes_max, "{plan:?}");
                        assert!(plan.threads <= 640 && plan.threads.is_multiple_of(32), "{plan:?}");
                        let is_padded = plan.kernels != Kernels::RingForward;
                        assert!(plan.rows as usize <= ROWS_OF_TILE_MAX || !is_padded, "{plan:?}");
                        assert!(!plan.choices.is_empty(), "{plan:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn four_warps_work_as_one_only_where_they_can() {
        let shape = AttentionShape { batch: 32, time: 1024, heads: 12, head_size: 64 };
        for room in Room::RELEASED {
            let used = |precision, shape| {
                let (_, backward) = Plan::of(precision, shape, room).unwrap();
                backward.kernels
            };
            let is_hopper = room.compute_capability == (9, 0);
            let wide = AttentionShape { head_size: 128, ..shape };
            for (precision, kernels) in
                [(Precision::Bf16, Kernels::RingBackward), (Precision::Tf32, Kernels::WideBackward)]
            {
                assert_eq!(used(precision, shape) == kernels, is_hopper);
                assert_ne!(used(precision, wide), kernels);
            }
        }
    }
}
