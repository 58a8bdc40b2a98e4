//! Saving and loading: the same bits go on, and nothing foreign is taken over.

use std::collections::BTreeMap;

use formats::{Bias, ElementType, Format};
use optimizer::{
    AdamW, BiasChoice, CpuAdamW, Group, Instructions, OnNonfinite, Options, SavedState,
};

use crate::pair::{Setup, group, noise, specs, words};

const TENSORS: [(usize, usize); 4] = [(20_000, 0), (7, 1), (0, 0), (300, 2)];

fn groups() -> Vec<Group> {
    vec![
        Group { bias: BiasChoice::Auto, ..group(Format::E4s) },
        group(Format::Fp32),
        group(Format::Fp16),
    ]
}

fn optimizer() -> CpuAdamW {
    CpuAdamW::new(&specs(&TENSORS), &groups(), Options::default()).unwrap()
}

/// An optimizer after three updates, with its parameters.
fn trained() -> (CpuAdamW, Vec<f32>) {
    let (mut optimizer, mut parameters) = (optimizer(), noise(20_307, 1, 1.0));
    for update in 1..=3 {
        optimizer.set_next_update().unwrap();
        optimizer.step(&mut parameters, &noise(20_307, update, 1e-2)).unwrap();
    }
    (optimizer, parameters)
}

#[test]
fn resuming_continues_with_the_same_bits() {
    let (mut original, mut parameters) = trained();
    let mut resumed = optimizer();
    resumed.load(&original.save().unwrap()).unwrap();
    assert_eq!(resumed.save(), original.save());
    let mut resumed_parameters = parameters.clone();
    for update in 4..=6 {
        let gradients = noise(20_307, update, 1e-2);
        original.set_next_update().unwrap();
        original.step(&mut parameters, &gradients).unwrap();
        resumed.set_next_update().unwrap();
        resumed.step(&mut resumed_parameters, &gradients).unwrap();
        assert_eq!(resumed.report(), original.report());
    }
    assert_eq!(reference::first_difference(&parameters, &resumed_parameters), None);
    assert_eq!(resumed.save(), original.save());
}

#[test]
fn a_bias_not_chosen_yet_stays_so() {
    let setup = Setup { tensors: vec![(5, 0)], groups: groups(), options: Options::default() };
    let mut pair = setup.build(Instructions::best());
    pair.step(1, &vec![0.0; 5]);
    let saved = pair.optimizer.save().unwrap().into_owned();
    assert_eq!(saved.metadata["t0.bias"], "unset");
    pair.optimizer.load(&saved).unwrap();
    pair.step(2, &vec![0.25; 5]);
    assert_eq!(pair.optimizer.save().unwrap().metadata["t0.bias"], "15");
}

#[test]
fn arrays_and_bytes_are_those_of_the_format() {
    let (optimizer, _) = trained();
    let saved = optimizer.save().unwrap();
    let mut expected = Vec::new();
    for (position, (length, group)) in TENSORS.into_iter().enumerate() {
        for section in groups()[group].format.sections(length as u64) {
            expected.push((format!("t{position}.{}", section.name), section.element, vec![length]));
        }
    }
    let found: Vec<_> = saved
        .arrays
        .iter()
        .map(|array| (array.name.clone(), array.element, array.shape.clone()))
        .collect();
    assert_eq!(found, expected);
    let bytes: usize = saved.arrays.iter().map(|array| array.bytes.len()).sum();
    assert_eq!(optimizer.state_bytes(), bytes as u64);
    let by_format =
        TENSORS.map(|(length, group)| groups()[group].format.state_bytes(length as u64));
    assert_eq!(optimizer.state_bytes(), by_format.iter().sum::<u64>());
}

#[test]
fn metadata_says_what_must_match() {
    let (optimizer, _) = trained();
    let metadata = optimizer.save().unwrap().metadata;
    let expect = |key: &str, value: &str| assert_eq!(metadata[key], value, "{key}");
    expect("optimizer.version", "1");
    expect("optimizer.update", "3");
    expect("optimizer.clip_norm", "none");
    expect("optimizer.seed", "0");
    expect("t0.format", "e4s");
    expect("t0.bias_choice", "auto");
    expect("t0.hyperparameters", "beta1 0.9 beta2 0.95 eps 1e-8 weight_decay 0.1");
    expect("t1.format", "fp32");
    assert!(!metadata.contains_key("t1.bias"));
}

