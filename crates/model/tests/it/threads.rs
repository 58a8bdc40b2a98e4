//! The same bits for any number of threads.

use model::{Layout, LossSum};

use crate::samples::{self, Samples};

#[derive(PartialEq)]
struct Bits {
    loss: LossSum,
    losses: Vec<u32>,
    gradients: Vec<u32>,
    logits: Vec<u32>,
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// Plans on one number of threads and runs on another.
fn run(planned: usize, threads: usize, dimensions: [usize; 5], rows: usize, time: usize) -> Bits {
    let config = samples::config(dimensions);
    let mut gpt = pool(planned).install(|| samples::gpt::<f32>(config, rows, time));
    pool(threads).install(|| {
        let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 4);
        let mut samples = Samples::new(9);
        let tokens = samples.ids(rows * time, dimensions[0]);
        let targets = samples.ids(rows * time, dimensions[0]);
        gpt.upload(&tokens, &targets, 0.01).unwrap();
        let (_, gradients) = samples::gradients(&mut gpt, &parameters);
        let mut losses = vec![0.0; rows * time];
        gpt.token_losses(&mut losses).unwrap();
        let last = rows * time - 1;
        let logits = gpt.logits(&parameters, last..last + 1).unwrap();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        Bits {
            loss: gpt.loss().unwrap(),
            losses: bits(&losses),
            gradients: bits(&gradients),
            logits: bits(&logits),
        }
    })
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    // One long window with several spans of keys, many short ones, and one with ragged edges.
    for (dimensions, rows, time) in [
        ([3000, 1152, 64, 1, 2], 1, 1152),
        ([700, 64, 96, 2, 3], 16, 64),
        ([101, 77, 30, 2, 5], 5, 77),
    ] {
        let one = run(1, 1, dimensions, rows, time);
        for (planned, threads) in [(2, 2), (3, 3), (8, 8), (1, 4), (4, 1)] {
            let many = run(planned, threads, dimensions, rows, time);
            assert!(one == many, "{dimensions:?} planned on {planned}, run on {threads} threads");
        }
    }
}
