//! The blocks of attention where four warps make products of tf32 as one: heads of 64 channels, on devices of compute
//! capability 9.0. What the numbers mean: `cuda/attention_ring.cuh` and `cuda/attention_wide.cuh`.

use super::ring::{PAIRS_BYTES, Ring, SENT_BYTES, TILE};
use super::{Kernels, Plan, Request};

/// Bytes of a tile.
const TILE_BYTES: u32 = TILE * 256;
/// Tiles that are on their way, of both arrays.
const STAGES: u32 = 3;

impl Request {
    /// Whether attention in tf32 is made so.
    pub(super) fn has_wide(&self) -> bool {
        self.room.compute_capability == (9, 0) && self.head_size == TILE
    }

    /// The blocks of a pass.
    pub(super) fn wide(&self, kernels: Kernels) -> Plan {
        let is_forward = kernels == Kernels::WideForward;
        let (shares, kept) = if is_forward { (3, 1) } else { (2, 2) };
        let cluster = self.blocks_of_task(is_forward);
        // As in bf16.
        let takes = self.has_many_tiles() && !is_forward;
        let ring = Ring { units: 1, shares, cluster, blocks: 1, stages_max: STAGES, kept, takes };
        ring.plan(self, kernels, STAGES, shared_bytes(kernels, ring))
    }
}

/// Bytes of shared memory, laid out as the kernels do.
fn shared_bytes(kernels: Kernels, ring: Ring) -> u32 {
    let (arrays, turned, beside) = match kernels {
        Kernels::WideBackward => (2, 2, STAGES * PAIRS_BYTES),
        _ => (1, 1, if ring.cluster > 1 { SENT_BYTES } else { 0 }),
    };
    let tiles = arrays + 2 * STAGES + turned * ring.shares;
    let barriers = 16 + 24 * STAGES + 16 + ring.turn_bytes();
    tiles * TILE_BYTES + beside + barriers
}
