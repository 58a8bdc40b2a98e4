//! The update against the authority, bit for bit: formats, kinds, lengths, places, inputs.

use formats::{Format, Fp16Word, RandomStream};
use gpu_kernels::{FusedAdamW, GradientType, Kind, ParameterType, Shape};
use reference::Hyperparameters;

use crate::emulator::device;
use crate::pair::{GroupSpec, Setup, noise};

/// Lengths around the widths of accesses, blocks and chunks.
const LENGTHS: [usize; 26] = [
    0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100, 255, 511, 512, 513, 1023, 1024, 1025, 1027, 2048, 4099,
    16_383, 16_384, 16_385, 33_000,
];

#[track_caller]
fn check(setup: &Setup, updates: u64, largest: f32) {
    let Some(device) = device() else { return };
    let mut pair = setup.build(&device.gpu());
    for update in 1..=updates {
        pair.step(update, &noise(setup.elements(), update, largest));
    }
}

#[test]
fn every_format_and_length() {
    for format in Kind::FORMATS {
        check(&Setup::of(format, &LENGTHS), 4, 1e-1);
        // Alone, and so at a border of a wide access.
        for length in [1, 3, 1024, 2051] {
            check(&Setup::of(format, &[length]), 2, 1e-1);
        }
    }
}

/// Formats of blocks with options, for tensors of any length.
const OPTIONS: [&str; 16] = [
    "block8:min=0",
    "block8:block=64,min=0",
    "block8:block=4096,min=0",
    "block8-original:block=2048,min=0",
    "ustate1q:min=0",
    "ustate1q:min=0,v_bits=2",
    "ustate1q:min=0,v_bits=3",
    "ustate1q:min=0,v_bits=6,block=32,mean_block=16",
    "ustate1q:min=0,v_bits=8,block=256,mean_block=128",
    "ustate1q:min=0,block=1024,mean_block=256",
    "ustate1q:min=0,halves=m",
    "ustate1q:min=0,halves=v",
    "ustate1q-original:min=0",
    "ustate1q-original:min=0,v_bits=3",
    "n4l4:min=0",
    "n4l4:min=0,m_block=16,v_block=32,m_rounding=nearest",
];

#[test]
fn some_tiles_of_a_block_have_the_bits_of_one() {
    for text in ["block8:min=0", "block8:block=2048,min=0", "ustate1q:min=0", "n4l4:min=0"] {
        for (threads, tiles) in [(256, 4), (512, 2)] {
            let mut setup = Setup::of(text.parse().unwrap(), &[20_000, 5, 8192, 33_000]);
            setup.options.shape = Shape { threads, tiles: Some(tiles), ..Shape::default() };
            check(&setup, 3, 1e-1);
        }
    }
}

#[test]
fn every_option_of_formats_of_blocks() {
    for text in OPTIONS {
        let mut setup = Setup::of(text.parse().unwrap(), &LENGTHS);
        check(&setup, 4, 1e-1);
        // With parameters in halves and short gradients, dead coordinates and bad numbers.
        let kind = &mut setup.groups[0].kind;
        (kind.parameters, kind.gradients) = (ParameterType::Split, GradientType::Bf16);
        let Some(device) = device() else { return };
        let mut pair = setup.build(&device.gpu());
        for update in 1..=4 {
            let mut gradients = noise(setup.elements(), update, 1e-2);
            gradients.iter_mut().step_by(3).for_each(|g| *g = 0.0);
            gradients[20_000..21_000].fill(0.0);
            if update == 3 {
                gradients[30_001] = f32::NAN;
            }
            pair.step(update, &gradients);
        }
    }
}

