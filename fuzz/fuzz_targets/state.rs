//! State words from anywhere: every word stands for finite moments, and a state that an optimizer accepts stays finite
//! under an update.

#![no_main]

use std::borrow::Cow;

use formats::{Bias, E4Word, Format, WordCodec as _};
use libfuzzer_sys::fuzz_target;
use optimizer::{AdamW as _, CpuAdamW, Group, Options, SavedArray, TensorSpec};

fuzz_target!(|bytes: &[u8]| {
    let (words, _) = bytes.as_chunks::<4>();
    for word in words.iter().map(|word| u32::from_le_bytes(*word)) {
        let codec = E4Word::new(Bias::DEFAULT);
        let moments = codec.decode(word);
        assert!(moments.m.is_finite() && moments.r.is_finite() && moments.r >= 0.0);
        let again = codec.decode(codec.encode(moments, 0).word);
        assert_eq!((moments.m.to_bits(), moments.r.to_bits()), (again.m.to_bits(), again.r.to_bits()));
    }
    for format in Format::ALL {
        let length = 1 + bytes.len() / 16;
        let tensors = [TensorSpec { name: "weight".into(), length, group: 0 }];
        let groups = [Group { format, ..Group::default() }];
        let new = || CpuAdamW::new(&tensors, &groups, Options::default()).expect("good settings");
        let (mut source, mut target) = (new(), new());
        source.set_update(1, &[0.1]).expect("an update");
        source.step(&mut vec![0.0; length], &vec![0.5; length]).expect("buffers that fit");
        let mut saved = source.save().expect("it has stepped");
        let mut rest = bytes.iter().copied().cycle();
        for SavedArray { bytes: array, .. } in &mut saved.arrays {
            let spoilt = array.iter().map(|&byte| rest.next().unwrap_or(byte)).collect();
            *array = Cow::Owned(spoilt);
        }
        if target.load(&saved).is_ok() {
            let mut parameters = vec![1.0; length];
            target.set_update(2, &[0.1]).expect("an update");
            target.step(&mut parameters, &vec![0.25; length]).expect("buffers that fit");
            assert!(parameters.iter().all(|parameter: &f32| parameter.is_finite()));
        }
    }
});
