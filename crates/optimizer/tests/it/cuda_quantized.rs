//! `quantized_adamw_step` on a device: the bits of the CPU, and its refusals.

use formats::dynamic_map::{signed, unsigned};
use formats::half_floats::bf16_nearest;
use formats::{Format, Maps};
use gpu_kernels::Gpu;
use optimizer::bench::{Plan, Size, run_cuda_quantized};
use optimizer::{CudaQuantizedAdamW, CudaQuantizedMoment, QuantizedMoment, quantized_adamw_step};

use crate::emulator::device;
use crate::pair::{group, noise};

fn halves(numbers: &[f32]) -> Vec<u16> {
    numbers.iter().map(|&x| bf16_nearest(x)).collect()
}

/// Some updates on both, from the same parameters.
#[track_caller]
fn check(gpu: &Gpu, maps: &Maps, block: usize, elements: usize, largest: f32) {
    let mut settings = group(Format::Fp32);
    settings.weight_decay = 0.1;
    let blocks = elements.div_ceil(block);
    let mut parameters = halves(&noise(elements, 1, 1.0));
    let (mut codes, mut absmax) =
        ([vec![127u8; elements], vec![0u8; elements]], [vec![0f32; blocks], vec![0f32; blocks]]);
    let kernel = CudaQuantizedAdamW::new(gpu, maps, block).unwrap();
    let mut device_parameters = gpu.upload(&parameters).unwrap();
    let mut device_codes = [gpu.upload(&codes[0]).unwrap(), gpu.upload(&codes[1]).unwrap()];
    let mut device_absmax = [gpu.upload(&absmax[0]).unwrap(), gpu.upload(&absmax[1]).unwrap()];
    for update in 1..=4 {
        let mut gradients = noise(elements, 10 + update, largest);
        for (index, g) in gradients.iter_mut().enumerate() {
            // Coordinates without gradients, and small ones beside large ones.
            *g *= match index % 7 {
                0 => 0.0,
                1 => 1e-12,
                _ => 1.0,
            };
        }
        let gradients = halves(&gradients);
        {
            let ([m_codes, v_codes], [m_absmax, v_absmax]) = (&mut codes, &mut absmax);
            let first = QuantizedMoment { codes: m_codes, absmax: m_absmax };
            let second = QuantizedMoment { codes: v_codes, absmax: v_absmax };
            let by = (maps, block);
            quantized_adamw_step(&mut parameters, &gradients, first, second, by, &settings, update)
                .unwrap();
        }
        let ([m_codes, v_codes], [m_absmax, v_absmax]) = (&mut device_codes, &mut device_absmax);
        let first = CudaQuantizedMoment { codes: m_codes, absmax: m_absmax };
        let second = CudaQuantizedMoment { codes: v_codes, absmax: v_absmax };
        let gradients = gpu.upload(&gradients).unwrap();
        kernel.step(&mut device_parameters, &gradients, first, second, &settings, update).unwrap();
        for half in 0..2 {
            assert_eq!(device_absmax[half].to_vec().unwrap(), absmax[half], "absmax {half}");
            assert_eq!(device_codes[half].to_vec().unwrap(), codes[half], "codes {half}");
        }
        assert_eq!(device_parameters.to_vec().unwrap(), parameters, "parameters");
    }
}

#[test]
fn it_has_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let maps = Maps::plain(&signed(), &unsigned()).unwrap();
    for block in [64, 256, 1024, 2048, 4096] {
        for elements in [1, 7, 300, 2048, 9_001] {
            check(&gpu, &maps, block, elements, 1e-2);
        }
    }
    check(&gpu, &maps, 2048, device.size(1 << 24, 70_000), 1e-3);
    for largest in [1e-30, 1e4, 1e15] {
        check(&gpu, &maps, 256, 5_000, largest);
    }
}

#[test]
fn it_is_measured() {
    let Some(device) = device() else { return };
    let elements = device.size(1 << 28, 5_000);
    let size = Size { name: "one".to_owned(), tensor_lengths: vec![elements] };
    let repeats = device.size(20, 1);
    let plan = Plan { sizes: vec![size], formats: vec![], warm_up: 1, repeats };
    let rows = run_cuda_quantized(&plan, &device.gpu(), 2048).unwrap();
    assert_eq!(rows.iter().map(|row| row.mode).collect::<Vec<_>>(), ["eager", "graph"]);
    for row in rows {
        println!("{} {} ms, {:.1}% of a copy", row.mode, row.ms_median, 100.0 * row.share_of_copy);
        assert_eq!((row.parameter_type, row.gradient_type), ("bf16", "bf16"));
        let blocks = elements.div_ceil(2048) as f64;
        let bytes = 10.0 + 16.0 * blocks / elements as f64;
        assert!((row.bytes_per_parameter - bytes).abs() < 1e-9);
        assert!(row.ms_median > 0.0);
    }
}

#[test]
fn other_maps_have_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    let even: Vec<f32> = (0..256).map(|i| (i as f32 - 127.0) / 128.0).collect();
    let dense: Vec<f32> = (0..256).map(|i| 0.5 + i as f32 * 2f32.powi(-20)).collect();
    let squares: Vec<f32> = (0..256).map(|i| (i as f32 / 255.0).powi(2)).collect();
    for (first, second) in [(&even, &squares), (&dense, &dense)] {
        let maps = Maps::plain(first, second).unwrap();
        check(&device.gpu(), &maps, 256, 3_000, 1e-2);
    }
}

#[test]
fn bad_input_is_refused() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let maps = Maps::plain(&signed(), &unsigned()).unwrap();
    let error = CudaQuantizedAdamW::new(&gpu, &maps, 100).err().unwrap().to_string();
    assert_eq!(error, "expected blocks of a power of two from 64 to 4096 elements, found 100");
    let kernel = CudaQuantizedAdamW::new(&gpu, &maps, 256).unwrap();
    let (mut parameters, gradients) = (gpu.zeros(300).unwrap(), gpu.zeros(300).unwrap());
    let mut refused = |codes: usize, absmax: usize, update: u64| {
        let (mut m, mut v) = (gpu.zeros(codes).unwrap(), gpu.zeros(300).unwrap());
        let (mut a, mut b) = (gpu.zeros(absmax).unwrap(), gpu.zeros(2).unwrap());
        let first = CudaQuantizedMoment { codes: &mut m, absmax: &mut a };
        let second = CudaQuantizedMoment { codes: &mut v, absmax: &mut b };
        let settings = group(Format::Fp32);
        let refusal = kernel.step(&mut parameters, &gradients, first, second, &settings, update);
        refusal.unwrap_err().to_string()
    };
    assert!(
        refused(299, 2, 1).contains("expected 300 elements, found 299"),
        "{}",
        refused(299, 2, 1)
    );
    assert!(refused(300, 3, 1).contains("expected 2 elements, found 3"), "{}", refused(300, 3, 1));
    assert_eq!(refused(300, 2, 0), "expected an update number from 1, found 0");
}
