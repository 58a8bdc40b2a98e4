//! A step over device memory that somebody else allocated, by its address alone. Needs a CUDA device.
//!
//! `cargo run -p optimizer --features cuda --example raw_pointer`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use gpu_kernels::{Gpu, GradientType, ParameterType, Placement, TensorPlace};
use optimizer::{AdamW as _, CudaAdamW, CudaSettings, Error, Group, Options, TensorSpec};

const LENGTH: usize = 1000;

#[expect(unsafe_code, reason = "whoever hands over addresses vouches for them")]
fn main() -> Result<(), Error> {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(missing) => {
            println!("skipped: {missing}");
            return Ok(());
        }
    };
    // Stands for the memory of another library: all that is used of it below is two addresses.
    let parameters = gpu.upload(&vec![1.0_f32; LENGTH])?;
    let gradients = gpu.upload(&vec![0.5_f32; LENGTH])?;

    let tensors = [TensorSpec::new("weight", LENGTH, 0)];
    let settings = CudaSettings { is_placed: true, ..CudaSettings::default() };
    let mut adamw = CudaAdamW::with_settings(
        &gpu,
        &tensors,
        &[Group::default()],
        Options::default(),
        &settings,
    )?;
    let place = TensorPlace {
        parameters: parameters.address(),
        remainders: 0,
        gradients: gradients.address(),
        length: LENGTH,
        parameter_type: ParameterType::F32,
        gradient_type: GradientType::F32,
    };
    // SAFETY: 1. Both buffers are memory of this device, as long as said, and live to the end of this
    // function. 2. Nothing else uses them before the report below, which waits for the step.
    let placement = unsafe { Placement::new(vec![place]) }?;
    adamw.set_update(1, &[0.1])?;
    adamw.step_placed(&placement)?;
    assert_eq!(adamw.report()?.nonfinite, 0);
    let after = parameters.to_vec()?;
    println!("1 became {}", after[0]);
    assert!(
        after.iter().all(|&parameter| parameter.to_bits() == after[0].to_bits() && parameter < 1.0)
    );
    Ok(())
}
