//! Events for TensorBoard, read by its own reader where there is one, and by one of ours everywhere.

use std::path::Path;
use std::process::Command;

use tempfile::tempdir;
use trainer::events::Event;

use crate::tiny::{resume, settings, stop_at, train};

const FILE: &str = "tensorboard/events.out.tfevents.0.packed-adamw";

/// The data of each record, without looking at checksums.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        records.push(&rest[12..12 + length]);
        rest = &rest[16 + length..];
    }
    records
}

#[test]
fn a_run_has_a_record_for_every_update_and_validation_also_after_a_resume() {
    let straight = tempdir().unwrap();
    let settings = settings(&["run.tensorboard=true"]);
    train(&settings, straight.path()).unwrap();
    let bytes = std::fs::read(straight.path().join(FILE)).unwrap();
    // The version; 12 updates; validations after 0, 4, 8 and 12; the final one.
    let count = records(&bytes).len();
    assert_eq!(count, 1 + 12 + 4 + 1);
    let tags = String::from_utf8_lossy(&bytes).into_owned();
    for tag in ["train/bpb", "validation/loss_nats", "final_validation/bpb", "events/saturated_m"] {
        assert!(tags.contains(tag), "{tag}");
    }

    let folder = tempdir().unwrap();
    stop_at(
        &settings,
        folder.path(),
        false,
        |event| matches!(event, Event::Update(update) if update.update == 7),
    )
    .unwrap();
    resume(&settings, folder.path()).unwrap();
    assert_eq!(records(&std::fs::read(folder.path().join(FILE)).unwrap()).len(), count);
    if !is_read_by_tensorboard(folder.path()) {
        eprintln!("skipped: Python has no tensorboard here");
    }
}

/// Has TensorBoard's reader, which holds the checksums against the data, read the file; false where it is not there.
fn is_read_by_tensorboard(folder: &Path) -> bool {
    let script = "import sys\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        a = EventAccumulator(sys.argv[1]); a.Reload()\n\
        loss = a.Scalars('train/loss_nats')\n\
        assert [e.step for e in loss] == list(range(1, 13)), loss\n\
        assert [e.step for e in a.Scalars('validation/bpb')] == [0, 4, 8, 12]\n\
        assert all(0 < e.value < 10 for e in loss)";
    let python = |script: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(folder.join("tensorboard")).output().ok()
    };
    match python("import tensorboard") {
        Some(output) if output.status.success() => {
            let output = python(script).unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            true
        }
        _ => false,
    }
}
