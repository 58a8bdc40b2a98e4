//! Whole runs on CUDA, on a GPU or on the emulated device: what holds bit for bit, and how near they are to
//! the same run on the CPU.

use std::sync::Arc;

use gpu_kernels::{Nccl, Precision, Products, nccl};
use model::Cuda;
use tempfile::tempdir;
use trainer::events::Event;
use trainer::shadow;
use trainer::{Device, Distances, Ending, Trained};

use crate::emulator::device;
use crate::resume::FORMATS;
use crate::shuffled::Tapes;
use crate::tiny::{UPDATES, checkpoint_files, resume_on, settings, stop_on, train, train_on};

/// A device to train on; without a GPU there is no cuBLASLt to call.
fn gpu(precision: Precision) -> Option<Device> {
    let device = device()?;
    let gpu = device.gpu();
    let products = if device.is_emulated {
        Products::without_library(precision)
    } else {
        Products::new(&gpu, precision)
    };
    Some(Device::Cuda(Cuda::with_products(&gpu, products).unwrap()))
}

/// Every format and precision on a GPU; on the emulated device, where a run takes its time, every format
/// once.
fn formats_and_precisions() -> Vec<(&'static str, Precision)> {
    let is_emulated = device().is_some_and(|device| device.is_emulated);
    let every = FORMATS.into_iter().enumerate().flat_map(|(index, format)| {
        let precisions =
            if is_emulated { vec![Precision::ALL[index % 3]] } else { Precision::ALL.to_vec() };
        precisions.into_iter().map(move |precision| (format, precision))
    });
    every.collect()
}

#[test]
fn an_interrupted_run_has_the_bytes_of_one_that_was_not() {
    for (format, precision) in formats_and_precisions() {
        let Some(device) = gpu(precision) else { return };
        let format = format!("optimizer.state={format}");
        let settings = settings(&[&format, "optimizer.bias=auto", "run.accumulation=1"]);
        let straight = tempdir().unwrap();
        let summary = train_on(&device, &settings, straight.path()).unwrap();
        assert_eq!(summary.precision, precision.name());
        let expected = checkpoint_files(straight.path(), UPDATES);

        let again = tempdir().unwrap();
        train_on(&device, &settings, again.path()).unwrap();
        assert_eq!(checkpoint_files(again.path(), UPDATES), expected, "{format}: a second run");

        let broken = tempdir().unwrap();
        let when =
            |event: &Event| matches!(event, Event::Update(update) if update.update == UPDATES / 2);
        let stopped = stop_on(&device, &settings, broken.path(), false, when).unwrap();
        assert!(matches!(stopped, Ending::Stopped { update } if update < UPDATES), "{stopped:?}");
        let resumed = resume_on(&device, &settings, broken.path()).unwrap();
        assert_eq!(checkpoint_files(broken.path(), UPDATES), expected, "{format}: resumed");
        assert_eq!(resumed.validation_loss_nats, summary.validation_loss_nats);
        assert_eq!(resumed.sample, summary.sample);
    }
}

/// A model in the middle of its training, not one that was just drawn: the distances that are promised.
#[test]
fn a_pass_over_trained_weights_is_near_to_f64() {
    let trained = Trained::new().unwrap();
    for precision in Precision::ALL {
        let Some(device) = gpu(precision) else { return };
        let found = trained.distances(&device).unwrap();
        assert!(found.are_within(&Distances::bounds(precision)), "{precision}: {found:?}");
    }
}

