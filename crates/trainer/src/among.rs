//! The devices of ranks: how they become one communicator, and how fast they add up.

use std::sync::Arc;

use gpu_kernels::{Nccl, nccl};
use model::Cuda;
use serde::Serialize;

use crate::device::Device;
use crate::error::Error;
use crate::world::World;

/// Sums of each size that are timed; others go before them.
const REPEATS: usize = 20;

/// Joins the devices of ranks, which add up gradients. A device that is alone stays as it is.
///
/// # Errors
///
/// NCCL that is missing, and what it refuses; a rank that is gone.
pub fn join(cuda: &Cuda, world: &World) -> Result<(), Error> {
    if world.is_alone() {
        return Ok(());
    }
    cuda.set_ranks(None)?;
    join_all(cuda, world).map(drop)
}

fn join_all(cuda: &Cuda, world: &World) -> Result<Arc<Nccl>, Error> {
    let _busy = world.busy();
    nccl::is_there().map_err(model::Error::from)?;
    // All have it, or none goes on.
    world.barrier()?;
    let own = match world.is_first() {
        true => nccl::unique_id().map_err(model::Error::from)?.to_vec(),
        false => Vec::new(),
    };
    let id = world.bytes_of_first(own)?.try_into().expect("rank 0 sends an id");
    let share = world.share();
    let ranks = Nccl::join(cuda.gpu(), id, share.rank, share.world_size);
    let ranks = Arc::new(ranks.map_err(model::Error::from)?);
    let [checked, cut] = [Arc::downgrade(&ranks), Arc::downgrade(&ranks)];
    cuda.set_ranks(Some(Arc::clone(&ranks)))?;
    let check = move || match checked.upgrade() {
        Some(ranks) => ranks.check().map_err(|error| error.to_string()),
        None => Ok(()),
    };
    let cut = move || {
        if let Some(ranks) = cut.upgrade() {
            ranks.abort();
        }
    };
    world.watch(check, cut)?;
    Ok(ranks)
}

/// How fast devices add up so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reduced {
    /// Bytes that each rank has.
    pub bytes: usize,
    /// Median time of a sum, in milliseconds.
    pub ms: f64,
    /// Bytes over time, in 10^9 a second.
    pub algorithm_gb_per_s: f64,
    /// The same times `2 (ranks - 1) / ranks`: what goes in and out of each device in a ring, as nccl-tests reports it.
    pub bus_gb_per_s: f64,
}

/// Times sums over the devices of all ranks, of `sizes` bytes each.
///
/// # Errors
///
/// One rank alone, devices and libraries that are missing, and ranks that are gone.
pub fn all_reduce_speed(world: &World, sizes: &[usize]) -> Result<Vec<Reduced>, Error> {
    let device = Device::choose_local("cuda", None, world.local())?;
    let Device::Cuda(cuda) = &device else { unreachable!("cuda is no processor") };
    let ranks = join_all(cuda, world)?;
    let count = ranks.world_size() as f64;
    let measured = sizes.iter().map(|&bytes| {
        let waiting = world.waiting();
        let times = ranks.all_reduce_ms(bytes, REPEATS).map_err(model::Error::from)?;
        drop(waiting);
        let ms = times[times.len() / 2];
        let algorithm_gb_per_s = bytes as f64 / ms / 1e6;
        let bus_gb_per_s = algorithm_gb_per_s * 2.0 * (count - 1.0) / count;
        Ok(Reduced { bytes, ms, algorithm_gb_per_s, bus_gb_per_s })
    });
    let found = measured.collect::<Result<_, Error>>()?;
    world.barrier()?;
    Ok(found)
}
