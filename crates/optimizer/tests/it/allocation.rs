//! A step allocates nothing, in any combination of passes.

use formats::Format;
use optimizer::{AdamW, BiasChoice, CpuAdamW, Group, OnNonfinite, Options};

use crate::pair::{group, noise, specs};

#[test]
fn updates_after_the_first_allocate_nothing() {
    // On one thread, so that the thread that counts is the one that works.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let tensors: Vec<(usize, usize)> = (0..40).map(|i| (i * 997, i % Format::ALL.len())).collect();
    let elements = tensors.iter().map(|&(length, _)| length).sum();
    let groups = Format::ALL.map(|format| Group { bias: BiasChoice::Auto, ..group(format) });
    let gradients = noise(elements, 1, 1.0);
    for on_nonfinite in [OnNonfinite::Stop, OnNonfinite::Skip] {
        for clip_norm in [None, Some(1.0)] {
            let options = Options { clip_norm, on_nonfinite, seed: 1 };
            let mut optimizer = CpuAdamW::new(&specs(&tensors), &groups, options).unwrap();
            let mut parameters = noise(elements, 2, 1.0);
            let mut update = |number| {
                optimizer.set_update(number, &[1e-3; Format::ALL.len()]).unwrap();
                optimizer.step(&mut parameters, &gradients).unwrap();
                optimizer.report().unwrap();
            };
            pool.install(|| {
                update(1);
                let counted = allocation_counter::measure(|| (2..5).for_each(&mut update));
                assert_eq!(counted.count_total, 0);
            });
        }
    }
}
