//! The CUDA path: the bits of the CPU path, the contract, and every refusal. On a GPU, or on
//! the emulated device.

use formats::Format;
use gpu_kernels::{
    Buffer, Error as DeviceError, Gpu, GradientType, Gradients, Kind, ParameterType, ParametersMut,
    Placement, TensorPlace,
};
use optimizer::bench::{Plan, Size, Variant, run_cuda, run_cuda_variants};
use optimizer::{
    AdamW, BiasChoice, CpuAdamW, CudaAdamW, CudaSettings, Error, Group, Location, OnNonfinite,
    Options, QueuedAdamW, SavedState, TensorTypes, check,
};

use crate::emulator::device;
use crate::pair::{group, noise, specs};

#[test]
fn every_check_finds_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    let rows = check::run_cuda(&device.gpu(), device.size(1 << 20, 70_000)).unwrap();
    for format in Kind::FORMATS {
        assert!(rows.iter().filter(|row| row.format == format).count() >= 8);
    }
    for row in rows {
        assert!(row.elements > 0);
        assert_eq!(row.differing, 0, "{row:?}");
    }
}

/// Any pair of maps has the bits of the CPU: dense ones, whose thresholds share cells, and wide ones.
#[test]
fn maps_of_a_caller_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(5_000, 0), (300, 0)]);
    let even: Vec<f32> = (0..256).map(|i| (i as f32 - 127.0) / 128.0).collect();
    let dense: Vec<f32> = (0..256).map(|i| 0.5 + i as f32 * 2f32.powi(-20)).collect();
    let squares: Vec<f32> = (0..256).map(|i| (i as f32 / 255.0).powi(2)).collect();
    let powers: Vec<f32> = (0..256).map(|i| 2f32.powf((i as f32 - 255.0) / 8.0)).collect();
    for (first, second) in [(&even, &squares), (&dense, &powers), (&even, &dense)] {
        for format in ["block8:min=0", "block8-original:min=0,block=2048"] {
            let groups = [group(format.parse().unwrap())];
            let cpu = CpuAdamW::new(&tensors, &groups, Options::default()).unwrap();
            let cuda = CudaAdamW::new(&gpu, &tensors, &groups, Options::default()).unwrap();
            let mut cpu = cpu.with_maps(first, second).unwrap();
            let mut cuda = cuda.with_maps(first, second).unwrap();
            let mut parameters = noise(5_300, 1, 1.0);
            let mut device_parameters = gpu.upload(&parameters).unwrap();
            for update in 0..4 {
                let gradients = noise(5_300, 10 + update, 1e-2);
                cpu.set_next_update().unwrap();
                cpu.step(&mut parameters, &gradients).unwrap();
                cuda.set_next_update().unwrap();
                cuda.step(&mut device_parameters, &gpu.upload(&gradients).unwrap()).unwrap();
            }
            assert_eq!(device_parameters.to_vec().unwrap(), parameters, "{format}");
            assert_eq!(cuda.save().unwrap().arrays, cpu.save().unwrap().arrays, "{format}");
        }
    }
    let cuda = CudaAdamW::new(&gpu, &tensors, &[group(Format::E4)], Options::default()).unwrap();
    assert!(cuda.with_maps(&even, &even[1..]).is_err());
}

#[test]
fn a_report_names_tensor_and_index() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(3, 0), (0, 0), (2000, 0), (17, 0)]);
    for on_nonfinite in [OnNonfinite::Stop, OnNonfinite::Skip] {
        let options = Options { on_nonfinite, ..Options::default() };
        let mut optimizer = CudaAdamW::new(&gpu, &tensors, &[group(Format::E4)], options).unwrap();
        let mut parameters = gpu.upload(&noise(2020, 1, 1.0)).unwrap();
        let mut gradients = noise(2020, 2, 1e-2);
        gradients[2003] = f32::NAN;
        gradients[2010] = f32::INFINITY;
        let gradients = gpu.upload(&gradients).unwrap();
        optimizer.set_update(7, &[1e-3]).unwrap();
        optimizer.step(&mut parameters, &gradients).unwrap();
        let report = optimizer.report().unwrap();
        assert_eq!((report.update, report.nonfinite), (7, 2));
        assert_eq!(report.first_nonfinite, Some(Location { tensor: 3, index: 0 }));
        assert_eq!(report.skipped, on_nonfinite == OnNonfinite::Skip);
        optimizer.queue_report().unwrap();
        gpu.synchronize().unwrap();
        assert_eq!(optimizer.take_report(true).unwrap(), Some(report));
        assert_eq!(optimizer.take_report(true).unwrap(), None);
    }
}

