//! A rank that dies, hangs, fails or strays is named to all others, with the operation.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ranks::{Communicator as _, Error, Limits, Place, Tcp};

use crate::job::{LIMITS, free_port, place, run};

/// Set in processes that are ranks of a test.
const WORKER: &str = "RANKS_TEST_WORKER";

fn messages<T: Send>(
    world_size: usize,
    limits: Limits,
    work: impl Fn(&mut Tcp) -> Result<T, Error> + Sync,
) -> Vec<String> {
    let text =
        |outcome: Result<T, Error>| outcome.err().map_or_else(String::new, |e| e.to_string());
    run(world_size, limits, work).into_iter().map(text).collect()
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let found = messages(3, LIMITS, |tcp| {
        tcp.barrier()?;
        if tcp.rank() == 1 {
            tcp.abort("the disk is full");
            return Ok(());
        }
        tcp.all_reduce(&mut [1.0; 7])
    });
    for rank in [0, 2] {
        assert_eq!(found[rank], "rank 1 stopped the job: the disk is full");
    }
}

#[test]
fn a_rank_out_of_step_is_named() {
    let found = messages(2, LIMITS, |tcp| match tcp.rank() {
        0 => tcp.all_reduce(&mut [1.0; 8]),
        _ => tcp.barrier(),
    });
    let expected = "rank 1 sent 0 bytes for barrier (operation 0) where 16 bytes for reduce_scatter (operation 0) was due";
    assert!(found.iter().any(|found| found.contains(expected)), "{found:?}");
    let found = messages(2, LIMITS, |tcp| {
        let length = 8 + 4 * tcp.rank();
        tcp.all_reduce(&mut vec![1.0; length])
    });
    assert!(found.iter().all(|found| !found.is_empty()), "{found:?}");
}

#[test]
fn a_rank_without_progress_is_named_and_one_that_is_busy_is_not() {
    let limits = Limits { silence: Duration::from_secs(2), ..LIMITS };
    let late = Duration::from_millis(4500);
    let found = messages(3, limits, |tcp| {
        if tcp.rank() == 2 {
            thread::sleep(late);
        }
        tcp.barrier()
    });
    assert!(
        found[0].contains("rank 2 hangs: no sign of progress for 2 s during barrier"),
        "{found:?}"
    );
    assert!(found[1].contains("rank 2"), "{found:?}");

    let found = messages(3, limits, |tcp| {
        if tcp.rank() == 2 {
            let _busy = tcp.pulse().busy();
            thread::sleep(late);
        }
        tcp.barrier()?;
        if tcp.rank() == 1 {
            for _ in 0..45 {
                tcp.pulse().beat();
                thread::sleep(late / 45);
            }
        }
        tcp.barrier()
    });
    assert_eq!(found, ["", "", ""]);
}

/// A rank in a process of its own: sums until something goes wrong, and says what.
#[test]
fn worker() {
    let Ok(silence) = std::env::var(WORKER) else { return };
    let silence = Duration::from_secs(silence.parse().unwrap());
    let place = Place::of_process().unwrap().unwrap();
    let mut tcp = Tcp::join(&place, Limits { silence, ..LIMITS }).unwrap();
    loop {
        if let Err(error) = tcp.all_reduce(&mut [1.0; 1000]) {
            drop(tcp);
            panic!("{error}");
        }
    }
}

/// Processes that are ranks 1, 2, ... of a job.
fn workers(world_size: usize, port: u16, silence_s: u64) -> Vec<Child> {
    let worker = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::worker", "--nocapture"])
            .env(WORKER, silence_s.to_string())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world_size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (1..world_size).map(worker).collect()
}

#[cfg(unix)]
#[test]
fn processes_that_die_or_stop_are_named_to_all() {
    for (signal, silence_s, expected) in
        [("-KILL", 20, "rank 2 ended during"), ("-STOP", 4, "rank 2 hangs")]
    {
        let port = free_port();
        let mut workers = workers(4, port, silence_s);
        let limits = Limits { silence: Duration::from_secs(silence_s), ..LIMITS };
        let mut tcp = Tcp::join(&place(0, 4, port), limits).unwrap();
        for _ in 0..20 {
            tcp.all_reduce(&mut [1.0; 1000]).unwrap();
        }
        let victim = workers.remove(1);
        Command::new("kill").args([signal, &victim.id().to_string()]).status().unwrap();
        let begun = Instant::now();
        let error = (0..100_000).find_map(|_| tcp.all_reduce(&mut [1.0; 1000]).err()).unwrap();
        assert!(begun.elapsed() < LIMITS.silence, "{:?}", begun.elapsed());
        let message = error.to_string();
        assert!(message.contains(expected), "{signal}: {message}");
        assert!(message.contains("reduce_scatter") || message.contains("all_gather"), "{message}");
        drop(tcp);
        for worker in workers {
            let output = worker.wait_with_output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(words.contains(expected), "{signal}: {words}");
        }
        let mut victim = victim;
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
}

#[test]
fn a_watch_between_operations_finds_who_is_gone() {
    let limits = Limits { silence: Duration::from_secs(1), ..LIMITS };
    let watch = |tcp: &mut Tcp| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(6) {
            tcp.watch()?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    // One gives up, one ends without a word, one waits for a device, and one does nothing any more.
    let aborts = messages(2, limits, |tcp| {
        tcp.barrier()?;
        if tcp.rank() == 0 {
            tcp.abort("enough");
            return Ok(());
        }
        watch(tcp)
    });
    assert_eq!(aborts[1], "rank 0 stopped the job: enough");
    let ends = messages(2, limits, |tcp| {
        tcp.barrier()?;
        if tcp.rank() == 0 {
            Err(Error::Device { rank: 0, message: "lost".into() })
        } else {
            watch(tcp)
        }
    });
    assert!(ends[1].contains("rank 0"), "{ends:?}");
    let hangs = messages(3, limits, |tcp| {
        tcp.barrier()?;
        match tcp.rank() {
            0 => watch(tcp),
            1 => {
                let _waiting = tcp.pulse().waiting();
                thread::sleep(Duration::from_millis(2500));
                Ok(())
            }
            _ => {
                thread::sleep(Duration::from_millis(2500));
                Ok(())
            }
        }
    });
    assert_eq!(hangs[0], "rank 2 hangs: no sign of progress for 1 s during work on devices");
}

#[test]
fn a_watch_leaves_the_next_operation_alone() {
    let outcomes = run(2, LIMITS, |tcp| {
        let mut values = [1.0; 5];
        for _ in 0..20 {
            if tcp.rank() == 1 {
                thread::sleep(Duration::from_millis(5));
                tcp.watch()?;
            }
            tcp.all_reduce(&mut values)?;
        }
        Ok(values[0])
    });
    assert!(outcomes.into_iter().all(|outcome| outcome.unwrap() == 2f32.powi(20)));
}
