//! A line through noisy points, on the processor, with four bytes of state a parameter.
//!
//! `cargo run -p optimizer --example regression`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use optimizer::{AdamW as _, CpuAdamW, Error, Group, Options, TensorSpec};

/// The line that the points lie around.
const SLOPE: f32 = 2.0;
const OFFSET: f32 = -1.0;

fn main() -> Result<(), Error> {
    let tensors = ["slope", "offset"].map(|name| TensorSpec::new(name, 1, 0));
    let groups = [Group { weight_decay: 0.0, ..Group::default() }];
    let mut adamw = CpuAdamW::new(&tensors, &groups, Options::default())?;

    let points: Vec<(f32, f32)> = (0..100)
        .map(|index| (index as f32 / 50.0 - 1.0, if index % 2 == 0 { 0.1 } else { -0.1 }))
        .map(|(x, noise)| (x, SLOPE * x + OFFSET + noise))
        .collect();
    let mut parameters = vec![0.0, 0.0];
    for update in 1..=400 {
        // The gradient of the mean of (slope x + offset - y)^2 / 2.
        let mut gradients = vec![0.0, 0.0];
        for (x, y) in &points {
            let error = parameters[0] * x + parameters[1] - y;
            gradients[0] += error * x / points.len() as f32;
            gradients[1] += error / points.len() as f32;
        }
        adamw.set_update(update, &[0.03])?;
        adamw.step(&mut parameters, &gradients)?;
        if update % 100 == 0 {
            println!("update {update}: y = {:.3} x + {:.3}", parameters[0], parameters[1]);
        }
    }
    println!("{} bytes of state", adamw.state_bytes());
    assert!((parameters[0] - SLOPE).abs() < 0.05 && (parameters[1] - OFFSET).abs() < 0.05);
    Ok(())
}