/// What drops an update drops it as on the CPU: parameters, moments and reports, also of what was queued
/// behind it, eager and replayed.
#[test]
fn dropped_updates_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(3, 0), (20_000, 0), (17, 0)]);
    // What each update has: a place that is not finite, a gradient that is too large, the loss.
    let updates = [
        (None, None, 3.0),
        (None, None, f64::NAN),
        (Some(16_390), None, 3.0),
        (None, Some(7), 3.0),
    ];
    for format in Format::ALL {
        for on_nonfinite in [OnNonfinite::Skip, OnNonfinite::Hold] {
            for first in 0..updates.len() {
                let options = Options { on_nonfinite, ..Options::default() };
                let groups = [Group { bias: BiasChoice::Auto, ..group(format) }];
                let mut cpu = CpuAdamW::new(&tensors, &groups, options).unwrap();
                let mut cuda = CudaAdamW::new(&gpu, &tensors, &groups, options).unwrap();
                let mut parameters = noise(20_020, 1, 1.0);
                let mut device_parameters = gpu.upload(&parameters).unwrap();
                let mut device_gradients = gpu.zeros(20_020).unwrap();
                let mut device_loss = gpu.zeros(1).unwrap();
                let mut graph = None;
                for (update, (bad, large, loss)) in (1..).zip([updates[first], updates[0]]) {
                    let mut gradients = noise(20_020, update, 1e-2);
                    bad.into_iter().for_each(|place: usize| gradients[place] = f32::INFINITY);
                    large.into_iter().for_each(|place: usize| gradients[place] = 1e20);
                    device_gradients.upload(&gradients).unwrap();
                    device_loss.upload(&[loss]).unwrap();
                    cpu.set_next_update().unwrap();
                    cpu.step_watching(&mut parameters, &gradients, &loss).unwrap();
                    cuda.set_next_update().unwrap();
                    let graph = graph.get_or_insert_with(|| {
                        let step = || {
                            let parameters = &mut device_parameters;
                            cuda.step_watching(parameters, &device_gradients, &device_loss)
                        };
                        gpu.record(step).unwrap()
                    });
                    graph.replay().unwrap();
                    assert_eq!(cuda.report().unwrap(), cpu.report().unwrap(), "{format} {first}");
                    let found = device_parameters.to_vec().unwrap();
                    assert_eq!(reference::first_difference(&found, &parameters), None);
                }
                assert_eq!(cuda.save().unwrap().arrays, cpu.save().unwrap().arrays);
            }
        }
    }
}

/// What is asked for is the state as it is then, whatever is stepped meanwhile; also while another one is not taken yet.
fn saved_later_is_saved_now(
    gpu: &Gpu,
    cuda: &mut CudaAdamW,
    parameters: &mut Buffer<f32>,
    saved: &SavedState<'static>,
) {
    let [before, again] = [(); 2].map(|()| cuda.save_later().unwrap());
    let mut other =
        CudaAdamW::new(gpu, cuda.tensors(), &[group(Format::E4s); 3], Options::default()).unwrap();
    let later = other.save_later().unwrap();
    other.set_next_update().unwrap();
    other.step(parameters, &gpu.upload(&noise(parameters.len(), 9, 1e-2)).unwrap()).unwrap();
    assert!(later().unwrap().arrays.iter().all(|array| array.bytes.iter().all(|&byte| byte == 0)));
    let after = std::thread::spawn(move || before().unwrap()).join().unwrap();
    assert_eq!(&after, saved);
    assert_eq!(&again().unwrap(), saved);
}

