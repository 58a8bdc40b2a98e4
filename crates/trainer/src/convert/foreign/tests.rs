//! States that the packages themselves left, decoded; and files that lie.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use model::{Role, Slot};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

use super::read;

/// An entry as it is written: type, shape, bytes.
type Entry = (Dtype, Vec<usize>, Vec<u8>);

/// What a package left, and what it decodes that to.
struct Case {
    name: String,
    entries: BTreeMap<String, Entry>,
    m: Vec<f64>,
    v: Vec<f64>,
}

fn golden() -> (usize, Vec<Case>, Slot) {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let text = fs::read_to_string(root.join("tests/it/golden/foreign_states.json"));
    let golden: Value = serde_json::from_str(&text.expect("a golden file")).expect("JSON");
    let number = |key: &str| golden[key].as_u64().expect("a number") as usize;
    let cases = golden["cases"].as_object().expect("cases");
    let slot = Slot {
        name: "w".into(),
        shape: vec![number("length") / 64, 64],
        offset: 0,
        length: number("length"),
        role: Role::Weight,
    };
    (number("stride"), cases.iter().map(|(name, case)| of_case(name, case)).collect(), slot)
}

fn of_case(name: &str, case: &Value) -> Case {
    let numbers = |key: &str| {
        let numbers = case[key].as_array().expect("numbers");
        numbers.iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    let entry = |(name, entry): (&String, &Value)| {
        let hex = entry["hex"].as_str().expect("hex");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        let shape = entry["shape"].as_array().expect("a shape");
        let shape = shape.iter().map(|size| size.as_u64().expect("a size") as usize).collect();
        (name.clone(), (dtype(entry["dtype"].as_str().expect("a type")), shape, bytes))
    };
    let entries = case["entries"].as_object().expect("entries").iter().map(entry).collect();
    Case { name: name.into(), entries, m: numbers("m"), v: numbers("v") }
}

fn dtype(name: &str) -> Dtype {
    serde_json::from_value(Value::String(name.into())).expect("a type of safetensors")
}

/// What comes of a file with these entries.
fn decoded(
    entries: &BTreeMap<String, Entry>,
    slot: &Slot,
    update: u64,
) -> Result<super::Foreign, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("moments.safetensors");
    let views = entries.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("bytes fill the shape"))
    });
    let bytes = safetensors::serialize(views, None).expect("they are tensors");
    fs::write(&file, bytes).expect("a file");
    read(&file, std::slice::from_ref(slot), update).map_err(|error| {
        let text = error.to_string();
        text.split_once(": ").map_or(text.clone(), |(_, rest)| rest.to_owned())
    })
}

#[test]
fn states_of_other_packages_decode_as_they_do() {
    let (stride, cases, slot) = golden();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let found = decoded(&case.entries, &slot, 3).unwrap_or_else(|error| panic!("{error}"));
        assert!(case.name.starts_with(&found.kind), "{} {}", case.name, found.kind);
        let [moments] = &found.moments[..] else { panic!("one tensor") };
        for (what, found, expected) in [("m", &moments.m, &case.m), ("v", &moments.v, &case.v)] {
            assert_eq!(found.len(), slot.length);
            let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            for (found, expected) in found.iter().step_by(stride).zip(expected) {
                // An exponential and a few products of f32; only what nearly cancels is off by more.
                let close = 2e-6 * expected.abs() + 1e-7 * largest;
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= close, "{} {what}: {found} {expected}", case.name);
            }
        }
    }
}

