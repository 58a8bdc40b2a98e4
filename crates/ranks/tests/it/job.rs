//! Jobs on this machine.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ranks::{Communicator as _, Error, Limits, Place, Tcp};

/// Limits that no test reaches unless it means to.
pub const LIMITS: Limits =
    Limits { join: Duration::from_secs(20), silence: Duration::from_secs(20) };

/// A port that nobody has.
pub fn free_port() -> u16 {
    ranks::free_port().unwrap()
}

/// A port that somebody listens on, and nobody on the one beside it.
pub fn taken_port() -> (TcpListener, u16) {
    let port = free_port();
    (TcpListener::bind(("127.0.0.1", port)).unwrap(), port)
}

/// Waits until somebody listens on a port. Whoever comes without a word does no harm.
pub fn await_listener(port: u16) {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < LIMITS.join, "nobody listens on {port}");
        thread::sleep(Duration::from_millis(5));
    }
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
