//! A process as one of several ranks: joining the others, and who of them speaks.

use std::fmt;

use anyhow::{Error, Result, anyhow};
use ranks::{Limits, Place, Tcp};
use trainer::World;

use crate::exit_code;
use crate::output::{note, sentence};

/// Set for the processes that `launch` starts, which end with it.
pub const LAUNCHED: &str = "PACKED_ADAMW_LAUNCHED";

/// An error that another process tells of: only the exit code is left to do.
#[derive(Debug)]
pub struct Quiet(pub u8);

impl fmt::Display for Quiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Quiet {}

/// Joins the ranks that the launcher's variables speak of; alone without such variables.
pub fn join() -> Result<World> {
    if std::env::var_os(LAUNCHED).is_some() {
        trainer::study::stop_with_parent();
    }
    let failed = |error: ranks::Error| anyhow!(trainer::Error::from(error));
    let Some(place) = Place::of_process().map_err(failed)? else { return Ok(World::alone()) };
    // Before there are other threads.
    gpu_kernels::nccl::choose_fixed_order();
    let joined = Limits::of_process().and_then(|limits| Tcp::join(&place, limits));
    match joined {
        Ok(tcp) => Ok(World::of(tcp, &place)),
        // A rank that was refused hears it from rank 0; of those that find no rank 0, one says so.
        Err(error) if place.rank > 1 || error.was_told() => Err(quiet(&failed(error))),
        Err(error) => Err(failed(error)),
    }
}

/// Does the part of a rank. What goes wrong is told to the others, and to people by one rank only.
pub fn together<T>(world: &World, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let rank = world.share().rank;
    world.set_last_resort(move |fault| {
        if is_speaker(rank, Some(fault)) {
            note(&format!("error: {fault}"));
        }
        std::process::exit(1);
    });
    work().map_err(|error| {
        world.abort(&sentence(&error));
        if speaks(world.share().rank, &error) { error } else { quiet(&error) }
    })
}

/// Rank 0 speaks; where it is gone itself, rank 1 does.
fn speaks(rank: usize, error: &Error) -> bool {
    is_speaker(
        rank,
        match error.downcast_ref() {
            Some(trainer::Error::Ranks(error)) => Some(error),
            _ => None,
        },
    )
}

fn is_speaker(rank: usize, ranks_error: Option<&ranks::Error>) -> bool {
    use ranks::Error::{Ended, Hangs};
    let is_first_gone = matches!(ranks_error, Some(Ended { rank: 0, .. } | Hangs { rank: 0, .. }));
    rank == 0 || rank == 1 && is_first_gone
}

fn quiet(error: &Error) -> Error {
    anyhow!(Quiet(exit_code(error)))
}
