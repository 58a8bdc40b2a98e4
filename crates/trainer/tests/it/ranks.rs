//! Runs that ranks share, each on a thread of its own, connected as processes would be.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ranks::{Limits, Place, Tcp};
use tempfile::tempdir;
use trainer::events::Event;
use trainer::{Checkpoint, Ending, Error, Request, Settings, Summary, World, run_with};

use crate::tiny::{UPDATES, checkpoint_files, settings, train};

/// What one rank of a job did.
type Outcome = Result<Ending, Error>;

/// Runs ranks whose settings are `of(rank)` in one folder; rank `stops`, if any, is asked to stop at update 6.
fn job(
    world_size: usize,
    of: &(impl Fn(usize) -> Settings + Sync),
    folder: &Path,
    resume: bool,
    stops: Option<usize>,
) -> (Vec<Outcome>, Vec<Event>) {
    let port = ranks::free_port().unwrap();
    let rank = |rank: usize| {
        let place = Place {
            rank,
            world_size,
            local_rank: rank,
            local_world_size: Some(world_size),
            master_host: "127.0.0.1".into(),
            master_port: port,
        };
        let (settings, stop) = (of(rank), AtomicBool::new(false));
        let mut events = Vec::new();
        let limits = Limits { silence: Duration::from_secs(60), ..Limits::default() };
        let world = World::of(Tcp::join(&place, limits).unwrap(), &place);
        let folder = folder.to_owned();
        let request = Request { settings: &settings, folder, resume, stop: &stop };
        // Others hear of no events, so they wish from the start.
        stop.store(stops == Some(rank) && rank > 0, Ordering::Relaxed);
        let outcome = run_with(&request, &world, &mut |event: &Event| {
            if matches!(event, Event::Update(done) if done.update == 6) && stops == Some(rank) {
                stop.store(true, Ordering::Relaxed);
            }
            events.push(event.clone());
        });
        (outcome, events)
    };
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..world_size).map(|own| scope.spawn(move || rank(own))).collect();
        let mut outcomes = Vec::new();
        let mut all = Vec::new();
        for (rank, thread) in threads.into_iter().enumerate() {
            let (outcome, events) = thread.join().unwrap();
            outcomes.push(outcome);
            assert!(rank == 0 || events.is_empty(), "only rank 0 speaks");
            all.extend(events);
        }
        (outcomes, all)
    })
}

fn finished(outcome: Outcome) -> Summary {
    match outcome.unwrap() {
        Ending::Finished(summary) => *summary,
        Ending::Stopped { .. } => panic!("nobody asked to stop"),
    }
}

/// A finished job of ranks with the same settings.
fn train_by(world_size: usize, settings: &Settings, folder: &Path) -> (Vec<Summary>, Vec<Event>) {
    let (outcomes, events) = job(world_size, &|_| settings.clone(), folder, false, None);
    (outcomes.into_iter().map(finished).collect(), events)
}

/// A whole update has four micro-batches of three rows; the last one has two rows and a part of one.
const CHANGES: [&str; 3] = ["run.accumulation=4", "run.tokens=2_150", "run.batch=3"];

fn changed(more: &[&str]) -> Settings {
    let mut settings = settings(&[&CHANGES[..], more].concat());
    settings.remove("run.updates");
    settings
}

#[test]
fn a_fixed_reduction_gives_the_same_bytes_for_any_number_of_ranks() {
    for format in ["e4", "ustate1q"] {
        let settings = changed(&["run.reduction=fixed", &format!("optimizer.state={format}")]);
        let one = tempdir().unwrap();
        let alone = train(&settings, one.path()).unwrap();
        assert_eq!(alone.updates, UPDATES);
        for world_size in [2, 3, 4] {
            let several = tempdir().unwrap();
            let (summaries, _) = train_by(world_size, &settings, several.path());
            for update in [5, 10, UPDATES] {
                assert_eq!(
                    checkpoint_files(several.path(), update),
                    checkpoint_files(one.path(), update),
                    "{format}: {world_size} ranks, update {update}"
                );
            }
            for summary in summaries {
                assert_eq!(summary.tokens, alone.tokens);
                assert_eq!(summary.validation_loss_nats, alone.validation_loss_nats);
            }
        }
    }
}

#[test]
fn a_fast_reduction_gives_the_same_bytes_every_time_and_nearly_those_of_one_rank() {
    let settings = changed(&[]);
    let folders = [(); 3].map(|()| tempdir().unwrap());
    let alone = train(&settings, folders[0].path()).unwrap();
    for folder in &folders[1..] {
        let (summaries, _) = train_by(3, &settings, folder.path());
        let difference = summaries[0].validation_loss_nats - alone.validation_loss_nats;
        assert!(difference.abs() < 1e-4, "{difference}");
    }
    let [_, one, other] = &folders;
    assert_eq!(checkpoint_files(one.path(), UPDATES), checkpoint_files(other.path(), UPDATES));
}