#[test]
fn what_is_missing_or_of_another_size_is_named() {
    let (_, cases, slot) = golden();
    for case in &cases {
        let name = &case.name;
        // Every entry that is needed, away, cut short or of another type.
        let is_unused = |entry: &str| {
            ["encode_step", "accumulator", "original", "step_factor"]
                .iter()
                .any(|x| entry.contains(x))
                || (["eps", "beta"].iter().any(|x| entry.contains(x)) && !name.starts_with("turbo"))
        };
        for entry in case.entries.keys().filter(|entry| !is_unused(entry)) {
            let mut entries = case.entries.clone();
            entries.remove(entry);
            let error = decoded(&entries, &slot, 3).err().unwrap_or_else(|| panic!("{entry}"));
            assert!(error.starts_with("expected `w."), "{name} {entry}: {error}");

            let mut entries = case.entries.clone();
            let (_, shape, bytes) = entries.get_mut(entry).expect("an entry");
            let size = bytes.len() / shape.iter().product::<usize>().max(1);
            bytes.extend_from_slice(&vec![0; size]);
            *shape = vec![bytes.len() / size];
            let expected = if shape[0] == 2 { "found" } else { "elements" };
            let error = decoded(&entries, &slot, 3).err().unwrap_or_else(|| panic!("{entry}"));
            assert!(error.contains(expected) || error.contains("map"), "{name} {entry}: {error}");

            let mut entries = case.entries.clone();
            entries.get_mut(entry).expect("an entry").0 = dtype_of_same_size(case.entries[entry].0);
            if let Ok(found) = decoded(&entries, &slot, 3) {
                // Codes of other 8 bits would be read as such.
                panic!("{name} {entry}: read as {}", found.kind);
            }
        }
    }
}

fn dtype_of_same_size(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::U8 | Dtype::F8_E4M3 => Dtype::I8,
        Dtype::F16 | Dtype::BF16 => Dtype::I16,
        Dtype::F32 => Dtype::I32,
        _ => Dtype::U64,
    }
}

#[test]
fn numbers_that_no_update_leaves_are_refused() {
    let (_, cases, slot) = golden();
    let case = |name: &str| {
        cases.iter().find(|case| case.name == name).map(|case| case.entries.clone()).expect(name)
    };
    let put = |entries: &mut BTreeMap<String, Entry>, entry: &str, at: usize, bytes: &[u8]| {
        let own = &mut entries.get_mut(entry).expect("an entry").2;
        own[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let mut entries = case("torch");
    put(&mut entries, "w.exp_avg", 8, &f32::NAN.to_le_bytes());
    let error = decoded(&entries, &slot, 3).err().expect("not finite");
    assert_eq!(error, "expected `w.first moment`: finite numbers, found NaN at element 2");
    let mut entries = case("torch");
    put(&mut entries, "w.exp_avg_sq", 4, &(-1.0f32).to_le_bytes());
    let error = decoded(&entries, &slot, 3).err().expect("negative");
    assert!(error.contains("not negative, found -1e0 at element 1"), "{error}");
    let mut entries = case("torchao fp8");
    put(&mut entries, "w.exp_avg.codes", 5, &[0x7F]);
    assert!(decoded(&entries, &slot, 3).is_err(), "NaN is a code of E4M3");
    let mut entries = case("turboadam");
    put(&mut entries, "w.v_state.n_bits", 0, &5i64.to_le_bytes());
    let error = decoded(&entries, &slot, 3).err().expect("no bits of ours");
    assert_eq!(error, "expected `w.v_state.n_bits`: one of [2, 3, 4, 6, 8], found 5");
    for size in [0, -1, 3, i64::MAX] {
        let mut entries = case("turboadam");
        put(&mut entries, "w.ustate.mean_block_size", 0, &size.to_le_bytes());
        assert!(decoded(&entries, &slot, 3).is_err(), "{size}");
    }
    let error = decoded(&case("torch"), &slot, 4).err().expect("other updates");
    assert_eq!(error, "expected `w.step`: 4 updates, those of the checkpoint, found 3");
    let error =
        decoded(&BTreeMap::from([("x".to_owned(), (Dtype::U8, vec![1], vec![0]))]), &slot, 3);
    assert!(error.err().expect("nothing").contains("`w.step`: an entry of that name, found none"));
}