#[test]
fn all_kinds_in_one_model_wherever_they_lie() {
    let hyperparameters = |position: usize| Hyperparameters {
        learning_rate: 1e-2 / (position + 1) as f64,
        beta1: [0.9, 0.0][position % 2],
        beta2: [0.95, 0.999, 0.9][position % 3],
        eps: [1e-8, 1e-3][position % 2],
        weight_decay: [0.1, 0.0][position / 2 % 2],
    };
    let groups = Kind::all().enumerate().map(|(position, kind)| {
        let bias = [Some(16), None, Some(40), Some(0)][position % 4];
        GroupSpec { kind, hyperparameters: hyperparameters(position), bias }
    });
    let groups: Vec<GroupSpec> = groups.collect();
    let tensors: Vec<_> = (0..48).map(|i| ([1500, 5, 2048, 0, 37][i % 5], i % 28)).collect();
    let mut setup = Setup { tensors, groups, seed: 77, ..Setup::of(Format::E4, &[]) };
    // At borders; all equally off them; each array off by itself.
    let shifts: [fn(usize, usize) -> usize; 3] =
        [|_, _| 0, |tensor, _| tensor % 4, |tensor, array| (tensor * 7 + array * 3) % 5];
    for shifts in shifts {
        for clip_norm in [None, Some(0.5)] {
            setup.shifts = Some(shifts);
            setup.options.clip_norm = clip_norm;
            check(&setup, 4, 1e-1);
        }
    }
}

#[test]
fn one_kind_one_after_the_other() {
    for kind in Kind::all() {
        let mut setup = Setup::of(kind.format, &[2050, 7, 1024, 333]);
        setup.groups[0].kind = kind;
        check(&setup, 3, 1e-1);
    }
}

#[test]
fn every_bias_and_gradients_that_saturate() {
    let Some(device) = device() else { return };
    for format in [Format::E4, Format::E4s] {
        for bias in (0..=40).step_by(device.size(1, 8)) {
            let mut setup = Setup::of(format, &[2048, 777]);
            setup.groups[0].bias = Some(bias as u32);
            let mut pair = setup.build(&device.gpu());
            let mut saturated = 0;
            for (update, largest) in (1..).zip([1.0, 1e-6, 1e6, 1e-3]) {
                let outcome = pair.step(update, &noise(setup.elements(), update, largest));
                saturated += outcome.saturated_m.min(outcome.saturated_r);
            }
            assert!(saturated > 0);
        }
    }
}

#[test]
fn every_stored_code_is_read_and_written_alike() {
    let Some(device) = device() else { return };
    for format in [Format::Fp16, Format::E4, Format::E4s] {
        let setup = Setup::of(format, &[0x1_0000]);
        let mut pair = setup.build(&device.gpu());
        let is_stored = |word: u32| format != Format::Fp16 || Fp16Word::is_valid(word);
        let words: Vec<u32> = (0..0x1_0000u32)
            .map(|code| code | (code.wrapping_mul(0x9E37) & 0xFFFF) << 16)
            .map(|word| if is_stored(word) { word } else { word & 0x3BFF_BBFF })
            .collect();
        pair.set_words(0, &words);
        for update in 9..=11 {
            pair.step(update, &noise(0x1_0000, update, 1e-2));
        }
        // Moments that are carried on as they are: every code is made again.
        let mut kept = setup.clone();
        kept.groups[0].hyperparameters.beta1 = 1.0 - 1e-7;
        kept.groups[0].hyperparameters.beta2 = 1.0 - 1e-7;
        let mut pair = kept.build(&device.gpu());
        pair.set_words(0, &words);
        pair.step(3, &vec![0.0; 0x1_0000]);
    }
}

/// Any bits at all: the exponents of a tenth of them are all ones.
fn any_bits(count: usize, seed: u64) -> Vec<f32> {
    let stream = RandomStream::new(seed, 1, 0, 0);
    let bits = (0..count as u32).map(|i| {
        let word = stream.word(i);
        if word.is_multiple_of(10) { word | 0x7F80_0000 } else { word }
    });
    bits.map(f32::from_bits).collect()
}

#[test]
fn any_bits_in_parameters_and_gradients() {
    let Some(device) = device() else { return };
    for kind in Kind::all() {
        let mut setup = Setup::of(kind.format, &[1024, 4001, 30]);
        setup.groups[0].kind = kind;
        setup.options.clip_norm = Some(1.0);
        let mut pair = setup.build(&device.gpu());
        let parameters = any_bits(setup.elements(), 7);
        pair.set_parameters(|position, _| parameters[position]);
        for update in 1..=4 {
            let outcome = pair.step(update, &any_bits(setup.elements(), update));
            assert!(outcome.nonfinite > 0);
        }
        let small = noise(setup.elements(), 9, 1e-38);
        pair.step(5, &small);
    }
}