#[test]
fn metrics_have_the_time_of_every_rank() {
    let folder = tempdir().unwrap();
    let (_, events) = train_by(2, &changed(&[]), folder.path());
    let started = events.iter().any(|event| matches!(event, Event::Started { ranks: 2, .. }));
    assert!(started);
    let updates: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Update(update) = event { Some(update) } else { None })
        .collect();
    assert_eq!(updates.len() as u64, UPDATES);
    for update in updates {
        let [first, second] = update.rank_ms[..] else { panic!("two ranks") };
        assert_eq!(update.rank_wait_ms, Some((first - second).abs()));
        assert!(update.ms >= first.max(second));
    }
}

#[test]
fn a_run_stopped_on_four_ranks_goes_on_with_fewer_and_changes_no_byte() {
    let settings = changed(&["run.reduction=fixed"]);
    let straight = tempdir().unwrap();
    train(&settings, straight.path()).unwrap();
    for (asked, after) in [(0, 7), (3, 1)] {
        let folder = tempdir().unwrap();
        let (outcomes, _) = job(4, &|_| settings.clone(), folder.path(), false, Some(asked));
        for outcome in outcomes {
            let Ok(Ending::Stopped { update }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(update, after, "all stop after the update in which they hear of it");
        }
        let (outcomes, _) = job(2, &|_| settings.clone(), folder.path(), true, None);
        outcomes.into_iter().for_each(|outcome| drop(finished(outcome)));
        assert_eq!(
            checkpoint_files(folder.path(), UPDATES),
            checkpoint_files(straight.path(), UPDATES)
        );
    }
}

#[test]
fn ranks_that_differ_are_told_by_name_before_anything_is_written() {
    for (change, expected) in [
        ("run.seed=7", "rank 2 differs from rank 0: `run.seed` is 7 there and 1 on rank 0"),
        (
            "schedule.warmup=4",
            "rank 2 differs from rank 0: `schedule.warmup` is 4 there and 3 on rank 0",
        ),
        (
            "optimizer.lr=0.5",
            "rank 2 differs from rank 0: `optimizer.lr` is 0.5 there and 0.01 on rank 0",
        ),
    ] {
        let of = |rank: usize| if rank == 2 { changed(&[change]) } else { changed(&[]) };
        let folder = tempdir().unwrap();
        let (outcomes, events) = job(3, &of, folder.path(), false, None);
        for outcome in outcomes {
            let message = outcome.unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        assert!(events.is_empty());
        assert!(!folder.path().join("config.toml").exists());
    }
}

#[test]
fn ranks_that_write_the_same_values_otherwise_agree() {
    let of = |rank: usize| {
        let texts = ["optimizer.lr=0.01", "optimizer.clip_norm=1.0"];
        let other = ["optimizer.lr=1e-2", "optimizer.clip_norm=1"];
        changed(if rank == 1 { &other } else { &texts })
    };
    let folder = tempdir().unwrap();
    let (outcomes, _) = job(2, &of, folder.path(), false, None);
    outcomes.into_iter().for_each(|outcome| drop(finished(outcome)));
}

#[test]
fn more_ranks_than_micro_batches_are_refused() {
    let folder = tempdir().unwrap();
    let (outcomes, _) = job(3, &|_| settings(&["run.accumulation=2"]), folder.path(), false, None);
    for outcome in outcomes {
        let message = outcome.unwrap_err().to_string();
        let expected = "3 ranks: `run.accumulation` must be at least 3";
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn an_error_of_one_rank_ends_all() {
    // Rank 1 cannot open its tokenizer.
    let missing = "data.tokenizer=no-such-file.json";
    let of = |rank: usize| if rank == 1 { changed(&[missing]) } else { changed(&[]) };
    let folder = tempdir().unwrap();
    let (outcomes, _) = job(3, &of, folder.path(), false, None);
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("no-such-file.json"), "{message}");
        assert_eq!(message.starts_with("rank 1 stopped the job: "), rank != 1, "{message}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_every_rank_with_the_same_words() {
    let settings = changed(&["optimizer.lr=1e30", "optimizer.clip_norm=0.0", "schedule.warmup=0"]);
    let folder = tempdir().unwrap();
    let (outcomes, _) = job(2, &|_| settings.clone(), folder.path(), false, None);
    let messages: Vec<String> =
        outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    assert!(messages[0].contains("update "), "{messages:?}");
    assert_eq!(messages[0], messages[1]);
}

/// Whether two checkpoints have the same bytes of optimizer state, whoever wrote them.
fn check_same_state(one: &Checkpoint, other: &Checkpoint, case: &str) {
    let [one, other] = [one, other].map(|checkpoint| {
        let mut state = checkpoint.optimizer().unwrap();
        state.arrays.sort_by(|one, other| one.name.cmp(&other.name));
        state
    });
    assert_eq!(one.metadata, other.metadata, "{case}");
    assert_eq!(one.arrays.len(), other.arrays.len(), "{case}");
    for (one, other) in one.arrays.iter().zip(&other.arrays) {
        assert_eq!((&one.name, &one.shape), (&other.name, &other.shape), "{case}");
        assert!(one == other, "{case}: {}", one.name);
    }
}

#[test]
fn ranks_that_divide_the_state_make_the_run_of_one() {
    // Cuts within tensors, at the ends of some, and more ranks than places to cut.
    let shapes = [&["model.channels=64", "model.heads=2"][..], &[]];
    for (format, shape) in ["fp32", "fp16", "e4", "e4s", "block8", "n4l4", "ustate1q"]
        .iter()
        .zip(shapes.iter().cycle())
    {
        let format = format!("optimizer.state={format}");
        let settings = changed(&[&["run.reduction=fixed", &format][..], shape].concat());
        let divided =
            changed(&[&["run.reduction=fixed", "run.sharded=true", &format][..], shape].concat());
        let one = tempdir().unwrap();
        train(&settings, one.path()).unwrap();
        let whole = Checkpoint::find(one.path()).unwrap();
        for world_size in [2, 3, 4] {
            let several = tempdir().unwrap();
            let (summaries, events) = train_by(world_size, &divided, several.path());
            let found = Checkpoint::find(several.path()).unwrap();
            check_same_state(&found, &whole, &format!("{format} {world_size}"));
            let parameters = |checkpoint: &Checkpoint| {
                fs::read(checkpoint.directory.join("parameters.safetensors")).unwrap()
            };
            assert!(parameters(&found) == parameters(&whole), "{format} {world_size}");
            assert_eq!(found.manifest.progress, whole.manifest.progress, "{format} {world_size}");
            let bytes = events.iter().find_map(|event| match event {
                Event::Started { rank_state_bytes, .. } => Some(rank_state_bytes.clone()),
                _ => None,
            });
            let bytes = bytes.unwrap();
            assert_eq!(bytes.len(), world_size);
            let all = bytes.iter().sum::<u64>() as f64;
            let parameters = summaries[0].parameters as f64;
            assert_eq!(all / parameters, summaries[0].state_bytes_per_parameter);
        }
    }
}

#[test]
fn divided_and_whole_state_have_the_same_bytes_in_a_fast_reduction() {
    let (one, other) = (tempdir().unwrap(), tempdir().unwrap());
    train_by(2, &changed(&[]), one.path());
    train_by(2, &changed(&["run.sharded=true"]), other.path());
    let [one, other] = [one, other].map(|folder| Checkpoint::find(folder.path()).unwrap());
    check_same_state(&one, &other, "fast");
    assert_eq!(one.manifest.progress, other.manifest.progress);
}

#[test]
fn divided_state_is_resumed_by_any_number_of_ranks() {
    let settings = changed(&["run.reduction=fixed", "run.sharded=true"]);
    let straight = tempdir().unwrap();
    train(&settings, straight.path()).unwrap();
    let stopped = tempdir().unwrap();
    for (world_size, resume, stops) in [(4, false, true), (1, true, false)] {
        let stops = stops.then_some(0);
        job(world_size, &|_| settings.clone(), stopped.path(), resume, stops);
    }
    let again = tempdir().unwrap();
    for (world_size, resume, stops) in [(1, false, true), (3, true, false)] {
        let stops = stops.then_some(0);
        job(world_size, &|_| settings.clone(), again.path(), resume, stops);
    }
    let whole = Checkpoint::find(straight.path()).unwrap();
    for folder in [stopped, again] {
        let found = Checkpoint::find(folder.path()).unwrap();
        assert_eq!(found.manifest.progress.update, UPDATES);
        check_same_state(&found, &whole, "resumed");
    }
}

#[test]
fn what_is_not_finite_stops_all_ranks_of_divided_state() {
    let settings = changed(&["run.sharded=true", "optimizer.lr=1e30", "optimizer.clip_norm=0"]);
    let folder = tempdir().unwrap();
    let (outcomes, _) = job(3, &|_| settings.clone(), folder.path(), false, None);
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("finite"), "{error}");
    }
    let skips = changed(&["run.sharded=true", "optimizer.on_nonfinite=skip"]);
    let (outcomes, _) = job(2, &|_| skips.clone(), &folder.path().join("skips"), false, None);
    assert!(outcomes.into_iter().all(|outcome| outcome.is_err()));
    let shadows = changed(&["run.sharded=true", "run.shadow=[\"e4\"]"]);
    let (outcomes, _) = job(2, &|_| shadows.clone(), &folder.path().join("shadows"), false, None);
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("run.sharded"), "{error}");
    }
}
