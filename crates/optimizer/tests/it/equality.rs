//! The same bits as the authority: every format, length, instruction set, thread
//! count, group and clip.

use formats::{Bias, Format, Fp16Word};
use optimizer::{AdamW, BiasChoice, Group, Instructions, Options};

use crate::pair::{Setup, group, noise};

/// Lengths around the widths of vectors, lanes and chunks.
const LENGTHS: [usize; 24] = [
    0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 255, 1023, 1024, 1025, 16_383, 16_384,
    16_385, 32_768, 50_001,
];

#[track_caller]
fn check(setup: &Setup, updates: u64, largest: f32) {
    for instructions in Instructions::available() {
        let mut pair = setup.build(instructions);
        for update in 1..=updates {
            pair.step(update, &noise(setup.elements(), update, largest));
        }
    }
}

#[test]
fn every_format_and_length_alone() {
    for format in Format::ALL {
        for length in LENGTHS {
            check(&Setup::of(format, &[length]), 3, 1e-1);
        }
    }
}

#[test]
fn all_lengths_together_over_many_updates() {
    for format in Format::ALL {
        check(&Setup::of(format, &LENGTHS), 12, 1e-1);
    }
}

#[test]
fn gradients_that_saturate() {
    for format in Format::ALL {
        let setup = Setup::of(format, &[5_000, 333]);
        let mut pair = setup.build(Instructions::best());
        let mut saturated = 0;
        for update in 1..=6 {
            // Up to 1e6: beyond the largest code of every packed lane.
            let report = pair.step(update, &noise(setup.elements(), update, 1e6));
            saturated += report.saturated_m.min(report.saturated_r);
        }
        assert_eq!(saturated > 0, format != Format::Fp32, "{format}");
    }
}

#[test]
fn every_bias() {
    for format in [Format::E4, Format::E4s] {
        for bias in 0..=40 {
            let mut setup = Setup::of(format, &[777]);
            setup.groups[0].bias = BiasChoice::Fixed(Bias::new(bias).unwrap());
            check(&setup, 4, 1.0);
        }
    }
}

#[test]
fn groups_of_every_format_with_clipping() {
    let mut groups: Vec<Group> = Format::ALL.map(group).to_vec();
    groups[1].betas = [0.0, 0.999];
    groups[2].weight_decay = 0.0;
    groups[2].learning_rate = 0.0;
    groups[3].eps = 1e-3;
    groups.push(Group { bias: BiasChoice::Auto, ..group(Format::E4) });
    let tensors: Vec<_> =
        (0..40).map(|position| (position * position * 11, position % 5)).collect();
    for clip_norm in [None, Some(1e-3), Some(1e9)] {
        let options = Options { clip_norm, seed: u64::MAX - 5, ..Options::default() };
        let setup = Setup { tensors: tensors.clone(), groups: groups.clone(), options };
        check(&setup, 5, 1e-2);
    }
}

#[test]
fn any_number_of_threads() {
    let setup = Setup {
        tensors: vec![(100_000, 0), (3, 1), (0, 0), (40_000, 1), (16_384, 0)],
        groups: vec![group(Format::E4s), group(Format::Fp32)],
        options: Options { clip_norm: Some(0.5), ..Options::default() },
    };
    for threads in [1, 2, 3, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| check(&setup, 2, 1.0));
    }
}

/// Whether an update can have stored this word.
fn is_stored(format: Format, word: u32) -> bool {
    format != Format::Fp16 || Fp16Word::is_valid(word)
}

#[test]
fn every_stored_code_is_read_alike() {
    // All codes of both lanes of a word, twice shuffled, come in through a load.
    for format in [Format::Fp16, Format::E4, Format::E4s] {
        let setup = Setup::of(format, &[0x1_0000]);
        let mut pair = setup.build(Instructions::best());
        let words: Vec<u32> = (0..0x1_0000u32)
            .map(|code| code | (code.wrapping_mul(0x9E37) & 0xFFFF) << 16)
            .map(|word| if is_stored(format, word) { word } else { word & 0x3BFF_BBFF })
            .collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut saved = pair.optimizer.save().unwrap().into_owned();
        saved.arrays[0].bytes = bytes.into();
        pair.optimizer.load(&saved).unwrap();
        pair.authority.tensors[0].state = reference::State::Words(words);
        for update in 9..=11 {
            pair.step(update, &noise(0x1_0000, update, 1e-2));
        }
    }
}
