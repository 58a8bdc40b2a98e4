//! What breaks formats of blocks, and must not break these: dead and small coordinates, constant
//! gradients, heavy tails, single bad numbers, unused rows.

use formats::Format;
use optimizer::{AdamW, CpuAdamW, Group, Options};
use proptest::prelude::*;

use crate::pair::{noise, specs};

/// The formats that are mended.
const MENDED: [&str; 6] = [
    "block8:min=0",
    "block8:min=0,block=2048",
    "ustate1q:min=0",
    "ustate1q:min=0,v_bits=2",
    "ustate1q:min=0,halves=v",
    "n4l4:min=0",
];

struct Run {
    optimizer: CpuAdamW,
    parameters: Vec<f32>,
    group: Group,
}

impl Run {
    fn new(format: &str, length: usize, change: impl FnOnce(&mut Group)) -> Run {
        let format: Format = format.parse().unwrap();
        let mut group = Group { format, ..Group::default() };
        change(&mut group);
        let optimizer = CpuAdamW::new(&specs(&[(length, 0)]), &[group], Options::default());
        Run { optimizer: optimizer.unwrap(), parameters: vec![0.0; length], group }
    }

    fn step(&mut self, gradients: &Vec<f32>) {
        self.optimizer.set_next_update().unwrap();
        self.optimizer.step(&mut self.parameters, gradients).unwrap();
    }
}

fn rms(numbers: &[f32]) -> f64 {
    let sum: f64 = numbers.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    (sum / numbers.len() as f64).sqrt()
}

/// Numbers with a normal distribution, about.
fn normal(count: usize, seed: u64, deviation: f32) -> Vec<f32> {
    let stream = formats::RandomStream::new(seed, 0, 0, 0);
    let one = |index: u32| {
        let uniform = |k: u32| stream.word(12 * index + k) as f32 / 2f32.powi(32);
        ((0..12).map(uniform).sum::<f32>() - 6.0) * deviation
    };
    (0..count as u32).map(one).collect()
}

/// The longest step that exact AdamW could take at an update, over the learning rate.
fn longest_step(group: &Group, update: i32) -> f64 {
    let [beta1, beta2] = group.betas;
    let rho = beta1 * beta1 / beta2;
    let sum: f64 = (0..update).map(|power| rho.powi(power)).sum();
    let ratio = (1.0 - beta1) * (sum / (1.0 - beta2)).sqrt();
    ratio * (1.0 - beta2.powi(update)).sqrt() / (1.0 - beta1.powi(update))
}

#[test]
fn dead_coordinates_stay_where_decay_puts_them() {
    for format in MENDED {
        let mut run = Run::new(format, 8192, |group| group.weight_decay = 0.1);
        run.parameters.fill(1.0);
        let mut dead = 1.0f32;
        for update in 0..300 {
            let mut gradients = normal(8192, update, 1e-3);
            gradients.iter_mut().step_by(2).for_each(|g| *g = 0.0);
            run.step(&gradients);
            dead *= 1.0 - 1e-3 * 0.1;
        }
        assert!(run.parameters.iter().step_by(2).all(|&p| p == dead), "{format}");
        let live: Vec<f32> = run.parameters.iter().skip(1).step_by(2).copied().collect();
        assert!(live.iter().any(|&p| p != dead), "{format}");
    }
}

#[test]
fn rows_of_an_embedding_that_are_never_used_do_not_drift() {
    for format in MENDED {
        // 100 rows of 96 columns, of which ten are used, each now and then.
        let mut run = Run::new(format, 9600, |_| {});
        for update in 0..200u64 {
            let mut gradients = vec![0.0; 9600];
            let row = (update % 10) as usize * 7;
            gradients[row * 96..][..96].copy_from_slice(&normal(96, update, 1e-2));
            run.step(&gradients);
        }
        for (row, parameters) in run.parameters.chunks(96).enumerate() {
            let is_used = row % 7 == 0 && row < 70;
            assert_eq!(parameters.iter().any(|&p| p != 0.0), is_used, "{format} row {row}");
            assert!(parameters.iter().all(|p| p.abs() < 0.2), "{format} row {row}");
        }
    }
}

#[test]
fn a_coordinate_whose_gradient_ends_comes_to_rest() {
    // Beside large ones it has one small gradient, then none.
    for format in MENDED {
        let mut run = Run::new(format, 256, |_| {});
        let mut gradients: Vec<f32> =
            (0..256).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        gradients[77] = 3e-4;
        run.step(&gradients);
        gradients[77] = 0.0;
        (0..300).for_each(|_| run.step(&gradients));
        let at_300 = run.parameters[77];
        (0..300).for_each(|_| run.step(&gradients));
        // Exact AdamW moves it by 0.0067 in all, published formats by 12 at once. No step is beyond rate times
        // K = 7.27, and a first moment falls by beta1 every update: 1e-3 * 7.27 / (1 - 0.9) = 0.073 in
        // all. Two bits without a zero leave a random walk.
        let (moved, drift) = if format.starts_with("ustate") { (0.1, 0.1) } else { (0.073, 1e-3) };
        assert!(at_300.abs() < moved, "{format}: moved by {at_300}");
        assert!((run.parameters[77] - at_300).abs() < drift, "{format} drifts");
    }
}