/// More windows than one schedule has, out of ranges in a shuffled order, over epochs.
#[test]
fn shuffled_windows_on_a_device_are_those_of_the_processor() {
    let Some(device) = gpu(Precision::Fp32) else { return };
    let tapes = Tapes::new();
    let settings = tapes.mixture();
    let (ours, theirs) = (tempdir().unwrap(), tempdir().unwrap());
    train_on(&device, &settings, ours.path()).unwrap();
    train(&settings, theirs.path()).unwrap();
    let facts = |folder: &std::path::Path| -> Vec<(u64, Option<u64>, f64)> {
        let events = trainer::metrics::read(&folder.join("metrics.jsonl")).unwrap();
        let fact = |event: &Event| match event {
            Event::Update(update) => Some((update.tokens, update.source_bytes, update.loss_nats)),
            _ => None,
        };
        events.iter().filter_map(fact).collect()
    };
    let (ours, theirs) = (facts(ours.path()), facts(theirs.path()));
    assert_eq!(ours.len() as u64, UPDATES);
    for ((tokens, bytes, nats), theirs) in ours.into_iter().zip(theirs) {
        assert_eq!((tokens, bytes), (theirs.0, theirs.1));
        assert!((nats / theirs.2 - 1.0).abs() < 1e-4, "{nats} {}", theirs.2);
    }
}

#[test]
fn a_run_in_f32_is_near_to_that_on_the_cpu() {
    let Some(device) = gpu(Precision::Fp32) else { return };
    let settings = settings(&["optimizer.state=fp32"]);
    let (ours, theirs) = (tempdir().unwrap(), tempdir().unwrap());
    train_on(&device, &settings, ours.path()).unwrap();
    train(&settings, theirs.path()).unwrap();
    let losses = |folder: &std::path::Path| -> Vec<f64> {
        let events = trainer::metrics::read(&folder.join("metrics.jsonl")).unwrap();
        let loss = |event: &Event| match event {
            Event::Update(update) => Some(update.loss_nats),
            _ => None,
        };
        events.iter().filter_map(loss).collect()
    };
    let (ours, theirs) = (losses(ours.path()), losses(theirs.path()));
    assert_eq!(ours.len() as u64, UPDATES);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // Sums in another order, a few dozen of them after one another, and a dozen updates.
        assert!((ours / theirs - 1.0).abs() < 1e-4, "{ours} {theirs}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_a_run_whose_checkpoint_stays_whole() {
    let Some(device) = gpu(Precision::Bf16) else { return };
    let folder = tempdir().unwrap();
    let wild = [
        "optimizer.lr=1e30",
        "optimizer.state=fp32",
        "run.checkpoint_every=1",
        "run.validate_every=0",
        "schedule.warmup=0",
        "optimizer.clip_norm=0",
    ];
    let error = train_on(&device, &settings(&wild), folder.path()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("update ") && text.contains("of the tape"), "{text}");
    assert!(text.contains("replay RUN --update"), "{text}");
    trainer::Restored::open(folder.path()).unwrap();
}

/// Updates that are recorded together find what updates one by one find, and nothing comes behind one that was
/// dropped: those that have shadows come one by one.
#[test]
fn a_value_that_is_not_finite_is_found_in_the_midst_of_updates_recorded_together() {
    let Some(device) = gpu(Precision::Bf16) else { return };
    let wild = [
        "optimizer.lr=3e8",
        "optimizer.state=fp32",
        "run.checkpoint_every=0",
        "run.validate_every=0",
        "run.accumulation=1",
        "schedule.warmup=0",
        "optimizer.clip_norm=0",
    ];
    let fails = |more: &[&str]| {
        let folder = tempdir().unwrap();
        let settings = settings(&[&wild[..], more].concat());
        let error = train_on(&device, &settings, folder.path()).unwrap_err();
        let events = trainer::metrics::read(&folder.path().join("metrics.jsonl")).unwrap();
        let is_update = |event: &&Event| matches!(event, Event::Update(_));
        (error.to_string(), events.iter().filter(is_update).count())
    };
    let (text, updates) = fails(&[]);
    assert!((1..8).contains(&updates), "{text}");
    assert_eq!((text, updates), fails(&["run.shadow=[\"fp16\"]"]));
}

/// Shadows live on the processor; they are fed what the device computed, and change nothing of it.
#[test]
fn shadows_are_fed_the_gradients_of_a_device() {
    let Some(device) = gpu(Precision::Fp32) else { return };
    let plain = ["optimizer.state=fp32", "run.accumulation=1"];
    let shadow = ["run.shadow=[\"fp32\", \"e4\"]", "run.shadow_measure_every=6"];
    let shadowed = settings(&[&plain[..], &shadow].concat());
    let (folder, without, on_cpu) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    train_on(&device, &shadowed, folder.path()).unwrap();
    train_on(&device, &settings(&plain), without.path()).unwrap();
    let files = |folder: &tempfile::TempDir| checkpoint_files(folder.path(), UPDATES);
    assert_eq!(files(&folder), files(&without));

    train(&shadowed, on_cpu.path()).unwrap();
    let rows =
        |folder: &tempfile::TempDir| shadow::read(&folder.path().join("shadow.jsonl")).unwrap();
    let (found, expected) = (rows(&folder), rows(&on_cpu));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((found.update, &found.role), (expected.update, &expected.role));
        if found.format == "fp32" {
            assert_eq!(found.direction_error, 0.0, "{found:?}");
        } else if found.role == shadow::ALL {
            // The gradients differ by rounding, so sums over all errors of rounding moments are nearly the same.
            // Steps are not compared: a few elements, whose RMS is nearly 0, make up most of theirs.
            for (found, expected) in
                [(found.m_error, expected.m_error), (found.r_error, expected.r_error)]
            {
                assert!((0.9..1.1).contains(&(found / expected)), "{found} {expected}");
            }
        }
    }
}

