//! Ranks find each other, or say why they do not.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use ranks::{Communicator as _, Error, Limits, Place, Tcp};

use crate::job::{LIMITS, await_listener, free_port, place, taken_port};

fn failure(place: &Place, limits: Limits) -> Error {
    Tcp::join(place, limits).expect_err("the job does not come about")
}

fn short() -> Limits {
    Limits { join: Duration::from_secs(2), ..LIMITS }
}

#[test]
fn ranks_may_come_in_any_order() {
    let port = free_port();
    thread::scope(|scope| {
        for (rank, delay_ms) in [(0, 300), (1, 150), (2, 0)] {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(delay_ms));
                let mut tcp = Tcp::join(&place(rank, 3, port), LIMITS).unwrap();
                assert_eq!(tcp.gather(&[rank as u8]).unwrap(), [[0], [1], [2]]);
                tcp.leave().unwrap();
            });
        }
    });
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let port = free_port();
    thread::scope(|scope| {
        let came = scope.spawn(|| failure(&place(2, 4, port), LIMITS));
        let error = failure(&place(0, 4, port), short()).to_string();
        assert!(error.starts_with("of 4 ranks, ranks 1, 3 did not come to 127.0.0.1:"), "{error}");
        let told = came.join().unwrap();
        assert!(told.was_told() && told.to_string().contains("ranks 1, 3 did not come"), "{told}");
    });
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let begun = Instant::now();
    let error = failure(&place(1, 2, free_port()), short());
    assert!(matches!(error, Error::Unreachable { rank: 1, .. }), "{error}");
    assert!(begun.elapsed() < LIMITS.join);
    let nowhere = Place { master_host: "no-such-host.invalid".into(), ..place(1, 2, 5) };
    let error = failure(&nowhere, short()).to_string();
    assert!(error.contains("no-such-host.invalid:5"), "{error}");
}

#[test]
fn a_port_in_use_is_named() {
    let (_taken, port) = taken_port();
    let error = failure(&place(0, 2, port), short());
    assert!(matches!(error, Error::PortInUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

#[test]
fn one_rank_alone_speaks_of_a_port_in_use() {
    // One that says nothing, and one that says something else.
    for answers in [false, true] {
        let (taken, port) = taken_port();
        thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok((mut stream, _)) = taken.accept() {
                if answers {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                }
                kept.push(stream);
            }
        });
        thread::scope(|scope| {
            let others =
                [1, 2].map(|rank| scope.spawn(move || failure(&place(rank, 3, port), LIMITS)));
            let begun = Instant::now();
            let error = failure(&place(0, 3, port), LIMITS);
            assert!(matches!(error, Error::PortInUse { .. }), "{error}");
            for other in others {
                let told = other.join().unwrap();
                assert!(told.was_told() && told.to_string().contains("cannot listen"), "{told}");
            }
            assert!(begun.elapsed() < Duration::from_secs(9), "all ended early");
        });
    }
}

#[test]
fn a_rank_of_another_job_is_refused() {
    for (wrong, expected) in [
        ((1, 3), "rank 1 does not belong to this job: the world size is 3 there and 2 here"),
        ((0, 2), "rank 0 cannot listen"),
    ] {
        let port = free_port();
        thread::scope(|scope| {
            let master = scope.spawn(move || failure(&place(0, 2, port), short()));
            await_listener(port);
            let error = failure(&place(wrong.0, wrong.1, port), short()).to_string();
            assert!(error.contains(expected), "{error}");
            master.join().unwrap();
        });
    }
}

#[test]
fn a_rank_of_another_version_is_refused() {
    let port = free_port();
    thread::scope(|scope| {
        let master = scope.spawn(move || failure(&place(0, 2, port), LIMITS));
        await_listener(port);
        let text = b"packed-adamw ranks 1\n0.0.7\n1\n2\n5";
        let mut other = TcpStream::connect(("127.0.0.1", port)).unwrap();
        other.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
        other.write_all(text).unwrap();
        let error = master.join().unwrap().to_string();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!("the program's version is 0.0.7 there and {version} here");
        assert!(error.contains(&expected), "{error}");
    });
}

#[test]
fn two_ranks_of_one_number_are_refused() {
    let port = free_port();
    thread::scope(|scope| {
        let master = scope.spawn(move || failure(&place(0, 3, port), LIMITS));
        let twins = [1, 1].map(|rank| scope.spawn(move || failure(&place(rank, 3, port), LIMITS)));
        let error = master.join().unwrap().to_string();
        assert!(
            error.contains("the rank is 1 there and a number that no other rank has here"),
            "{error}"
        );
        assert!(twins.into_iter().all(|twin| twin.join().unwrap().was_told()));
    });
}

#[test]
fn whoever_is_no_rank_does_no_harm() {
    let port = free_port();
    let strangers_came = &Barrier::new(2);
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            scope.spawn(move || {
                // Strangers come between the two.
                if rank == 1 {
                    strangers_came.wait();
                }
                Tcp::join(&place(rank, 2, port), LIMITS).unwrap().leave()
            })
        });
        await_listener(port);
        for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[5, 0, 0, 0, b'h'], b""] {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stranger.write_all(words).unwrap();
        }
        strangers_came.wait();
        assert!(ranks.into_iter().all(|rank| rank.join().unwrap().is_ok()));
    });
}
