//! Updates that begin on the device, over places that move, on streams and in recordings: the bits of the CPU path.

#![expect(unsafe_code, reason = "vouches for the buffers of these tests")]

use formats::Format;
use gpu_kernels::{
    Buffer, DeviceRate, Gpu, GradientType, Kind, LearningRate, ParameterType, Placement,
    TensorPlace,
};
use optimizer::{AdamW as _, CpuAdamW, CudaAdamW, CudaSettings, Error, Group, Options, TensorSpec};

use crate::emulator::device;
use crate::pair::{group, noise, specs};

const LENGTHS: [usize; 3] = [1500, 5000, 33];

/// An optimizer over the parts of two buffers.
struct Placed {
    adamw: CudaAdamW,
    parameters: Buffer<f32>,
    gradients: Buffer<f32>,
    tensors: Vec<TensorSpec>,
}

impl Placed {
    fn new(gpu: &Gpu, groups: &[Group], options: Options) -> Placed {
        let tensors = specs(&LENGTHS.map(|length| (length, length % groups.len())));
        let settings = CudaSettings { is_placed: true, ..CudaSettings::default() };
        let adamw = CudaAdamW::with_settings(gpu, &tensors, groups, options, &settings).unwrap();
        let elements = LENGTHS.iter().sum();
        let parameters = gpu.upload(&noise(elements, 1, 1.0)).unwrap();
        let gradients = gpu.upload(&noise(elements, 2, 1e-2)).unwrap();
        Placed { adamw, parameters, gradients, tensors }
    }

    /// Where everything lies, with gradients from this buffer.
    fn placement(&self, gradients: &Buffer<f32>) -> Placement {
        let mut start = 0;
        let place = |&length: &usize| {
            let offset = 4 * start as u64;
            start += length;
            TensorPlace {
                parameters: self.parameters.address() + offset,
                remainders: 0,
                gradients: gradients.address() + offset,
                length,
                parameter_type: ParameterType::F32,
                gradient_type: GradientType::F32,
            }
        };
        // SAFETY: 1. and 2. the buffers live as long as the tests that step, which use them in order.
        unsafe { Placement::new(LENGTHS.iter().map(place).collect()) }.unwrap()
    }

    fn begin(&mut self, rates: &[LearningRate]) {
        self.adamw.begin_update(rates).unwrap();
    }
}

fn every_format() -> Vec<Group> {
    Kind::FORMATS.map(|format| Group { weight_decay: 0.1, ..group(format) }).to_vec()
}

#[test]
fn updates_begun_on_the_device_have_the_scalars_of_the_host() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for groups in every_format().chunks(3) {
        let options = Options { clip_norm: Some(0.5), seed: 1 << 40 | 7, ..Options::default() };
        let mut placed = Placed::new(&gpu, groups, options);
        let mut cpu = CpuAdamW::new(&placed.tensors, groups, options).unwrap();
        let mut expected = placed.parameters.to_vec().unwrap();
        let gradients = placed.gradients.to_vec().unwrap();
        let placement = placed.placement(&placed.gradients);
        for update in 1..30 {
            let rates: Vec<f64> = groups.iter().map(|_| 1e-2 / update as f64).collect();
            cpu.set_update(update, &rates).unwrap();
            cpu.step(&mut expected, &gradients).unwrap();
            placed.begin(&rates.iter().map(|&rate| LearningRate::Value(rate)).collect::<Vec<_>>());
            placed.adamw.step_placed(&placement).unwrap();
        }
        assert!(placed.parameters.to_vec().unwrap() == expected);
        assert!(placed.adamw.save().unwrap() == cpu.save().unwrap());
        assert_eq!(placed.adamw.report().unwrap(), cpu.report().unwrap());
    }
}

#[test]
fn far_updates_and_groups_that_change() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    // More groups than one launch of the begin takes.
    let groups: Vec<Group> = (0..40)
        .map(|k| Group { betas: [0.0 + 0.02 * f64::from(k), 0.999], ..group(Format::Fp32) })
        .collect();
    let mut placed = Placed::new(&gpu, &groups, Options::default());
    let mut cpu = CpuAdamW::new(&placed.tensors, &groups, Options::default()).unwrap();
    let mut expected = placed.parameters.to_vec().unwrap();
    let gradients = placed.gradients.to_vec().unwrap();
    let placement = placed.placement(&placed.gradients);
    for far in [1, 1_000_000, (1 << 33) + 5] {
        cpu.set_update(far, &[1e-3; 40]).unwrap();
        let mut saved = cpu.save().unwrap();
        saved.metadata.insert("optimizer.update".to_owned(), (far - 1).to_string());
        placed.adamw.load(&saved).unwrap();
        for (position, own) in groups.iter().enumerate() {
            let changed = Group { betas: [0.5, 0.9], eps: 1e-6, ..*own };
            cpu.set_group(position, changed).unwrap();
            placed.adamw.set_group(position, changed).unwrap();
        }
        cpu.set_update(far, &[1e-3; 40]).unwrap();
        cpu.step(&mut expected, &gradients).unwrap();
        placed.begin(&[LearningRate::Value(1e-3); 40]);
        placed.adamw.step_placed(&placement).unwrap();
        assert!(placed.parameters.to_vec().unwrap() == expected, "update {far}");
        for (position, own) in groups.iter().enumerate() {
            cpu.set_group(position, *own).unwrap();
            placed.adamw.set_group(position, *own).unwrap();
        }
    }
    let other = group(Format::E4);
    let changed = placed.adamw.set_group(3, other).unwrap_err();
    assert!(matches!(changed, Error::FormatChanged { group: 3, .. }), "{changed}");
    let beyond = placed.adamw.set_group(40, other).unwrap_err();
    assert_eq!(beyond.to_string(), "expected a group position below 40, found 40");
}