/// One micro-batch is what it is; the order of more is another one than that in which they are accumulated, and the same at
/// every run.
#[test]
fn micro_batches_are_added_as_a_tree_where_they_are() {
    let Some(device) = gpu(Precision::Fp32) else { return };
    let files = |count: usize, reduction: &str| {
        let settings = settings(&[
            "run.batch=1",
            &format!("run.accumulation={count}"),
            &format!("run.reduction={reduction}"),
        ]);
        let folder = tempdir().unwrap();
        train_on(&device, &settings, folder.path()).unwrap();
        let mut files = checkpoint_files(folder.path(), UPDATES);
        // It names the way.
        files.remove("manifest.json");
        files
    };
    assert!(files(1, "fixed") == files(1, "fast"));
    let four = files(4, "fixed");
    assert!(four != files(4, "fast"));
    assert!(four == files(4, "fixed"));
}

/// The way of several ranks, with one: pieces of gradients, losses and the wish to stop go through NCCL and the hosts, and
/// no byte changes.
#[test]
fn one_rank_of_nccl_has_the_bytes_of_none() {
    let is_emulated = device().is_none_or(|device| device.is_emulated);
    if is_emulated || nccl::is_there().is_err() {
        return;
    }
    let ways = [(Precision::Fp32, "fast"), (Precision::Bf16, "fast"), (Precision::Bf16, "fixed")];
    for (precision, reduction) in ways {
        let Some(device) = gpu(precision) else { return };
        let Device::Cuda(cuda) = &device else { unreachable!("it is a CUDA device") };
        let reduction = format!("run.reduction={reduction}");
        let settings = settings(&["run.accumulation=2", &reduction]);
        let (alone, among) = (tempdir().unwrap(), tempdir().unwrap());
        train_on(&device, &settings, alone.path()).unwrap();
        let ranks = Nccl::join(cuda.gpu(), nccl::unique_id().unwrap(), 0, 1).unwrap();
        cuda.set_ranks(Some(Arc::new(ranks))).unwrap();
        train_on(&device, &settings, among.path()).unwrap();
        cuda.set_ranks(None).unwrap();
        let files = |folder: &std::path::Path| checkpoint_files(folder, UPDATES);
        assert!(files(alone.path()) == files(among.path()), "{precision} {reduction}");
        let events = trainer::metrics::read(&among.path().join("metrics.jsonl")).unwrap();
        let times = events.iter().filter_map(|event| match event {
            Event::Update(update) => Some(update.rank_ms[..].to_vec()),
            _ => None,
        });
        for times in times {
            assert!(matches!(times[..], [ms] if ms > 0.0 && ms < 60_000.0), "{times:?}");
        }
    }
}
