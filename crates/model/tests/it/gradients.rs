//! The gradients are those of the loss: against central differences, by the symmetry of second
//! derivatives, and by causality.

use model::{Cpu, Gpt, IGNORED, Layout};

use crate::samples::{self, Samples, gradients, relative_distance};

/// A network small enough to try every parameter: two windows of 5 with one target ignored.
fn miniature() -> (Gpt<Cpu<f64>>, Vec<f64>) {
    let config = samples::config([7, 6, 6, 2, 3]);
    let mut gpt = samples::gpt(config, 2, 5);
    let mut samples = Samples::new(3);
    let tokens = samples.ids(10, 7);
    let mut targets = samples.ids(10, 7);
    targets[3] = IGNORED;
    gpt.upload(&tokens, &targets, 1.0).unwrap();
    (gpt, samples::parameters(&Layout::new(config), 5))
}

fn loss_at(gpt: &mut Gpt<Cpu<f64>>, parameters: &Vec<f64>) -> f64 {
    gpt.forward(parameters).unwrap();
    gpt.loss().unwrap().nats
}

#[test]
fn every_gradient_agrees_with_central_differences() {
    let (mut gpt, mut parameters) = miniature();
    let (_, gradients) = gradients(&mut gpt, &parameters);
    let largest = gradients.iter().fold(0.0f64, |max, g| max.max(g.abs()));
    // The truncation of a step h is of order h^2 = 1e-10, the rounding of a loss near 20 of order
    // 20 * 2^-53 / h = 2e-10.
    let h = 1e-5;
    for (index, gradient) in gradients.iter().enumerate() {
        let value = parameters[index];
        parameters[index] = value + h;
        let above = loss_at(&mut gpt, &parameters);
        parameters[index] = value - h;
        let below = loss_at(&mut gpt, &parameters);
        parameters[index] = value;
        let difference = (above - below) / (2.0 * h);
        let slot = gpt.layout().slot_of(index).unwrap();
        assert!(
            (gradient - difference).abs() < 2e-9 * largest,
            "{} at {}: gradient {gradient}, difference {difference}",
            slot.name,
            index - slot.offset,
        );
    }
}

#[test]
fn no_slot_is_without_gradient() {
    let (mut gpt, parameters) = miniature();
    let (_, gradients) = gradients(&mut gpt, &parameters);
    for slot in gpt.layout().slots() {
        let any = gradients[slot.range()].iter().any(|&gradient| gradient != 0.0);
        assert!(any, "{} has no gradient", slot.name);
    }
}

#[test]
fn second_derivatives_are_symmetric() {
    let (mut gpt, parameters) = miniature();
    let mut samples = Samples::new(8);
    let h = 1e-4;
    let mut times_hessian = |direction: &[f64]| -> Vec<f64> {
        let mut at = |step: f64| {
            let moved = parameters.iter().zip(direction).map(|(p, d)| p + step * d).collect();
            gradients(&mut gpt, &moved).1
        };
        let (above, below) = (at(h), at(-h));
        above.iter().zip(&below).map(|(above, below)| (above - below) / (2.0 * h)).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for _ in 0..5 {
        let u = samples.vector::<f64>(parameters.len(), 1.0);
        let v = samples.vector::<f64>(parameters.len(), 1.0);
        let (hu, hv) = (times_hessian(&u), times_hessian(&v));
        let scale = (dot(&hu, &hu) * dot(&v, &v)).sqrt();
        // Directions of norm 20 move the network by 20 h = 2e-3, so differences of gradients are
        // exact to a few parts in 10^5 of their size; rounding is far below.
        let asymmetry = (dot(&v, &hu) - dot(&u, &hv)).abs() / scale;
        assert!(asymmetry < 2e-5, "relative asymmetry {asymmetry:e}");
    }
}

#[test]
fn the_future_changes_no_logit_of_the_past() {
    // Wider than a block of queries and a tile of rows, so that the blocks' edges are crossed.
    let config = samples::config([40, 300, 24, 2, 3]);
    let mut gpt = samples::gpt::<f32>(config, 1, 300);
    let parameters = samples::parameters(&Layout::new(config), 5);
    let mut tokens = Samples::new(1).ids(300, 40);
    let mut logits = |tokens: &[u32]| {
        gpt.upload(tokens, &[IGNORED; 300], 1.0).unwrap();
        gpt.forward(&parameters).unwrap();
        gpt.logits(&parameters, 0..300).unwrap()
    };
    let before = logits(&tokens);
    for changed in [299, 192, 97, 96, 95, 1] {
        tokens[changed] = (tokens[changed] + 1) % 40;
        let after = logits(&tokens);
        tokens[changed] = (tokens[changed] + 39) % 40;
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let border = changed * 40;
        assert_eq!(bits(&before[..border]), bits(&after[..border]), "token {changed}");
        assert_ne!(before[border..border + 40], after[border..border + 40], "token {changed}");
    }
}

#[test]
fn f32_follows_f64() {
    let config = samples::config([300, 130, 48, 3, 4]);
    let layout = Layout::new(config);
    let parameters = layout.initial(7);
    let exact: Vec<f64> = parameters.iter().map(|&p| f64::from(p)).collect();
    let mut samples = Samples::new(2);
    let (tokens, targets) = (samples.ids(3 * 130, 300), samples.ids(3 * 130, 300));
    let mut gpt = samples::gpt::<f32>(config, 3, 130);
    let mut twin = samples::gpt::<f64>(config, 3, 130);
    gpt.upload(&tokens, &targets, 1.0).unwrap();
    twin.upload(&tokens, &targets, 1.0).unwrap();
    let (loss, gradient) = gradients(&mut gpt, &parameters);
    let (exact_loss, exact_gradient) = gradients(&mut twin, &exact);
    assert!((loss - exact_loss).abs() < 1e-6 * exact_loss, "{loss} against {exact_loss}");
    for slot in layout.slots() {
        let ours: Vec<f64> = gradient[slot.range()].iter().map(|&g| f64::from(g)).collect();
        let distance = relative_distance(&ours, &exact_gradient[slot.range()]);
        // A gradient passes through about 30 sums of up to 390 terms; each rounds at 2^-24.
        assert!(distance < 1e-5, "{}: relative distance {distance:e}", slot.name);
    }
}

#[test]
fn a_fresh_network_knows_nothing() {
    let config = samples::config([1000, 64, 64, 4, 4]);
    let mut gpt = samples::gpt::<f32>(config, 4, 64);
    let mut samples = Samples::new(6);
    let (tokens, targets) = (samples.ids(256, 1000), samples.ids(256, 1000));
    gpt.upload(&tokens, &targets, 1.0).unwrap();
    gpt.forward(&Layout::new(config).initial(0)).unwrap();
    let mean = gpt.loss().unwrap().mean();
    // Logits have variance 0.02^2 C = 0.026 at first, which costs about half of that in nats.
    assert!((mean - 1000f64.ln()).abs() < 0.05, "{mean} against {}", 1000f64.ln());
}
