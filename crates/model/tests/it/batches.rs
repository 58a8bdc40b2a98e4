//! What belongs to a batch and what does not: ignored targets, accumulated micro-batches, padding.

use model::{Batch, Cpu, Gpt, IGNORED, Layout, Purpose};

use crate::samples::{self, Samples, gradients, relative_distance};

const DIMENSIONS: [usize; 5] = [50, 20, 16, 2, 2];

fn ids(seed: u64, length: usize) -> Vec<u32> {
    Samples::new(seed).ids(length, 50)
}

#[test]
fn micro_batches_add_up_to_the_concatenated_batch() {
    let config = samples::config(DIMENSIONS);
    let parameters: Vec<f64> = samples::parameters(&Layout::new(config), 1);
    let (tokens, mut targets) = (ids(2, 100), ids(3, 100));
    // Uneven: the last window has 3 targets, so the micro-batches weigh differently.
    targets[83..].fill(IGNORED);
    let scale = 1.0 / 83.0;

    let mut whole = samples::gpt::<f64>(config, 5, 20);
    whole.upload(&tokens, &targets, scale).unwrap();
    let (whole_loss, whole_gradients) = gradients(&mut whole, &parameters);

    let mut sum = vec![f64::NAN; parameters.len()];
    let mut loss = 0.0;
    for (start, rows) in [(0, 2), (2, 2), (4, 1)] {
        let mut gpt = samples::gpt::<f64>(config, rows, 20);
        let range = start * 20..(start + rows) * 20;
        gpt.upload(&tokens[range.clone()], &targets[range], scale).unwrap();
        gpt.forward_backward(&parameters, &mut sum, start > 0).unwrap();
        loss += gpt.loss().unwrap().nats;
    }
    assert!((loss - whole_loss).abs() < 1e-12 * whole_loss);
    let distance = relative_distance(&sum, &whole_gradients);
    assert!(distance < 1e-13, "relative distance {distance:e}");
}

#[test]
fn identical_micro_batches_average_to_one_of_them() {
    let config = samples::config(DIMENSIONS);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let (tokens, targets) = (ids(2, 40), ids(3, 40));
    let mut gpt = samples::gpt::<f32>(config, 2, 20);
    gpt.upload(&tokens, &targets, 1.0 / 40.0).unwrap();
    let (_, once) = gradients(&mut gpt, &parameters);
    gpt.upload(&tokens, &targets, 1.0 / 320.0).unwrap();
    let mut sum = vec![f32::NAN; parameters.len()];
    for micro_batch in 0..8 {
        gpt.forward_backward(&parameters, &mut sum, micro_batch > 0).unwrap();
    }
    // Eight additions of an f32, each rounding at 2^-24.
    let distance = relative_distance(&sum, &once);
    assert!(distance < 4e-7, "relative distance {distance:e}");
}

#[test]
fn ignored_targets_and_padded_windows_change_nothing() {
    let config = samples::config(DIMENSIONS);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let (tokens, targets) = (ids(2, 20), ids(3, 20));
    let mut short = samples::gpt::<f32>(config, 1, 20);
    short.upload(&tokens, &targets, 1.0).unwrap();
    let (loss, gradient) = gradients(&mut short, &parameters);

    let mut padded = samples::gpt::<f32>(config, 3, 20);
    let mut padded_tokens = tokens.clone();
    padded_tokens.resize(60, 0);
    let mut padded_targets = targets.clone();
    padded_targets.resize(60, IGNORED);
    padded.upload(&padded_tokens, &padded_targets, 1.0).unwrap();
    let (padded_loss, padded_gradient) = gradients(&mut padded, &parameters);
    assert_eq!(padded.loss().unwrap().tokens, 20);
    assert!((padded_loss - loss).abs() < 1e-6 * loss);
    assert!(relative_distance(&padded_gradient, &gradient) < 1e-6);

    let mut losses = [f32::NAN; 60];
    padded.token_losses(&mut losses).unwrap();
    assert!(losses[..20].iter().all(|&loss| loss > 0.0));
    assert_eq!(losses[20..], [0.0; 40]);
}

#[test]
fn nothing_but_ignored_targets_gives_zero_gradients() {
    let config = samples::config(DIMENSIONS);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let mut gpt = samples::gpt::<f32>(config, 1, 20);
    gpt.upload(&ids(2, 20), &[IGNORED; 20], 1.0).unwrap();
    let (loss, gradient) = gradients(&mut gpt, &parameters);
    assert_eq!(loss, 0.0);
    assert!(gradient.iter().all(|&gradient| gradient == 0.0));
}

#[test]
fn evaluation_gives_the_bits_of_training() {
    let config = samples::config(DIMENSIONS);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let (tokens, targets) = (ids(2, 60), ids(3, 60));
    let losses = |purpose| {
        let batch = Batch { rows: 3, time: 20 };
        let mut gpt = Gpt::new(Cpu::<f32>::new(), config, batch, purpose).unwrap();
        gpt.upload(&tokens, &targets, 1.0).unwrap();
        gpt.forward(&parameters).unwrap();
        let mut losses = [f32::NAN; 60];
        gpt.token_losses(&mut losses).unwrap();
        (losses.map(f32::to_bits), gpt.loss().unwrap())
    };
    let (evaluated, trained) = (losses(Purpose::Evaluation), losses(Purpose::Training));
    assert_eq!(evaluated, trained);

    let mut gpt = samples::gpt::<f32>(config, 3, 20);
    gpt.upload(&tokens, &targets, 1.0).unwrap();
    gradients(&mut gpt, &parameters);
    assert_eq!(gpt.loss().unwrap(), trained.1, "with a backward pass behind it");
}

#[test]
fn a_shorter_window_leaves_later_positions_without_gradient() {
    let config = samples::config(DIMENSIONS);
    let layout = Layout::new(config);
    let parameters: Vec<f32> = samples::parameters(&layout, 1);
    let mut gpt = samples::gpt::<f32>(config, 2, 12);
    gpt.upload(&ids(2, 24), &ids(3, 24), 1.0).unwrap();
    let (_, gradient) = gradients(&mut gpt, &parameters);
    let positions = &gradient[layout.slot("wpe.weight").unwrap().range()];
    assert!(positions[..12 * 16].iter().all(|&gradient| gradient != 0.0));
    assert!(positions[12 * 16..].iter().all(|&gradient| gradient == 0.0));
}

#[test]
fn a_loss_that_is_not_finite_says_so() {
    let config = samples::config(DIMENSIONS);
    let mut parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    for poison in [f32::NAN, f32::INFINITY] {
        parameters[17] = poison;
        let mut gpt = samples::gpt::<f32>(config, 1, 20);
        gpt.upload(&ids(2, 20), &ids(3, 20), 1.0).unwrap();
        let (loss, gradient) = gradients(&mut gpt, &parameters);
        assert!(!loss.is_finite());
        assert!(gradient.iter().any(|gradient| !gradient.is_finite()));
    }
}
