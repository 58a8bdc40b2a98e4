//! The blocks of attention where four warps make products as one: heads of 64 channels in bf16, on devices of compute
//! capability 9.0. What the numbers mean: `cuda/attention_ring.cuh`.

use super::{Kernels, Plan, Request};

/// Rows of a unit, and of a tile that is visited.
pub(super) const TILE: u32 = 64;
/// Bytes of such rows.
const TILE_BYTES: u32 = TILE * 128;
/// Bytes of the pairs of visited queries.
pub(super) const PAIRS_BYTES: u32 = TILE * 8;
/// Bytes that a group receives of the other block of a cluster, in two turns.
pub(super) const SENT_BYTES: u32 = 2 * 5 * GROUP_THREADS * 16;
/// Bytes that may be lost to an address that is a multiple of 1024.
const ALIGNMENT_BYTES: u32 = 1024;
/// Threads of a group, registers of a multiprocessor and of a thread of the group that fetches, and most of a thread.
pub(super) const GROUP_THREADS: u32 = 128;
const REGISTERS_OF_ALL: u32 = 65_536;
const REGISTERS_OF_FETCHING: u32 = 24;
const REGISTERS_MAX: u32 = 240;

/// How blocks take turns with tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) blocks: u64,
    /// How much further each turn begins.
    pub(crate) rotation: u32,
    /// Heads, the last ones, of which the longest tasks of all come first.
    pub(crate) mixed_heads: u64,
}

/// Turns at the end of which all blocks end at once, as the longest tasks of them come first.
const TURNS_MIXED: u64 = 3;

/// The macro that says whether blocks take tasks.
const TAKES: &str = "TAKES";

/// A way to cut attention into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) units: u32,
    pub(super) shares: u32,
    /// Blocks that have a task together: 1 or 2.
    pub(super) cluster: u32,
    /// Blocks of a multiprocessor.
    pub(super) blocks: u32,
    pub(super) stages_max: u32,
    /// Arrays of own rows that stay in registers.
    pub(super) kept: u32,
    /// Whether a block takes a task when it is free, in place of tasks that it knows beforehand.
    pub(super) takes: bool,
}

impl Plan {
    /// How blocks take turns with `tasks` of so many heads, as many at once as the device runs, if they do.
    pub(crate) fn turns(&self, tasks: u64, heads: u64, multiprocessors: u32) -> Option<Turns> {
        let Ring { cluster, blocks, takes, .. } = self.ring?;
        let clusters = tasks.min(u64::from(multiprocessors / cluster * blocks));
        // By heads, tasks of each length come again and again, and every block shall come by all of them. Else the
        // longest come first, and the longest of the second turn to the shortest of the first.
        let rotation = if self.by_head { u64::from(clusters % 2 == 0) } else { tasks % clusters };
        let mixed_heads = match self.by_head {
            true if takes => (TURNS_MIXED * clusters).div_ceil(tasks / heads).min(heads),
            true => 0,
            false => heads,
        };
        Some(Turns {
            blocks: clusters * u64::from(cluster),
            rotation: rotation as u32,
            mixed_heads,
        })
    }

    /// The same blocks, which know their tasks beforehand.
    pub(crate) fn in_fixed_turns(mut self) -> Plan {
        if let Some(ring) = &mut self.ring {
            ring.takes = false;
            self.numbers.retain(|&(name, _)| name != TAKES);
            self.numbers.push((TAKES, 0));
        }
        self
    }
}

impl Request {
    /// Whether attention is made so.
    pub(super) fn has_ring(&self) -> bool {
        self.room.compute_capability == (9, 0) && self.element_bytes == 2 && self.head_size == TILE
    }

