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

/// Formats of blocks with other options, for tensors of any length.
pub const OPTIONS: [&str; 16] = [
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
    "ustate1q-original:min_m=0,min_v=1000000,v_bits=3",
    "n4l4:min=0",
    "n4l4:min=0,m_block=16,v_block=32,m_rounding=nearest",
];

#[test]
fn every_option_and_length_alone() {
    for text in OPTIONS {
        let format = text.parse().unwrap();
        for length in LENGTHS {
            check(&Setup::of(format, &[length]), 3, 1e-1);
        }
    }
}

#[test]
fn moments_beside_what_counts_as_zero() {
    for text in OPTIONS {
        for largest in [1e-13, 1e-15, 1e-20, 1e-30] {
            check(&Setup::of(text.parse().unwrap(), &[100, 257]), 3, largest);
        }
    }
}

#[test]
fn every_option_with_dead_coordinates_over_many_updates() {
    for text in OPTIONS {
        let setup = Setup::of(text.parse().unwrap(), &[20_000, 129, 70_000]);
        let mut pair = setup.build(Instructions::best());
        for update in 1..=12 {
            let mut gradients = noise(setup.elements(), update, 1e-2);
            for (index, g) in gradients.iter_mut().enumerate() {
                // Every third coordinate never has a gradient, nor has a stretch of two blocks.
                if index % 3 == 0 || (2000..4000).contains(&index) {
                    *g = 0.0;
                }
            }
            pair.step(update, &gradients);
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
        let can_saturate = format.lanes().is_some() && format != Format::Fp32;
        assert_eq!(saturated > 0, can_saturate, "{format}");
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
        (0..40).map(|position| (position * position * 11, position % groups.len())).collect();
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
