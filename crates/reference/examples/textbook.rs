//! The textbook's update in f64 beside the pinned one in f32, over a few updates.
//!
//! `cargo run -p reference --example textbook`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use reference::adamw::{update_f32, update_f64};
use reference::{Hyperparameters, Parameter, Scalars};

fn main() {
    let hyperparameters = Hyperparameters {
        learning_rate: 1e-2,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    let mut exact = Parameter { p: 1.0_f64, m: 0.0, v: 0.0 };
    let mut pinned = Parameter { p: 1.0_f32, m: 0.0, v: 0.0 };
    for update in 1..=5 {
        let gradient = 0.1 * update as f64 - 0.25;
        exact = update_f64(hyperparameters, update, exact, gradient);
        let scalars = Scalars::at(hyperparameters, update);
        pinned = update_f32(scalars, pinned, gradient as f32);
        println!("update {update}: {:.9} in f64, {:.9} in f32", exact.p, pinned.p);
    }
    assert!((exact.p - f64::from(pinned.p)).abs() < 1e-6);
}
