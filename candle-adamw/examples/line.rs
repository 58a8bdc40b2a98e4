//! A line through points, with candle's tensors and packed moments.
//!
//! `cargo run --manifest-path candle-adamw/Cargo.toml --example line`

use candle_adamw::{Config, PackedAdamW};
use candle_core::{Device, Result, Tensor, Var};
use candle_nn::Optimizer as _;
use optimizer::Group;

fn main() -> Result<()> {
    let x = Tensor::arange(-1.0_f32, 1.0, &Device::Cpu)?;
    let x = Tensor::cat(&[&x, &(&x + 0.5)?], 0)?;
    let y = ((&x * 2.0)? - 1.0)?;
    let slope = Var::from_vec(vec![0.0_f32], 1, &Device::Cpu)?;
    let offset = Var::from_vec(vec![0.0_f32], 1, &Device::Cpu)?;
    let group = Group { learning_rate: 0.05, weight_decay: 0.0, ..Group::default() };
    let vars = vec![slope.clone(), offset.clone()];
    let mut adamw = PackedAdamW::new(vars, Config { group, ..Config::default() })?;
    for _ in 0..300 {
        let found = x.broadcast_mul(&slope)?.broadcast_add(&offset)?;
        adamw.backward_step(&(found - &y)?.sqr()?.mean_all()?)?;
    }
    let (slope, offset) = (slope.to_vec1::<f32>()?[0], offset.to_vec1::<f32>()?[0]);
    println!("y = {slope:.3} x + {offset:.3}, {} bytes of state", adamw.state_bytes());
    assert!((slope - 2.0).abs() < 0.1 && (offset + 1.0).abs() < 0.1);
    Ok(())
}