#[test]
fn moments_biases_and_norms_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(20_000, 0), (7, 1), (0, 0), (300, 2)]);
    let groups = [
        Group { bias: BiasChoice::Auto, ..group(Format::E4s) },
        group(Format::Fp32),
        group(Format::Fp16),
    ];
    let options = Options { clip_norm: Some(1.0), ..Options::default() };
    let mut cpu = CpuAdamW::new(&tensors, &groups, options).unwrap();
    let mut cuda = CudaAdamW::new(&gpu, &tensors, &groups, options).unwrap();
    let mut parameters = noise(20_307, 1, 1.0);
    let mut device_parameters = gpu.upload(&parameters).unwrap();
    assert_eq!(cuda.tensors(), &tensors[..]);
    assert_eq!(cuda.state_bytes(), cpu.state_bytes());
    assert_eq!(cuda.bias(0).unwrap(), None);
    for update in 1..4 {
        let gradients = noise(20_307, update, 1e-2);
        cpu.set_next_update().unwrap();
        cpu.step(&mut parameters, &gradients).unwrap();
        cuda.set_next_update().unwrap();
        cuda.step(&mut device_parameters, &gpu.upload(&gradients).unwrap()).unwrap();
    }
    let saved = cpu.save().unwrap().into_owned();
    assert_eq!(cuda.save().unwrap(), saved);
    saved_later_is_saved_now(&gpu, &mut cuda, &mut device_parameters, &saved);
    for position in 0..4 {
        assert_eq!(cuda.moments(position).unwrap(), cpu.moments(position).unwrap());
        assert_eq!(cuda.bias(position).unwrap(), cpu.bias(position));
    }
    let norms: Vec<f64> = cpu.tensor_gradient_norms().collect();
    assert_eq!(cuda.tensor_gradient_norms().unwrap(), norms);
    let error = cuda.moments(4).unwrap_err();
    assert_eq!(error.to_string(), "expected a tensor position below 4, found 4");
    assert_eq!(cuda.bias(4).unwrap(), None);
}

/// Of gradients that stay, second moments come to lie beside the levels of their grids, on either side and at them.
#[test]
fn moments_beside_levels_have_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let elements = device.size(300_000, 3_000);
    for name in ["ustate1q", "ustate1q-original", "n4l4", "block8"] {
        let format: Format = name.parse().unwrap();
        let groups = [Group { betas: [0.9, 0.999], ..group(format) }];
        let tensors = specs(&[(elements, 0)]);
        let mut cpu = CpuAdamW::new(&tensors, &groups, Options::default()).unwrap();
        let mut cuda = CudaAdamW::new(&gpu, &tensors, &groups, Options::default()).unwrap();
        let mut parameters = noise(elements, 1, 1.0);
        let mut device_parameters = gpu.upload(&parameters).unwrap();
        // Roots of the second moments of a block are within two powers of ten, as those of a network's rows.
        let gradients: Vec<f32> = noise(elements, 2, 1.0)
            .iter()
            .map(|g| g.signum() * (0.01 + g.abs().min(1.0)) * 1e-3)
            .collect();
        let device_gradients = gpu.upload(&gradients).unwrap();
        for _ in 0..device.size(300, 40) {
            cpu.set_next_update().unwrap();
            cpu.step(&mut parameters, &gradients).unwrap();
            cuda.set_next_update().unwrap();
            cuda.step(&mut device_parameters, &device_gradients).unwrap();
        }
        assert!(device_parameters.to_vec().unwrap() == parameters, "{name}");
        assert!(cuda.save().unwrap() == cpu.save().unwrap(), "{name}");
    }
}

