//! Loss, logits and gradients agree with PyTorch's operations. `golden/gpt.py` wrote the numbers,
//! in `f64`.

use std::collections::HashMap;

use model::{Element, IGNORED, Layout, Role};

use crate::samples::{self, golden_path, gradients, relative_distance};

const VOCABULARY: usize = 13;
const TOKENS: usize = 16;

fn golden() -> HashMap<String, Vec<f64>> {
    let text = std::fs::read_to_string(golden_path("gpt.txt")).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        (name, words.map(|word| word.parse().unwrap()).collect())
    };
    text.lines().map(line).collect()
}

/// The parameters of `golden/gpt.py`.
fn parameters<T: Element>(layout: &Layout) -> Vec<T> {
    let mut values = Vec::with_capacity(layout.parameters());
    for slot in layout.slots() {
        let gain = if slot.role == Role::Gain { 1.0 } else { 0.0 };
        values.extend(slot.range().map(|index| {
            let word = (index as u64 + 1) * 2_654_435_761 % (1 << 32);
            let value = (word as f64 / 4_294_967_296.0 - 0.5) / 2.0 + gain;
            T::from_f64(f64::from(value as f32))
        }));
    }
    values
}

fn check<T: Element>(bound: f64) {
    let golden = golden();
    let config = samples::config([VOCABULARY, 9, 12, 2, 3]);
    let layout = Layout::new(config);
    let parameters = parameters::<T>(&layout);
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|i| (7 * i + 3) % 13).collect();
    let mut targets: Vec<u32> = (0..TOKENS as u32).map(|i| (5 * i + 1) % 13).collect();
    for ignored in [5, 9, 15] {
        targets[ignored] = IGNORED;
    }
    let mut gpt = samples::gpt::<T>(config, 2, 8);
    gpt.upload(&tokens, &targets, 1.0 / 13.0).unwrap();
    let (nats, gradient) = gradients(&mut gpt, &parameters);

    let close = |what: &str, found: &[f64], bound: f64| {
        let distance = relative_distance(found, &golden[what]);
        assert!(distance < bound, "{what}: relative distance {distance:e}");
    };
    let sum: f64 = golden["losses"].iter().sum();
    assert!((nats - sum).abs() < bound * sum, "{nats} against {sum}");
    let mut losses = [0.0f32; TOKENS];
    gpt.token_losses(&mut losses).unwrap();
    let logits = gpt.logits(&parameters, 0..TOKENS).unwrap();
    let widened = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    // Both come back as f32 from every device.
    close("losses", &widened(&losses), bound.max(1e-7));
    close("logits", &widened(&logits), bound.max(1e-7));
    for slot in layout.slots() {
        let found: Vec<f64> = gradient[slot.range()].iter().map(|g| g.to_f64()).collect();
        close(&slot.name, &found, bound);
    }
}

#[test]
fn f64_agrees_with_pytorch() {
    check::<f64>(1e-11);
}

#[test]
fn f32_agrees_with_pytorch() {
    check::<f32>(2e-6);
}
