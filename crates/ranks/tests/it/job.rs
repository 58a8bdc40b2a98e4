//! Jobs on this machine.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use ranks::{Communicator as _, Error, Limits, Place, Tcp};

/// Limits that no test reaches unless it means to.
pub const LIMITS: Limits =
    Limits { join: Duration::from_secs(20), silence: Duration::from_secs(20) };

/// A port that nobody has.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Rank `rank` of `world_size` on this machine.
pub fn place(rank: usize, world_size: usize, master_port: u16) -> Place {
    Place {
        rank,
        world_size,
        local_rank: rank,
        local_world_size: Some(world_size),
        master_host: "127.0.0.1".into(),
        master_port,
    }
}

/// Runs `work` on every rank of a job of threads, and returns what each returned.
pub fn run<T: Send>(
    world_size: usize,
    limits: Limits,
    work: impl Fn(&mut Tcp) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    let port = free_port();
    thread::scope(|scope| {
        let rank = |rank: usize| {
            let work = &work;
            scope.spawn(move || {
                let mut tcp = Tcp::join(&place(rank, world_size, port), limits)?;
                let outcome = work(&mut tcp)?;
                tcp.leave()?;
                Ok(outcome)
            })
        };
        let threads: Vec<_> = (0..world_size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// As [`run`], where nothing goes wrong.
pub fn outcomes<T: Send>(
    world_size: usize,
    work: impl Fn(&mut Tcp) -> Result<T, Error> + Sync,
) -> Vec<T> {
    run(world_size, LIMITS, work).into_iter().map(Result::unwrap).collect()
}