#[test]
fn what_the_cpu_refuses_is_refused_in_the_same_words() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let (tensors, options) = (specs(&[(2, 0), (3, 0)]), Options::default());
    let bad = Group { eps: 0.0, ..group(Format::E4) };
    let cpu = CpuAdamW::new(&tensors, &[bad], options).unwrap_err();
    assert_eq!(CudaAdamW::new(&gpu, &tensors, &[bad], options).unwrap_err(), cpu);

    let mut optimizer = CudaAdamW::new(&gpu, &tensors, &[group(Format::E4)], options).unwrap();
    let mut parameters = gpu.zeros(5).unwrap();
    let gradients = gpu.zeros(5).unwrap();
    assert_eq!(optimizer.step(&mut parameters, &gradients), Err(Error::NoUpdateSet));
    assert_eq!(optimizer.report(), Err(Error::NoStepTaken));
    assert_eq!(optimizer.queue_report(), Err(Error::NoStepTaken));
    assert_eq!(optimizer.set_update(0, &[0.1]), Err(Error::UpdateZero));
    optimizer.set_next_update().unwrap();
    let error = optimizer.step(&mut gpu.zeros(4).unwrap(), &gradients).unwrap_err();
    assert_eq!(error.to_string(), "parameters: expected 5 elements, found 4");
    let error = optimizer.step(&mut parameters, &gpu.zeros(6).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "gradients: expected 5 elements, found 6");
    assert_eq!(optimizer.report(), Err(Error::NoStepTaken), "nothing was done");

    let other = CpuAdamW::new(&tensors, &[group(Format::E4s)], options).unwrap();
    let before = optimizer.save().unwrap().into_owned();
    let error = optimizer.load(&other.save().unwrap()).unwrap_err();
    assert!(error.to_string().contains("expected t0.format \"e4\", found \"e4s\""), "{error}");
    assert_eq!(optimizer.save().unwrap(), before);
}

#[test]
fn a_model_that_does_not_fit_says_by_how_much() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let elements = gpu.facts().memory_bytes as usize / 4 + 1000;
    let tensors = specs(&[(elements, 0)]);
    let error = CudaAdamW::new(&gpu, &tensors, &[group(Format::E4)], Options::default());
    let Error::Device(DeviceError::OutOfMemory { needed_bytes, .. }) = error.unwrap_err() else {
        panic!("memory for {elements} elements");
    };
    assert_eq!(needed_bytes, elements as u64 * 4);
}

#[test]
fn a_step_must_wait_for_the_next_update() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(100, 0)]);
    let mut optimizer =
        CudaAdamW::new(&gpu, &tensors, &[group(Format::E4)], Options::default()).unwrap();
    let mut parameters = gpu.zeros(100).unwrap();
    let gradients = gpu.upload(&noise(100, 1, 1.0)).unwrap();
    optimizer.set_next_update().unwrap();
    optimizer.step(&mut parameters, &gradients).unwrap();
    let saved = optimizer.save().unwrap().into_owned();
    optimizer.load(&saved).unwrap();
    assert_eq!(optimizer.step(&mut parameters, &gradients), Err(Error::NoUpdateSet));
    assert_eq!(optimizer.report(), Err(Error::NoStepTaken));
    optimizer.set_next_update().unwrap();
    optimizer.step(&mut parameters, &gradients).unwrap();
    assert_eq!(optimizer.report().unwrap().update, 2);
}

#[test]
fn an_update_allocates_nothing() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&(0..40).map(|i| (i * 397, i % Kind::FORMATS.len())).collect::<Vec<_>>());
    let elements = tensors.iter().map(|tensor| tensor.length).sum();
    let groups = Kind::FORMATS.map(|format| Group { bias: BiasChoice::Auto, ..group(format) });
    let on_nonfinite = OnNonfinite::Skip;
    let options = Options { clip_norm: Some(1.0), on_nonfinite, seed: 1 };
    let mut optimizer = CudaAdamW::new(&gpu, &tensors, &groups, options).unwrap();
    let mut parameters = gpu.upload(&noise(elements, 2, 1.0)).unwrap();
    let gradients = gpu.upload(&noise(elements, 1, 1.0)).unwrap();
    let mut update = |number| {
        optimizer.set_update(number, &[1e-3; Kind::FORMATS.len()]).unwrap();
        optimizer.step(&mut parameters, &gradients).unwrap();
        optimizer.queue_report().unwrap();
        optimizer.take_report(true).unwrap();
        optimizer.report().unwrap();
    };
    update(1);
    // On the device a step can allocate nothing, since it can be recorded; on the host:
    let counted = allocation_counter::measure(|| (2..9).for_each(&mut update));
    assert_eq!(counted.count_total, 0);
}