#[test]
fn every_replay_is_another_update_wherever_gradients_lie() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    for clip_norm in [None, Some(0.1)] {
        let groups = [group(Format::E4s)];
        let options = Options { clip_norm, ..Options::default() };
        let mut placed = Placed::new(&gpu, &groups, options);
        let mut cpu = CpuAdamW::new(&placed.tensors, &groups, options).unwrap();
        let mut expected = placed.parameters.to_vec().unwrap();
        // Work goes on on a stream as another library would have it.
        let home = gpu.fork().unwrap();
        // SAFETY: the stream belongs to this device and lives as long as the test.
        let foreign = unsafe { home.on_stream(home.stream_address()) };
        placed.adamw.set_stream(&foreign).unwrap();
        placed.adamw.prepare_begin_update().unwrap();
        let mut rate = gpu.upload(&[1e-2_f32]).unwrap();
        let eager = placed.placement(&placed.gradients);
        let other = gpu.upload(&noise(expected.len(), 5, 1e-1)).unwrap();
        let recorded = placed.placement(&other);
        let first = placed.gradients.to_vec().unwrap();
        let second = other.to_vec().unwrap();
        // SAFETY: 1. and 2. the buffer outlives the work of this test, which waits before it writes.
        let rates = [LearningRate::InMemory(unsafe { DeviceRate::at(rate.address()) })];

        let mut number = 0;
        let mut cpu_step = |expected: &mut Vec<f32>, gradients: &Vec<f32>, rate: f32| {
            number += 1;
            cpu.set_update(number, &[f64::from(rate)]).unwrap();
            cpu.step(expected, gradients).unwrap();
        };
        placed.begin(&rates);
        placed.adamw.step_placed(&eager).unwrap();
        cpu_step(&mut expected, &first, 1e-2);
        let graph = foreign
            .record(|| {
                placed.begin(&rates);
                placed.adamw.step_placed(&recorded)
            })
            .unwrap();
        for new_rate in [3e-3_f32, 2e-3] {
            foreign.synchronize().unwrap();
            rate.upload(&[new_rate]).unwrap();
            graph.replay().unwrap();
            cpu_step(&mut expected, &second, new_rate);
        }
        // Eager again, over the first places: a replay has left others in the table.
        placed.begin(&rates);
        placed.adamw.step_placed(&eager).unwrap();
        cpu_step(&mut expected, &first, 2e-3);
        foreign.synchronize().unwrap();
        assert!(placed.parameters.to_vec().unwrap() == expected, "clip {clip_norm:?}");
        assert!(placed.adamw.save().unwrap() == cpu.save().unwrap());
    }
}

#[test]
fn places_that_move_after_a_change_of_streams_wait_for_the_steps_before() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let groups = [group(Format::E4)];
    // The norm finds gradients by the table in memory.
    let options = Options { clip_norm: Some(0.1), ..Options::default() };
    let mut placed = Placed::new(&gpu, &groups, options);
    let mut cpu = CpuAdamW::new(&placed.tensors, &groups, options).unwrap();
    let mut expected = placed.parameters.to_vec().unwrap();
    let other = gpu.upload(&noise(expected.len(), 5, 1e-1)).unwrap();
    let placements = [placed.placement(&placed.gradients), placed.placement(&other)];
    let gradients = [placed.gradients.to_vec().unwrap(), other.to_vec().unwrap()];
    let foreign = gpu.fork().unwrap();
    placed.adamw.set_stream(&foreign).unwrap();
    placed.adamw.prepare_begin_update().unwrap();
    // Enough to do for all steps to be queued before the first begins.
    let length = device.size(1 << 26, 1);
    let mut busy =
        CudaAdamW::new(&foreign, &specs(&[(length, 0)]), &groups, Options::default()).unwrap();
    let mut others = foreign.zeros(length).unwrap();
    let zeros = foreign.zeros(length).unwrap();
    busy.set_next_update().unwrap();
    for _ in 0..device.size(100, 1) {
        busy.step(&mut others, &zeros).unwrap();
    }
    for update in 1..=4 {
        placed.begin(&[LearningRate::Value(1e-2)]);
        placed.adamw.step_placed(&placements[update % 2]).unwrap();
        cpu.set_update(update as u64, &[1e-2]).unwrap();
        cpu.step(&mut expected, &gradients[update % 2]).unwrap();
    }
    foreign.synchronize().unwrap();
    assert!(placed.parameters.to_vec().unwrap() == expected);
    assert!(placed.adamw.save().unwrap() == cpu.save().unwrap());
}