#[test]
fn one_bad_gradient_anywhere_changes_nothing_else() {
    let Some(device) = device() else { return };
    for format in Kind::FORMATS {
        let setup = Setup::of(format, &[3, 5000, 0, 17]);
        let mut pair = setup.build(&device.gpu());
        pair.step(1, &noise(setup.elements(), 1, 1e-1));
        for (update, place) in (2..).zip([0, 2, 3, 4, 1026, 1027, 4099, 5002, 5003, 5019]) {
            let mut gradients = noise(setup.elements(), update, 1e-1);
            gradients[place] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][place % 3];
            let outcome = pair.step(update, &gradients);
            assert_eq!((outcome.nonfinite, outcome.first_nonfinite), (1, Some(place as u64)));
        }
    }
}

#[test]
fn a_bad_element_drops_the_update_where_asked_to() {
    let Some(device) = device() else { return };
    for format in Kind::FORMATS {
        for clip_norm in [None, Some(1.0)] {
            let mut setup = Setup::of(format, &[40, 3000, 9]);
            setup.groups[0].bias = None;
            setup.options.clip_norm = clip_norm;
            setup.options.skips_nonfinite = true;
            let mut pair = setup.build(&device.gpu());
            // Dropped: no bias is chosen, although the gradients are larger than later ones.
            let mut gradients = noise(setup.elements(), 1, 1e3);
            gradients[2000] = f32::NAN;
            gradients[3044] = f32::INFINITY;
            let outcome = pair.step(1, &gradients);
            assert_eq!((outcome.nonfinite, outcome.first_nonfinite), (2, Some(2000)));
            for update in 2..5 {
                let gradients = noise(setup.elements(), update, 1e-3);
                assert_eq!(pair.step(update, &gradients).nonfinite, 0);
            }
        }
    }
}

#[test]
fn biases_are_chosen_once_by_the_first_gradient_that_is_not_zero() {
    let Some(device) = device() else { return };
    for format in [Format::E4, Format::E4s] {
        for (clip_norm, measures_norm) in [(None, false), (None, true), (Some(0.1), true)] {
            let mut setup = Setup::of(format, &[20_000, 5, 0, 1, 3000]);
            setup.groups[0].bias = None;
            setup.options.clip_norm = clip_norm;
            setup.options.measures_norm = measures_norm;
            let mut pair = setup.build(&device.gpu());
            let mut gradients = noise(20_000, 1, 1e-3);
            gradients[19_999] = -0.06;
            gradients.extend([0.0, -0.0, f32::NAN, f32::INFINITY, 0.0, 1e-30]);
            gradients.extend(noise(3000, 5, 1e4));
            pair.step(1, &gradients);
            let biases = pair.fused.biases().unwrap();
            assert_eq!((biases[1], biases[2]), (None, None));
            assert!(biases[0].is_some() && biases[3].is_some() && biases[4].is_some());
            pair.step(2, &vec![1e-2; setup.elements()]);
            assert!(pair.fused.biases().unwrap()[1].is_some());
            pair.step(3, &noise(setup.elements(), 3, 10.0));
        }
    }
}

#[test]
fn every_shape_has_the_same_bits() {
    let Some(device) = device() else { return };
    for (name, shape) in Shape::variants() {
        println!("{name}");
        // One format with two arrays, and the one that draws random words.
        for format in [Format::Fp32, Format::E4s] {
            let mut setup = Setup::of(format, &[4096, 3, 0, 1021, 2048]);
            setup.options.shape = shape;
            let mut pair = setup.build(&device.gpu());
            for update in 1..=2 {
                let mut gradients = noise(setup.elements(), update, 1e-1);
                gradients[4100] = f32::NAN;
                pair.step(update, &gradients);
            }
        }
    }
}

#[test]
fn more_tensors_than_an_argument_has_room_for() {
    let lengths: Vec<usize> = (0..390).map(|tensor| tensor % 7).collect();
    check(&Setup::of(Format::E4, &lengths), 2, 1e-1);
}

