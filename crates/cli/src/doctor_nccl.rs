//! `doctor --nccl`: how fast the devices of all ranks add up, by size.

use anyhow::{Result, anyhow};
use serde_json::json;
use trainer::{Reduced, all_reduce_speed};

use crate::args::Doctor;
use crate::output::{self, Usage, bytes, note};
use crate::{ranks, table};

/// Sizes that are timed, as the logarithm of their bytes.
const SIZES: std::ops::RangeInclusive<u32> = 16..=30;

pub fn run(args: &Doctor) -> Result<()> {
    let world = ranks::join()?;
    ranks::together(&world, || {
        if world.is_alone() {
            let words =
                "--nccl measures several ranks: packed-adamw launch --devices 2 -- doctor --nccl";
            return Err(anyhow!(Usage(words.into())));
        }
        let sizes: Vec<usize> = SIZES.step_by(2).map(|power| 1 << power).collect();
        let found = all_reduce_speed(&world, &sizes)?;
        world.leave()?;
        if world.is_first() { show(&found, world.share().world_size, args.json) } else { Ok(()) }
    })
}

fn show(found: &[Reduced], ranks: usize, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&json!({ "ranks": ranks, "all_reduce": found }));
    }
    let row = |one: &Reduced| {
        vec![
            bytes(one.bytes as u64),
            format!("{:.4}", one.ms),
            format!("{:.1}", one.algorithm_gb_per_s),
            format!("{:.1}", one.bus_gb_per_s),
        ]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    let head = ["bytes of f32", "ms", "algorithm GB/s", "bus GB/s"];
    output::data(&format!("all-reduce over {ranks} ranks\n\n{}\n", table::columns(&head, &rows)))?;
    note(
        "algorithm: bytes over time; bus: that times 2 (ranks - 1) / ranks, as nccl-tests reports it",
    );
    Ok(())
}
