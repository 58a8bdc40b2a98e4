//! The blocks of attention where four warps make products of tf32 as one: heads of 64 channels, on devices of compute
//! capability 9.0. What the numbers mean: `cuda/attention_ring.cuh` and `cuda/attention_wide.cuh`.

use super::ring::{Ring, registers};
use super::{Kernels, Plan, Request};

/// Rows of a tile, and bytes of it.
const TILE: u32 = 64;
const TILE_BYTES: u32 = TILE * 256;
/// Bytes of the pairs of visited queries.
const PAIRS_BYTES: u32 = TILE * 8;
/// Bytes that a group receives of the other block of a cluster, in two turns.
const SENT_BYTES: u32 = 2 * 5 * GROUP_THREADS * 16;
/// Threads of a group.
const GROUP_THREADS: u32 = 128;
/// Tiles that are on their way, of both arrays.
const STAGES: u32 = 3;

impl Request {
    /// Whether attention in tf32 is made so.
    pub(super) fn has_wide(&self) -> bool {
        self.room.compute_capability == (9, 0) && self.head_size == TILE
    }

    /// The blocks of a pass.
    pub(super) fn wide(&self, kernels: Kernels) -> Plan {
        let are_many = self.tiles(128) >= 2 * self.room.multiprocessors as usize;
        let is_forward = kernels == Kernels::WideForward;
        // Two blocks share a task where one would take long over it, and what they tell each other is little.
        let cluster = if !are_many && is_forward && self.room.has_clusters { 2 } else { 1 };
        let shares = if is_forward { 3 } else { 2 };
        let kept = if is_forward { 1 } else { 2 };
        let ring = Ring { units: 1, shares, cluster, blocks: 1, stages_max: STAGES, kept };
        let shared_bytes = shared_bytes(kernels, ring);
        Plan {
            kernels,
            threads: (shares + 1) * GROUP_THREADS,
            choices: vec![[("BLOCKS_MIN", 1), ("CHUNK_TILES", 0)]],
            rows: TILE,
            part_rows: 0,
            part_numbers: 0,
            shared_bytes,
            numbers: vec![
                ("HEAD_SIZE", self.head_size),
                ("ELEMENT_BYTES", self.element_bytes),
                ("UNITS", 1),
                ("SHARES", shares),
                ("CLUSTER", cluster),
                ("STAGES", STAGES),
                ("REGISTERS", registers(shares, 1)),
                ("KEPT", kept),
                ("SHARED_BYTES", shared_bytes),
                ("FOUR_WARPS", 1),
            ],
            by_head: self.by_head(TILE),
            ring: Some(ring),
        }
    }
}

/// Bytes of shared memory, laid out as the kernels do.
fn shared_bytes(kernels: Kernels, ring: Ring) -> u32 {
    let (arrays, turned, beside) = match kernels {
        Kernels::WideBackward => (2, 2, STAGES * PAIRS_BYTES),
        _ => (1, 1, if ring.cluster > 1 { SENT_BYTES } else { 0 }),
    };
    let tiles = arrays + 2 * STAGES + turned * ring.shares;
    let barriers = 16 + 24 * STAGES + 16;
    tiles * TILE_BYTES + beside + barriers
}