#[test]
fn moments_are_those_that_the_next_update_reads() {
    let (optimizer, _) = trained();
    let saved = optimizer.save().unwrap();
    let moments = optimizer.moments(1).unwrap();
    let bits = |numbers: &[f32]| numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&moments.m), words(&saved, "t1.m"));
    assert_eq!(bits(&moments.v), words(&saved, "t1.v"));
    for position in [0, 3] {
        let format = groups()[TENSORS[position].1].format;
        let bias = optimizer.bias(position).unwrap_or_default();
        let moments = optimizer.moments(position).unwrap();
        let [m, r] = format.lanes().unwrap().map(|lane| lane.number);
        for (index, word) in words(&saved, &format!("t{position}.word")).into_iter().enumerate() {
            assert_eq!(moments.m[index], m.decode(word & 0xFFFF, bias));
            assert_eq!(moments.v[index], r.decode(word >> 16, bias).powi(2));
        }
    }
    assert_eq!(optimizer.moments(2).unwrap().m, []);
}

/// Loading `change`d state fails with a message that holds `parts`, and leaves the
/// optimizer as it was.
#[track_caller]
fn refused(change: impl FnOnce(&mut SavedState<'static>), parts: &[&str]) {
    let (mut optimizer, _) = trained();
    let mut saved = optimizer.save().unwrap().into_owned();
    // What is loaded differs, so that a partial load would show.
    for array in &mut saved.arrays {
        array.bytes.to_mut().fill(0x11);
    }
    change(&mut saved);
    let before = optimizer.save().unwrap().into_owned();
    let message = optimizer.load(&saved).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
    assert_eq!(optimizer.save().unwrap(), before);
}

fn set(key: &'static str, value: &'static str) -> impl FnOnce(&mut SavedState<'static>) {
    move |saved| {
        saved.metadata.insert(key.to_owned(), value.to_owned());
    }
}

#[test]
fn other_metadata_is_refused_with_both_values() {
    let cases = [
        ("optimizer.version", "1", "2"),
        ("optimizer.seed", "0", "9"),
        ("optimizer.clip_norm", "none", "1.0"),
        ("optimizer.update", "a number of updates", "many"),
        ("t0.format", "e4s", "e4"),
        ("t0.bias_choice", "auto", "fixed"),
        ("t0.bias", "0 to 40 or unset", "41"),
        ("t1.format", "fp32", "fp16"),
        (
            "t3.hyperparameters",
            "beta1 0.9 beta2 0.95 eps 1e-8 weight_decay 0.1",
            "beta1 0.9 beta2 0.999 eps 1e-8 weight_decay 0.1",
        ),
    ];
    for (key, expected, found) in cases {
        let quoted = [format!("{key} {expected:?}"), format!("found {found:?}")];
        refused(set(key, found), &[&quoted[0], &quoted[1]]);
        refused(
            |saved| {
                saved.metadata.remove(key);
            },
            &[&format!("expected metadata {key:?} to be"), "found none"],
        );
    }
}

#[test]
fn a_fixed_bias_must_be_the_same() {
    let with_bias = |bias: u32| {
        let bias = BiasChoice::Fixed(Bias::new(bias).unwrap());
        let groups = [Group { bias, ..group(Format::E4) }];
        CpuAdamW::new(&specs(&[(3, 0)]), &groups, Options::default()).unwrap()
    };
    let error = with_bias(18).load(&with_bias(20).save().unwrap()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("expected t0.bias \"18\", found \"20\""), "{message}");
}

#[test]
fn other_arrays_are_refused() {
    refused(|saved| drop(saved.arrays.remove(1)), &["\"t1.m\" of 7 f32, found none"]);
    refused(|saved| saved.arrays[0].name = "t9.word".to_owned(), &["\"t0.word\"", "found none"]);
    refused(
        |saved| {
            let mut extra = saved.arrays[0].clone();
            extra.name = "stranger.word".to_owned();
            saved.arrays.push(extra);
        },
        &["found \"stranger.word\" besides"],
    );
    refused(|saved| saved.arrays.push(saved.arrays[0].clone()), &["found \"t0.word\" besides"]);
    refused(
        |saved| saved.arrays[0].shape = vec![19_999],
        &["\"t0.word\": expected u32 of shape [20000]", "found u32 of shape [19999]"],
    );
    refused(|saved| saved.arrays[0].shape = vec![100, 200], &["of shape [100, 200]"]);
    refused(
        |saved| saved.arrays[0].element = ElementType::F32,
        &["expected u32 of shape [20000], found f32"],
    );
    refused(
        |saved| saved.arrays[0].bytes.to_mut().truncate(79_999),
        &["\"t0.word\": expected 80000 bytes, found 79999"],
    );
}

#[test]
fn elements_that_cannot_have_been_stored_are_refused() {
    let put = |array: usize, index: usize, word: u32| {
        move |saved: &mut SavedState<'static>| {
            let bytes = saved.arrays[array].bytes.to_mut();
            bytes[index * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
    };
    let nan = f32::NAN.to_bits();
    refused(put(1, 6, nan), &["\"t1.m\" element 6: expected a finite number, found NaN"]);
    refused(put(2, 0, (-1f32).to_bits()), &["\"t1.v\" element 0", "not negative, found -1e0"]);
    refused(put(2, 3, f32::INFINITY.to_bits()), &["\"t1.v\" element 3", "found inf"]);
    refused(put(4, 299, 0x7C00), &["\"t3.word\" element 299", "found 0x00007c00"]);
}

#[test]
fn the_answer_to_nonfinite_elements_may_change() {
    let (optimizer, _) = trained();
    let options = Options { on_nonfinite: OnNonfinite::Skip, ..Options::default() };
    let mut other = CpuAdamW::new(&specs(&TENSORS), &groups(), options).unwrap();
    other.load(&optimizer.save().unwrap()).unwrap();
    assert_eq!(other.save(), optimizer.save());
}

#[test]
fn a_step_must_wait_for_the_next_update() {
    let (mut optimizer, mut parameters) = trained();
    let saved = optimizer.save().unwrap().into_owned();
    optimizer.load(&saved).unwrap();
    let gradients = vec![0.0; 20_307];
    assert!(optimizer.step(&mut parameters, &gradients).is_err());
    assert!(optimizer.report().is_err());
    optimizer.set_next_update().unwrap();
    optimizer.step(&mut parameters, &gradients).unwrap();
    assert_eq!(optimizer.report().unwrap().update, 4);
}

#[test]
fn empty_metadata_names_the_first_entry_missing() {
    let (mut optimizer, _) = trained();
    let empty = SavedState { arrays: Vec::new(), metadata: BTreeMap::new() };
    let message = optimizer.load(&empty).unwrap_err().to_string();
    assert!(message.contains("expected metadata"), "{message}");
}

#[test]
fn moments_move_between_formats() {
    let texts = ["fp32", "e4:", "block8:min=0", "ustate1q:min=0", "n4l4:min=0"];
    let with = |text: &str| {
        let format: Format = text.trim_end_matches(':').parse().unwrap();
        CpuAdamW::new(&specs(&[(1000, 0)]), &[group(format)], Options::default()).unwrap()
    };
    let mut exact = with("fp32");
    let mut parameters = vec![0.0; 1000];
    for update in 1..=20 {
        exact.set_next_update().unwrap();
        let gradients = noise(1000, update, 1.0);
        exact.step(&mut parameters, &gradients.iter().map(|g| g * g * g).collect()).unwrap();
    }
    let source = exact.moments(0).unwrap();
    let largest = source.m.iter().fold(0f32, |largest, m| largest.max(m.abs()));
    for (text, bound) in texts.into_iter().zip([0.0, 1e-3, 0.02, 1.0, 0.3]) {
        let mut other = with(text);
        other.set_moments(0, 20, &source).unwrap();
        let found = other.moments(0).unwrap();
        let error = |(a, b): (&f32, &f32)| (a - b).abs();
        let worst = found.m.iter().zip(&source.m).map(error).fold(0f32, f32::max);
        assert!(worst <= bound * largest, "{text}: {worst} beside {largest}");
        // It goes on as if it had stored them itself.
        other.set_next_update().unwrap();
        other.step(&mut parameters.clone(), &vec![1e-3; 1000]).unwrap();
        assert_eq!(other.report().unwrap().update, 21);
    }
    let short = optimizer::DecodedMoments { m: vec![0.0; 999], v: vec![0.0; 1000] };
    assert!(with("n4l4").set_moments(0, 1, &short).is_err());
}