/// Stored v is right on average, so a block of equal ones follows its gradients; what is left is their spread. With u
/// for v over the true one, of mean 1, a coordinate moves 1 / sqrt(u) times as far as it should: by convexity more
/// than 1 on average, `1 + 3/8 Var(u)` to second order, and at most `cosh(R / 2) / cosh(R / 4)` where ln u spans R evenly
/// about 0, since no distribution of mean 1 lies above the chord. That, and the first moments' share, is all of the error, which
/// the test takes from what is stored. How far elements spread depends on K: with 2 bits Var(u) was 0.32 at most, 0.17 after 1000
/// updates, R = 1.4, so 6% too far on average of 20% possible; with 4 bits 0.03, and 1%.
#[test]
fn constant_gradients_do_not_freeze_v() {
    for format in MENDED {
        for size in [1e-4, 1e-2] {
            let mut run = Run::new(format, 4096, |_| {});
            let gradients = vec![size; 4096];
            // Over all updates: 1 / sqrt(u), on average.
            let mut gain = 0.0;
            for update in 1..=1000 {
                run.step(&gradients);
                let v = run.optimizer.moments(0).unwrap().v;
                let true_v = f64::from(size).powi(2) * (1.0 - 0.999f64.powi(update));
                let u = v.iter().map(|&v| f64::from(v) / true_v);
                gain += u.clone().map(|u| 1.0 / u.sqrt()).sum::<f64>() / 4096.0 / 1000.0;
                let mean = u.clone().sum::<f64>() / 4096.0;
                assert!((mean - 1.0).abs() < 0.05, "{format} at {size}: {mean} of v at {update}");
                // What never lies further below, for any draws: see docs/formats.md.
                if format.starts_with("ustate1q") {
                    let least = 0.001 / (2f64.powi(-6).exp() - 0.999) * 0.9999;
                    let found = u.fold(f64::INFINITY, f64::min);
                    assert!(found >= least, "{format} at {size}: {found} of v at {update}");
                }
            }
            let mean = run.parameters.iter().map(|&p| f64::from(p)).sum::<f64>() / 4096.0;
            // Exact AdamW moves by -1, but for eps. First moments fall short by some hundredths in the first ten
            // updates, where none can be longer than an exact one, and that is all.
            assert!((mean + gain).abs() < 0.03, "{format} at {size}: moved by {mean}, not {gain}");
            let gain_max = if format.contains("v_bits=2") { 1.12 } else { 1.03 };
            assert!((0.98..gain_max).contains(&gain), "{format} at {size}: {gain}");
        }
    }
}

#[test]
fn heavy_tails_do_not_diverge() {
    for format in MENDED {
        let run_of = |format: &str| {
            let mut run = Run::new(format, 5000, |_| {});
            for update in 0..300 {
                let tails = normal(5000, 1000 + update, 2.0);
                let mut gradients = normal(5000, update, 1e-3);
                gradients.iter_mut().zip(tails).for_each(|(g, tail)| *g *= tail.exp());
                run.step(&gradients);
            }
            rms(&run.parameters)
        };
        let (found, exact) = (run_of(format), run_of("fp32"));
        assert!(found < 3.0 * exact, "{format} moved by {found}, fp32 by {exact}");
    }
}

#[test]
fn one_bad_number_changes_nothing_else() {
    for format in MENDED {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut runs = [0, 1].map(|_| Run::new(format, 8192, |_| {}));
            for update in 0..20 {
                let gradients = normal(8192, update, 1e-3);
                let mut spoilt = gradients.clone();
                if update == 4 {
                    spoilt[1000] = bad;
                }
                runs[0].step(&gradients);
                runs[1].step(&spoilt);
            }
            let [good, spoilt] = runs.map(|run| run.parameters);
            assert!(spoilt.iter().all(|p| p.is_finite()), "{format}");
            // The bad number's block has another absmax or mean, and the tensor another scale.
            let far = |(index, (a, b)): &(usize, (&f32, &f32))| {
                *index != 1000 && (**a - **b).abs() > 2e-2
            };
            assert_eq!(good.iter().zip(&spoilt).enumerate().find(far), None, "{format}");
        }
    }
}

#[test]
fn small_tensors_are_f32() {
    for format in Format::ALL.into_iter().filter(|format| format.lanes().is_none()) {
        let groups = [Group { format, ..Group::default() }];
        let optimizer =
            CpuAdamW::new(&specs(&[(4095, 0), (4096, 0)]), &groups, Options::default()).unwrap();
        let names: Vec<String> =
            optimizer.save().unwrap().arrays.iter().map(|array| array.name.clone()).collect();
        assert_eq!(names[..2], ["t0.m", "t0.v"]);
        assert!(!names.contains(&"t1.v".to_owned()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// No step is longer than the longest that exact AdamW could take, whatever the gradients.
    #[test]
    fn no_step_is_longer_than_an_exact_one_could_be(
        format in prop::sample::select(MENDED.to_vec()),
        seed in any::<u64>(),
        betas in prop::sample::select(vec![[0.9, 0.999], [0.9, 0.95], [0.5, 0.9], [0.0, 0.99]]),
        log_sizes in prop::collection::vec(-9.0..3.0f32, 12),
        gaps in any::<u64>(),
    ) {
        let mut run = Run::new(format, 700, |group| group.betas = betas);
        for (update, log_size) in (1..).zip(log_sizes) {
            let mut gradients = noise(700, seed.wrapping_add(update as u64), 10f32.powf(log_size));
            for (index, g) in gradients.iter_mut().enumerate() {
                if gaps >> ((index + update as usize) % 64) & 1 == 1 {
                    *g = 0.0;
                }
            }
            let before = run.parameters.clone();
            run.step(&gradients);
            let bound = longest_step(&run.group, update) * 1e-3 * (1.0 + 1e-5);
            for (index, (before, after)) in before.iter().zip(&run.parameters).enumerate() {
                let step = f64::from((after - before).abs());
                // The parameter itself is rounded.
                let rounding = f64::from(after.abs().max(before.abs())) * 1.2e-7;
                prop_assert!(
                    step <= bound + rounding,
                    "{} update {}: element {} moved by {}, at most {}", format, update, index, step, bound
                );
            }
        }
    }
}