#[test]
fn a_replayed_step_has_the_bits_of_a_queued_one() {
    let Some(device) = device() else { return };
    for format in Kind::FORMATS {
        let gpu = device.gpu();
        let mut setup = Setup::of(format, &[2000, 11, 4096]);
        setup.groups[0].bias = None;
        setup.options.clip_norm = Some(1.0);
        setup.options.skips_nonfinite = true;
        let mut pair = setup.build(&gpu);
        pair.step(1, &noise(setup.elements(), 1, 1e-1));
        let graph = gpu
            .record(|| {
                pair.queue_step();
                Ok::<(), gpu_kernels::Error>(())
            })
            .unwrap();
        for update in 2..=6 {
            let mut gradients = noise(setup.elements(), update, 1.0 / update as f32);
            if update == 4 {
                gradients[5] = f32::NAN;
            }
            pair.prepare(update, &gradients);
            graph.replay().unwrap();
            pair.compare(update);
        }
    }
}

#[track_caller]
fn check_large(format: Format) {
    let Some(device) = device() else { return };
    let mut setup = Setup::of(format, &[device.size(1 << 24, 1 << 17), 1 << 12]);
    setup.options.clip_norm = Some(1.0);
    check(&setup, 5, 1e-1);
}

// One test each, so that they run beside each other.

#[test]
fn a_large_model_in_fp32() {
    check_large(Format::Fp32);
}

#[test]
fn a_large_model_in_fp16() {
    check_large(Format::Fp16);
}

#[test]
fn a_large_model_in_e4() {
    check_large(Format::E4);
}

#[test]
fn a_large_model_in_e4s() {
    check_large(Format::E4s);
}

#[test]
fn steps_without_a_new_update_count_anew() {
    let Some(device) = device() else { return };
    let setup = Setup::of(Format::E4, &[1000]);
    let mut pair = setup.build(&device.gpu());
    let mut gradients = noise(1000, 1, 1e-1);
    gradients[3] = f32::NAN;
    pair.step(1, &gradients);
    pair.queue_step();
    assert_eq!(pair.compare(1).nonfinite, 1);
}

#[test]
fn outcomes_arrive_without_waiting() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let setup = Setup::of(Format::E4, &[1000]);
    let mut pair = setup.build(&gpu);
    assert_eq!(pair.fused.take_outcome(true).unwrap(), None);
    for update in 1..=20 {
        pair.prepare(update, &noise(1000, update, 1e-1));
        pair.queue_step();
        pair.fused.queue_outcome().unwrap();
    }
    gpu.synchronize().unwrap();
    let mut last = None;
    for update in 1..=20 {
        last = pair.fused.take_outcome(false).unwrap();
        assert_eq!(last.as_ref().unwrap().update, update, "in order, none lost");
    }
    assert_eq!(Some(pair.fused.outcome().unwrap()), last);
    assert_eq!(pair.fused.take_outcome(true).unwrap(), None, "each is handed out once");
}

#[test]
fn a_step_allocates_nothing() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut setup = Setup::of(Format::E4, &[100_000, 3]);
    setup.options.clip_norm = Some(1.0);
    setup.options.skips_nonfinite = true;
    let mut pair = setup.build(&gpu);
    pair.prepare(1, &noise(setup.elements(), 1, 1.0));
    // Allocating is refused in a recording, so a step that can be recorded allocates nothing.
    let graph = gpu.record(|| {
        pair.queue_step();
        Ok::<(), gpu_kernels::Error>(())
    });
    graph.unwrap().replay().unwrap();
    pair.compare(1);
}

#[test]
fn a_model_without_elements() {
    let Some(device) = device() else { return };
    for lengths in [&[][..], &[0, 0]] {
        let mut setup = Setup::of(Format::E4, lengths);
        setup.options.clip_norm = Some(1.0);
        let mut pair = setup.build(&device.gpu());
        let outcome = pair.step(1, &[]);
        assert_eq!((outcome.gradient_norm, outcome.clip_scale), (0.0, 1.0));
        assert_eq!(pair.fused.state_bytes(), 0);
    }
}

#[test]
fn kernels_tell_what_they_take() {
    let Some(device) = device() else { return };
    let mut setup = Setup::of(Format::E4, &[1000]);
    setup.options.skips_nonfinite = true;
    let pair = setup.build(&device.gpu());
    let facts = FusedAdamW::kernel_facts(&pair.fused).unwrap();
    let names: Vec<&str> = facts.iter().map(|kernel| kernel.name).collect();
    assert_eq!(names, ["adamw_update", "adamw_check", "gradient_norm"]);
    println!("{facts:?}");
    assert!(facts.iter().all(|kernel| kernel.local_bytes == 0));
}