    /// The best blocks of a pass, as measured on an H200.
    pub(super) fn ring(&self, kernels: Kernels) -> Plan {
        let are_many = self.has_many_tiles();
        // Fewer places are better, since all blocks ask for as many tiles at once in the beginning.
        let (units, shares, kept, stages_max) = match (are_many, kernels) {
            (true, Kernels::RingForward) => (4, 1, 0, 4),
            (true, _) => (2, 1, 1, 4),
            (false, Kernels::RingForward) => (1, 3, 1, 8),
            (false, _) => (1, 2, 2, 4),
        };
        let cluster = self.blocks_of_task(kernels == Kernels::RingForward);
        // Gradients are summed over ranks beside the backward pass, and take multiprocessors from it. With few tiles each
        // block has one or two, and there is nothing to take.
        let takes = are_many && kernels == Kernels::RingBackward;
        let ring = Ring { units, shares, cluster, blocks: 1, stages_max, kept, takes };
        ring.fitted(self, kernels)
    }

    /// Two blocks share a task where one would take long over it, and what they tell each other is little.
    pub(super) fn blocks_of_task(&self, is_forward: bool) -> u32 {
        if !self.has_many_tiles() && is_forward && self.room.has_clusters { 2 } else { 1 }
    }
}

/// Registers of a computing thread, of `groups` of them in each of so many blocks of a multiprocessor.
fn registers(groups: u32, blocks: u32) -> u32 {
    let threads = (groups + 1) * GROUP_THREADS;
    // A kernel begins with as many for every thread, by eights; the group that fetches gives most of its own away.
    let all = REGISTERS_OF_ALL / blocks / threads / 8 * 8 * threads;
    let left = all - REGISTERS_OF_FETCHING * GROUP_THREADS;
    (left / (groups * GROUP_THREADS) / 8 * 8).min(REGISTERS_MAX)
}

impl Ring {
    /// The plan with as many places in the ring as there is room for.
    fn fitted(self, request: &Request, kernels: Kernels) -> Plan {
        let shared_bytes_max = request.room.shared_bytes_max / self.blocks - ALIGNMENT_BYTES;
        let fits = |&stages: &u32| self.shared_bytes(kernels, stages) <= shared_bytes_max;
        let all = 1..=self.stages_max;
        let stages = all.rev().find(fits).expect("a device of this kind has the room");
        self.plan(request, kernels, stages, self.shared_bytes(kernels, stages))
    }

    /// The plan with so many places in the ring, and shared memory for all of it.
    pub(super) fn plan(
        self,
        request: &Request,
        kernels: Kernels,
        stages: u32,
        shared_bytes: u32,
    ) -> Plan {
        let Ring { units, shares, cluster, blocks, kept, takes, .. } = self;
        let groups = units * shares;
        let rows = TILE * units;
        Plan {
            kernels,
            threads: (groups + 1) * GROUP_THREADS,
            choices: vec![[("BLOCKS_MIN", blocks), ("CHUNK_TILES", 0)]],
            rows,
            part_rows: 0,
            part_numbers: 0,
            shared_bytes,
            numbers: vec![
                ("HEAD_SIZE", request.head_size),
                ("ELEMENT_BYTES", request.element_bytes),
                ("UNITS", units),
                ("SHARES", shares),
                ("CLUSTER", cluster),
                ("STAGES", stages),
                ("REGISTERS", registers(groups, blocks)),
                ("KEPT", kept),
                (TAKES, u32::from(takes)),
                ("SHARED_BYTES", shared_bytes),
                ("FOUR_WARPS", 1),
            ],
            by_head: request.by_head(rows),
            ring: Some(self),
        }
    }

    /// Bytes of shared memory for tasks that are taken.
    pub(super) fn turn_bytes(self) -> u32 {
        if self.takes { 32 } else { 0 }
    }

    /// Bytes of shared memory, laid out as the kernels do.
    fn shared_bytes(self, kernels: Kernels, stages: u32) -> u32 {
        let Ring { units, shares, .. } = self;
        let (own, stage, numbers, senders) = match kernels {
            Kernels::RingBackward => (2, 2 * TILE_BYTES + PAIRS_BYTES, 2 * 32, units * shares),
            _ => (1, 2 * TILE_BYTES, 32 + 4, units),
        };
        let sent = if self.cluster > 1 { senders * SENT_BYTES } else { 0 };
        let left = (shares - 1) * units * GROUP_THREADS * numbers * 4;
        let barriers = 16 + 24 * stages + 16 + self.turn_bytes();
        ALIGNMENT_BYTES + own * units * TILE_BYTES + stages * stage + left + sent + barriers
    }
}