#[test]
fn other_types_and_places() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let tensors = specs(&[(1500, 0), (33, 0)]);
    let groups = [group(Format::E4)];
    // bf16 numbers in f32, so that both kinds of gradients mean the same.
    let gradients: Vec<f32> =
        noise(1533, 3, 1e-2).iter().map(|g| f32::from_bits(g.to_bits() & 0xFFFF_0000)).collect();
    let bits: Vec<u16> = gradients.iter().map(|g| (g.to_bits() >> 16) as u16).collect();
    let mut cpu = CpuAdamW::new(&tensors, &groups, Options::default()).unwrap();
    let mut expected = noise(1533, 1, 1.0);
    cpu.set_next_update().unwrap();

    let types = TensorTypes { parameters: ParameterType::F32, gradients: GradientType::Bf16 };
    let mut settings = CudaSettings { types: vec![types; 2], ..CudaSettings::default() };
    let new = |settings: &CudaSettings| {
        CudaAdamW::with_settings(&gpu, &tensors, &groups, Options::default(), settings)
    };
    let mut flat = new(&settings).unwrap();
    let mut parameters = gpu.upload(&expected).unwrap();
    let device_gradients = gpu.upload(&bits).unwrap();
    flat.set_next_update().unwrap();
    flat.step_any(ParametersMut::F32(&mut parameters), Gradients::Bf16(&device_gradients)).unwrap();

    settings.is_placed = true;
    let mut placed = new(&settings).unwrap();
    let apart = gpu.upload(&expected).unwrap();
    let place = |start: u64, length| TensorPlace {
        parameters: apart.address() + 4 * start,
        remainders: 0,
        gradients: device_gradients.address() + 2 * start,
        length,
        parameter_type: types.parameters,
        gradient_type: types.gradients,
    };
    // SAFETY: 1. and 2. both buffers live to the end of this test, and nothing else uses them.
    #[expect(unsafe_code, reason = "vouches for the buffers above")]
    let placement = unsafe { Placement::new(vec![place(0, 1500), place(1500, 33)]) }.unwrap();
    placed.set_next_update().unwrap();
    placed.step_placed(&placement).unwrap();

    cpu.step(&mut expected, &gradients).unwrap();
    assert_eq!(parameters.to_vec().unwrap(), expected);
    assert_eq!(apart.to_vec().unwrap(), expected);
    assert_eq!(flat.save().unwrap(), cpu.save().unwrap());
    assert_eq!(placed.save().unwrap(), cpu.save().unwrap());
    assert_eq!(placed.report().unwrap(), cpu.report().unwrap());

    settings.types.pop();
    let error = new(&settings).unwrap_err();
    assert_eq!(error.to_string(), "types: expected 2 slices, one per tensor, found 1");
}

#[test]
fn measurements_add_up() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let size = Size { name: "tiny".to_owned(), tensor_lengths: vec![20_000, 0, 5] };
    let formats = vec![Format::Fp32, Format::E4];
    let plan = Plan { sizes: vec![size], formats, warm_up: 1, repeats: 3 };
    let rows = run_cuda(&plan, &gpu).unwrap();
    let modes: Vec<_> = rows.iter().map(|row| (row.format, row.mode)).collect();
    let expected = [
        (Format::Fp32, "eager"),
        (Format::Fp32, "graph"),
        (Format::E4, "eager"),
        (Format::E4, "graph"),
    ];
    assert_eq!(modes, expected);
    for row in &rows {
        assert_eq!((row.device, row.size.as_str(), row.tensors), ("cuda", "tiny", 3));
        let state = row.format.bits_per_parameter() / 8.0;
        assert_eq!(row.bytes_per_parameter, 12.0 + 2.0 * state);
        assert!(row.ms_min <= row.ms_median && row.ms_median <= row.ms_max && row.ms_min > 0.0);
        assert_eq!(row.share_of_copy, row.gb_per_s / row.copy_gb_per_s);
    }
    let variants = Variant::all();
    let some = [variants[0].clone(), variants[variants.len() - 1].clone()];
    let rows = run_cuda_variants(&plan, &gpu, &some).unwrap();
    let names: Vec<_> = rows.iter().map(|row| row.variant.as_str()).collect();
    assert_eq!(names, ["argument, 128 threads", "skipping", "argument, 128 threads", "skipping"]);
}

/// Trainers move optimizers between threads.
#[test]
fn optimizers_can_be_sent() {
    fn is_send<T: Send>() {}
    is_send::<CudaAdamW>();
    is_send::<Gpu>();
}
