//! How long attention takes on a GPU, by graph replays: printed, not judged. Nothing on an emulated device.

use gpu_kernels::{Activations, Attention, AttentionShape, Buffer, Error, Gpu, Precision};

use crate::emulator::device;

/// Shapes that matter, each with the calls of a recording.
const SHAPES: [(&str, [usize; 4], usize); 2] =
    [("reference-12m", [1, 1152, 5, 64], 24), ("gpt2-124m", [32, 1024, 12, 64], 6)];
const REPLAYS: usize = 11;

#[test]
fn times_of_both_passes() {
    let Some(device) = device() else { return };
    if device.is_emulated {
        return;
    }
    for (name, [batch, time, heads, head_size], calls) in SHAPES {
        let shape = AttentionShape { batch, time, heads, head_size };
        for precision in Precision::ALL {
            let [forward_us, backward_us] =
                times_us(&device.gpu(), precision, shape, calls).unwrap();
            // Products of a causal half: two forward, five backward.
            let product = (batch * heads * time * time * head_size) as f64;
            let tflops = |products: f64, us: f64| products * product / us * 1e-6;
            println!(
                "{name} {precision}: forward {forward_us:.2} us ({:.1} TFLOP/s), backward \
                 {backward_us:.2} us ({:.1} TFLOP/s)",
                tflops(2.0, forward_us),
                tflops(5.0, backward_us)
            );
        }
    }
}

/// Microseconds of a forward and of a backward pass: medians over replays of a recording of several.
fn times_us(
    gpu: &Gpu,
    precision: Precision,
    shape: AttentionShape,
    calls: usize,
) -> Result<[f64; 2], Error> {
    let length = shape.rows() * shape.channels();
    let numbers = |length: usize, factor: f32| -> Vec<f32> {
        (0..length)
            .map(|i| ((i as u32).wrapping_mul(2_654_435_761) as f32 / 2e9 - 1.0) * factor)
            .collect()
    };
    let attention = Attention::new(gpu, precision, shape)?;
    let qkv = Activations::of(gpu, precision, &numbers(3 * length, 1.0))?;
    let d_out = Activations::of(gpu, precision, &numbers(length, 1.0))?;
    let mut out = Activations::zeros(gpu, precision, length)?;
    let mut d_qkv = Activations::zeros(gpu, precision, 3 * length)?;
    let mut statistics: Buffer<f32> = gpu.zeros(2 * shape.rows() * shape.heads)?;
    let mut workspace = gpu.zeros(Attention::workspace_length(shape))?;
    let forward = gpu.record(|| {
        (0..calls)
            .try_for_each(|_| attention.forward(&mut out, &mut statistics, &qkv, &mut workspace))
    })?;
    let backward = gpu.record(|| {
        (0..calls).try_for_each(|_| {
            attention.backward(&mut d_qkv, &d_out, &out, &qkv, &statistics, &mut workspace)
        })
    })?;
    let mut medians = [0.0; 2];
    for (median, graph) in medians.iter_mut().zip([&forward, &backward]) {
        graph.replay()?;
        let mut times = Vec::new();
        for _ in 0..REPLAYS {
            times.push(gpu.elapsed_ms(|| graph.replay())? * 1e3 / calls as f64);
        }
        times.sort_by(f64::total_cmp);
        *median = times[REPLAYS / 2];
    }
    Ok(medians)
}
