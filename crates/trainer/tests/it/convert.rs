//! States of a run in other formats, and runs that go on with them.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;
use trainer::events::Event;
use trainer::{Conversion, Converted, Ending, Error, convert};

use crate::resume::FORMATS;
use crate::tiny::{UPDATES, checkpoint_files, resume, settings, stop_at, train};

/// Where the run is when its state is converted.
const HALF: u64 = 6;

/// A run in `format` that has stopped half way.
fn stopped(format: &str, folder: &Path) {
    let settings = settings(&[&format!("optimizer.state={format}")]);
    let half = |event: &Event| matches!(event, Event::Update(update) if update.update == HALF);
    match stop_at(&settings, folder, false, half).unwrap() {
        Ending::Stopped { update } => assert_eq!(update, HALF),
        Ending::Finished(_) => panic!("it was to stop"),
    }
}

fn converted(run: &Path, format: &str, output: Option<&Path>) -> Result<Converted, Error> {
    let changes = [format!("optimizer.state={format}")];
    convert(&Conversion { run, moments: None, changes: &changes, output })
}

#[test]
fn a_run_goes_on_in_any_other_format() {
    let source = tempdir().unwrap();
    stopped("fp32", source.path());
    for format in FORMATS {
        let folder = tempdir().unwrap();
        let output = folder.path().join("run");
        let report = converted(source.path(), format, Some(&output)).unwrap();
        assert_eq!((report.from.as_str(), report.update), ("fp32", HALF));
        assert_eq!(report.to.split(':').next(), format.split(':').next());
        let bound = match format {
            "fp32" => 0.0,
            "fp16" | "e4" | "e4s" => 1e-2,
            "block8:min=0" => 0.05,
            _ => 1.0,
        };
        let all = report.all;
        assert!(
            all.first <= bound && all.rms <= bound && all.direction <= 2.0 * bound,
            "{format} {all:?}"
        );
        assert!(format == "fp32" || all.first > 0.0);
        let elements: u64 = report.roles.iter().map(|(_, own)| own.elements).sum();
        assert_eq!(elements, all.elements);
        // Parameters stay byte for byte; nothing but the state and what says of it changes.
        let (before, after) =
            (checkpoint_files(source.path(), HALF), checkpoint_files(&output, HALF));
        for file in ["parameters.safetensors", "tokenizer.json"] {
            assert_eq!(before[file], after[file], "{file}");
        }
        let settings = settings(&[&format!("optimizer.state={format}")]);
        let summary = resume(&settings, &output).unwrap();
        assert_eq!(summary.updates, UPDATES);
        let straight = tempdir().unwrap();
        let expected = train(&settings, straight.path()).unwrap().validation_loss_nats;
        let found = summary.validation_loss_nats;
        assert!((found - expected).abs() < 0.05 * expected, "{format}: {found} {expected}");
    }
}

#[test]
fn there_and_back_again_in_a_wider_format_changes_no_bit() {
    for format in ["e4", "fp16"] {
        let source = tempdir().unwrap();
        stopped(format, source.path());
        let (there, back) = (tempdir().unwrap(), tempdir().unwrap());
        let (there, back) = (there.path().join("run"), back.path().join("run"));
        let report = converted(source.path(), "fp32", Some(&there)).unwrap();
        // A root of the square of a code is that code, or one so near that it rounds to it.
        assert!(report.all.first == 0.0 && report.all.rms == 0.0, "{:?}", report.all);
        converted(&there, format, Some(&back)).unwrap();
        assert_eq!(
            checkpoint_files(source.path(), HALF),
            checkpoint_files(&back, HALF),
            "{format}"
        );
        let settings = settings(&[&format!("optimizer.state={format}")]);
        resume(&settings, &back).unwrap();
        resume(&settings, source.path()).unwrap();
        let end = |folder: &Path| checkpoint_files(folder, UPDATES);
        assert_eq!(end(&back), end(source.path()), "{format}");
    }
}

/// A safetensors file of f32 tensors.
fn write(file: &Path, tensors: &[(String, Vec<f32>)]) {
    let (mut header, mut body) = (serde_json::Map::new(), Vec::new());
    for (name, numbers) in tensors {
        let start = body.len();
        body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": [numbers.len()], "data_offsets": [start, body.len()],
        });
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(file, [&length[..], header.as_bytes(), &body].concat()).unwrap();
}

#[test]
fn moments_of_another_optimizer_take_the_place_of_the_own() {
    let source = tempdir().unwrap();
    stopped("e4", source.path());
    let manifest =
        source.path().join(format!("checkpoints/update-{HALF:08}/optimizer.safetensors"));
    let bytes = fs::read(manifest).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut tensors = Vec::new();
    for (name, entry) in
        header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__")
    {
        let name = name.strip_suffix(".word").unwrap();
        let count = entry["shape"][0].as_u64().unwrap() as usize;
        tensors.push((format!("{name}.exp_avg"), vec![0.25; count]));
        tensors.push((format!("{name}.exp_avg_sq"), vec![0.0625; count]));
        tensors.push((format!("{name}.step"), vec![HALF as f32]));
    }
    let file = source.path().join("moments.safetensors");
    write(&file, &tensors);
    let output = source.path().join("taken");
    let conversion =
        |output| Conversion { run: source.path(), moments: Some(&file), changes: &[], output };
    let report = convert(&conversion(Some(&output))).unwrap();
    assert_eq!((report.from.as_str(), report.to.as_str()), ("torch", "e4"));
    // Both are codes of e4.
    assert_eq!((report.all.first, report.all.rms), (0.0, 0.0));
    assert_eq!(report.bytes_before, None);
    resume(&settings(&["optimizer.state=e4"]), &output).unwrap();

    tensors[0].1.pop();
    write(&file, &tensors);
    let error = convert(&conversion(None)).unwrap_err().to_string();
    assert!(error.contains(".exp_avg`: ") && error.contains("elements, found"), "{error}");
}

#[test]
fn what_cannot_be_converted_is_said() {
    let source = tempdir().unwrap();
    stopped("e4", source.path());
    let error = |run: &Path, change: &str, output: Option<&Path>| {
        let changes = [change.to_owned()];
        convert(&Conversion { run, moments: None, changes: &changes, output })
            .unwrap_err()
            .to_string()
    };
    let found = error(source.path(), "optimizer.lr=1", None);
    assert!(found.contains("optimizer.state, optimizer.bias"), "{found}");
    let found = error(source.path(), "optimizer.state=e5", None);
    assert!(found.contains("e5"), "{found}");
    let found = error(source.path(), "optimizer.state=fp32", Some(source.path()));
    assert!(found.contains("holds a run already"), "{found}");
    let empty = tempdir().unwrap();
    assert!(
        convert(&Conversion { run: empty.path(), moments: None, changes: &[], output: None })
            .is_err()
    );
}
