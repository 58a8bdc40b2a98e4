//! Buffers, views, pinned memory, events and recordings.

use std::thread;

use gpu_kernels::{Error, Event, Pinned, Precision, Products};

use crate::emulator::device;

#[test]
fn elements_come_back() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let numbers: Vec<u32> = (0..10_000).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
    let mut buffer = gpu.upload(&numbers).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), numbers);
    assert_eq!(buffer.view().part(17..9_000).to_vec().unwrap(), numbers[17..9_000]);
    buffer.view_mut().part(1..3).upload(&[7, 8]).unwrap();
    assert_eq!(buffer.view().part(0..4).to_vec().unwrap(), [numbers[0], 7, 8, numbers[3]]);
    let mut other = gpu.zeros(10_000).unwrap();
    assert!(other.to_vec().unwrap().iter().all(|&word: &u32| word == 0));
    other.copy_from(&buffer).unwrap();
    assert_eq!(other.to_vec().unwrap(), buffer.to_vec().unwrap());
    buffer.fill_zero().unwrap();
    assert!(buffer.to_vec().unwrap().iter().all(|&word| word == 0));
    let empty = gpu.upload::<f32>(&[]).unwrap();
    assert_eq!(empty.to_vec().unwrap(), []);
}

#[test]
fn other_lengths_are_refused() {
    let Some(device) = device() else { return };
    let mut buffer = device.gpu().zeros::<f32>(3).unwrap();
    let error = buffer.upload(&[1.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "an upload: expected 3 elements, found 4");
    let error = buffer.download(&mut [1.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "a download: expected 3 elements, found 2");
}

#[test]
#[should_panic(expected = "the part 2..5 of 4 elements")]
fn a_part_beyond_the_end_is_a_mistake() {
    let Some(device) = device() else { panic!("the part 2..5 of 4 elements") };
    let buffer = device.gpu().zeros::<f32>(4).unwrap();
    let _ = buffer.view().part(2..5);
}

#[test]
fn more_memory_than_there_is() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let elements = gpu.facts().memory_bytes as usize / 4 + 1;
    let error = gpu.zeros::<f32>(elements).unwrap_err();
    let Error::OutOfMemory { needed_bytes, free_bytes, total_bytes, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(needed_bytes, 4 * elements as u64);
    assert!(free_bytes < needed_bytes && free_bytes <= total_bytes);
    assert!(error.to_string().contains("make it at most"), "{error}");
    let error = gpu.zeros::<f32>(usize::MAX / 2).unwrap_err();
    assert_eq!(error.to_string(), "expected a buffer to fit the address space, found more");
}

#[test]
fn pinned_memory_waits_for_its_copies() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut buffer = gpu.zeros::<u32>(1 << 20).unwrap();
    let mut pinned = Pinned::<u32>::zeros(&gpu, 1 << 20).unwrap();
    let mut back = Pinned::<u32>::zeros(&gpu, 1 << 10).unwrap();
    for round in 1..5 {
        pinned.write().unwrap().fill(round);
        pinned.queue_upload(&mut buffer).unwrap();
        back.queue_download(&buffer).unwrap();
        pinned.write().unwrap().fill(99);
        assert!(back.read().unwrap().iter().all(|&word| word == round));
        assert!(back.is_ready().unwrap());
    }
    let mut short = gpu.zeros::<u32>(3).unwrap();
    let error = pinned.queue_upload(&mut short).unwrap_err();
    assert_eq!(error.to_string(), "a copy: expected 1048576 elements, found 3");
}

#[test]
fn recorded_work_is_replayed() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut from = gpu.upload(&[1.0f32, 2.0]).unwrap();
    let mut to = gpu.zeros::<f32>(2).unwrap();
    let graph = gpu.record(|| to.copy_from(&from)).unwrap();
    assert_eq!(to.to_vec().unwrap(), [0.0, 0.0], "recorded, not done");
    for numbers in [[3.0, 4.0], [5.0, 6.0]] {
        from.upload(&numbers).unwrap();
        graph.replay().unwrap();
        assert_eq!(to.to_vec().unwrap(), numbers);
    }
}

/// Closing cuBLASLt waits for the whole device, which a recording elsewhere would not survive.
#[test]
fn recordings_survive_what_other_threads_do() {
    let Some(device) = device() else { return };
    let rounds = device.size(100, 1);
    let work = || {
        let gpu = device.gpu();
        for round in 0..rounds {
            let from = gpu.upload(&[round as f32]).unwrap();
            let mut to = gpu.zeros::<f32>(1).unwrap();
            let products = Products::new(&gpu, Precision::Bf16);
            let graph = gpu.record(|| (0..100).try_for_each(|_| to.copy_from(&from))).unwrap();
            drop(products);
            graph.replay().unwrap();
            assert_eq!(to.to_vec().unwrap(), [round as f32]);
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(work);
        }
    });
}

#[test]
fn what_waits_or_allocates_is_not_recorded() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut buffer = gpu.zeros::<f32>(2).unwrap();
    let error = gpu.record(|| buffer.upload(&[1.0, 2.0])).err().unwrap();
    let message =
        "copying from host memory: expected it outside of a recording, found one under way";
    assert_eq!(error.to_string(), message);
    let error = gpu.record(|| gpu.zeros::<f32>(5).map(drop)).err().unwrap();
    assert_eq!(error, Error::Recording { operation: "allocating device memory" });
    // The stream works again.
    buffer.upload(&[1.0, 2.0]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1.0, 2.0]);
}

#[test]
fn time_passes_between_events() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut buffer = gpu.zeros::<u8>(32 << 20).unwrap();
    let ms = gpu.elapsed_ms(|| buffer.fill_zero()).unwrap();
    assert!(ms > 0.0 && ms < 10_000.0, "{ms}");
    let event = Event::new(&gpu).unwrap();
    assert!(event.is_reached().unwrap(), "not recorded yet");
    event.record(&gpu).unwrap();
    event.wait().unwrap();
    assert!(event.is_reached().unwrap());
}

#[test]
fn a_device_says_what_it_is() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let facts = gpu.facts();
    assert!(facts.compute_capability >= (8, 0) && facts.multiprocessors > 0, "{facts:?}");
    assert!(gpu.free_bytes().unwrap() <= facts.memory_bytes);
    assert!(facts.architecture().starts_with("sm_"));
    let devices = gpu_kernels::Gpu::count().unwrap();
    let error = gpu_kernels::Gpu::open(devices).unwrap_err();
    let message = format!("expected a CUDA device below {devices}, found {devices}");
    assert_eq!(error.to_string(), message);
}
