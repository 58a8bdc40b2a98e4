//! Formats of blocks: bytes of any list of shapes, a tensor cut at borders of blocks.

use formats::Format;
use optimizer::{AdamW, CpuAdamW, Group, Options};

use crate::pair::{group, noise, specs};

const OPTIONS: [&str; 8] = [
    "block8:min=0",
    "block8:block=2048",
    "ustate1q:min=0,v_bits=3,block=32,mean_block=16",
    "ustate1q:halves=m",
    "ustate1q:min_m=0,min_v=100",
    "ustate1q-original",
    "n4l4:min=0,m_block=16",
    "n4l4",
];

#[test]
fn state_bytes_are_those_of_what_is_stored() {
    let lists: [&[usize]; 4] =
        [&[], &[0], &[1, 2, 127, 128, 129, 4095, 4096, 4097], &[131_072, 0, 5000]];
    let formats = OPTIONS.map(|text| text.parse::<Format>().unwrap());
    for format in formats.into_iter().chain(Format::ALL) {
        for lengths in lists {
            let tensors: Vec<(usize, usize)> = lengths.iter().map(|&length| (length, 0)).collect();
            let optimizer =
                CpuAdamW::new(&specs(&tensors), &[group(format)], Options::default()).unwrap();
            let saved = optimizer.save().unwrap();
            let stored: usize = saved.arrays.iter().map(|array| array.bytes.len()).sum();
            let expected: u64 =
                lengths.iter().map(|&length| format.state_bytes(length as u64)).sum();
            assert_eq!(optimizer.state_bytes(), expected, "{format} {lengths:?}");
            assert_eq!(stored as u64, expected, "{format} {lengths:?}");
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn state_bytes_are_those_that_a_device_has() {
    use optimizer::CudaAdamW;
    let Some(device) = crate::emulator::device() else { return };
    let gpu = device.gpu();
    let lists: [&[usize]; 5] = [
        &[],
        &[0],
        &[1, 2, 127, 128, 129, 4095, 4096, 4097],
        &[131_072, 0, 5000],
        &[7, 70_001, 64, 33_000, 16_384],
    ];
    let formats = OPTIONS.map(|text| text.parse::<Format>().unwrap());
    for format in formats.into_iter().chain(Format::ALL) {
        for lengths in lists {
            let tensors: Vec<(usize, usize)> = lengths.iter().map(|&length| (length, 0)).collect();
            let groups = [group(format)];
            let Ok(optimizer) = CudaAdamW::new(&gpu, &specs(&tensors), &groups, Options::default())
            else {
                // One set of options for each format on a device: lengths about a threshold have two.
                assert!(matches!(format, Format::UState1Q(_)), "{format}");
                continue;
            };
            let expected: u64 =
                lengths.iter().map(|&length| format.state_bytes(length as u64)).sum();
            let saved = optimizer.save().unwrap();
            let stored: usize = saved.arrays.iter().map(|array| array.bytes.len()).sum();
            assert_eq!(optimizer.state_bytes(), expected, "{format} {lengths:?}");
            assert_eq!(stored as u64, expected, "{format} {lengths:?}");
            // What is allocated is no more than filled up, nor less.
            let allocated = optimizer.allocated_state_bytes();
            let most = expected + 64 * saved.arrays.len() as u64;
            assert!((expected..=most).contains(&allocated), "{format} {allocated} {expected}");
            if format.block_elements() == 1 {
                assert_eq!(allocated, expected, "{format} {lengths:?}");
            }
        }
    }
}

#[test]
fn a_tensor_cut_at_a_border_of_blocks_has_the_same_bits() {
    // Without random words, which go by the place in a tensor, parts are tensors of their own.
    for text in ["block8:min=0", "block8:min=0,block=64", "block8-original:min=0,block=2048"] {
        let groups = [group(text.parse().unwrap())];
        let run = |lengths: &[(usize, usize)]| {
            let mut optimizer =
                CpuAdamW::new(&specs(lengths), &groups, Options::default()).unwrap();
            let mut parameters = noise(10_000, 3, 1.0);
            for update in 1..=5 {
                optimizer.set_next_update().unwrap();
                optimizer.step(&mut parameters, &noise(10_000, 10 + update, 1e-2)).unwrap();
            }
            parameters
        };
        assert_eq!(run(&[(10_000, 0)]), run(&[(4096, 0), (5904, 0)]), "{text}");
    }
}

#[test]
fn betas_that_bound_no_update_are_refused_for_ustate1q() {
    for (format, is_refused) in [
        ("ustate1q", true),
        ("ustate1q-original", true),
        ("ustate1q:halves=v", false),
        ("n4l4", false),
        ("block8", false),
    ] {
        let bad = Group { betas: [0.95, 0.9], ..group(format.parse().unwrap()) };
        let result = CpuAdamW::new(&specs(&[(8192, 0)]), &[bad], Options::default());
        let message = result.err().map(|error| error.to_string());
        let expected = "group 0: expected beta1^2 below beta2, which bounds the normalised update \
                        that ustate1q stores; found beta1 0.95 and beta2 0.9";
        assert_eq!(message.as_deref(), is_refused.then_some(expected), "{format}");
    }
}
