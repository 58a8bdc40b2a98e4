//! Trajectories of `torch.optim.AdamW`; `golden/make_torch_trajectories.py` made them.

use reference::adamw::{update_f32, update_f64};
use reference::compare::ulps_at;
use reference::{Hyperparameters, Parameter, Scalars};

fn golden(name: &str) -> String {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    std::fs::read_to_string(format!("{root}/tests/it/golden/{name}")).unwrap()
}

/// Every data row with the hyperparameters above it.
fn rows(text: &str) -> Vec<(Hyperparameters, Vec<&str>)> {
    let mut hyperparameters = None;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "case" {
            let numbers: Vec<f64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
            let [learning_rate, beta1, beta2, eps, weight_decay] = numbers[..] else {
                panic!("a case has five numbers")
            };
            hyperparameters =
                Some(Hyperparameters { learning_rate, beta1, beta2, eps, weight_decay });
        } else {
            rows.push((hyperparameters.expect("a case comes first"), words));
        }
    }
    rows
}

/// torch rounds in another order (m by interpolation, p by a division with the
/// step inside), so bits differ. From a common state p and v are within 2 ulps, an
/// ulp of p being that of the larger of p before and after; m may cancel, and is
/// within 2 ulps of its larger term.
#[test]
fn f32_agrees_within_two_ulps_per_update() {
    let text = golden("torch-adamw-f32.txt");
    let rows = rows(&text);
    assert_eq!(rows.len(), 4 * 10 * 24);
    for (hyperparameters, words) in rows {
        let update: u64 = words[0].parse().unwrap();
        let numbers: Vec<f32> = words[1..]
            .iter()
            .map(|word| f32::from_bits(u32::from_str_radix(word, 16).unwrap()))
            .collect();
        let [g, p, m, v, theirs_p, theirs_m, theirs_v] = numbers[..] else {
            panic!("a row has seven numbers")
        };
        let ours = update_f32(Scalars::at(hyperparameters, update), Parameter { p, m, v }, g);
        let p_scale = p.abs().max(theirs_p.abs());
        let m_scale = m.abs().max(g.abs() * (1.0 - hyperparameters.beta1) as f32);
        let (p_ulps, m_ulps) =
            (ulps_at(p_scale, ours.p, theirs_p), ulps_at(m_scale, ours.m, theirs_m));
        let v_ulps = ulps_at(ours.v, ours.v, theirs_v);
        assert!(
            p_ulps <= 2.0 && m_ulps <= 2.0 && v_ulps <= 2.0,
            "{words:?}: p {p_ulps}, m {m_ulps}, v {v_ulps} ulps"
        );
    }
}

/// In f64 the two free-running trajectories differ by roundings of 1e-16 alone.
#[test]
fn f64_trajectories_agree() {
    let text = golden("torch-adamw-f64.txt");
    let rows = rows(&text);
    assert_eq!(rows.len(), 4 * 24);
    for (hyperparameters, words) in rows {
        let numbers: Vec<f64> = words
            .iter()
            .map(|word| f64::from_bits(u64::from_str_radix(word, 16).unwrap()))
            .collect();
        let (gradients, theirs) = numbers[1..].split_at(numbers.len() - 4);
        let mut ours = Parameter { p: numbers[0], m: 0.0, v: 0.0 };
        for (update, &gradient) in (1..).zip(gradients) {
            ours = update_f64(hyperparameters, update, ours, gradient);
        }
        for (name, ours, theirs) in
            [("p", ours.p, theirs[0]), ("m", ours.m, theirs[1]), ("v", ours.v, theirs[2])]
        {
            let scale = theirs.abs().max(1e-6);
            assert!((ours - theirs).abs() <= 1e-13 * scale, "{name}: {ours:e} {theirs:e}");
        }
    }
}
