//! Sums over ranks: one rank in a recording, and two where there are two devices.

use gpu_kernels::{Gpu, Nccl, nccl};

use crate::emulator::{device, skip};

/// A device, if NCCL is there too.
fn gpu() -> Option<Gpu> {
    let device = device().filter(|device| !device.is_emulated)?;
    match nccl::is_there() {
        Ok(()) => Some(device.gpu()),
        Err(error) => {
            assert!(std::env::var("REQUIRE_GPU").is_err(), "REQUIRE_GPU=1: {error}");
            skip(&error.to_string())
        }
    }
}

#[test]
fn one_rank_adds_up_in_a_recording() {
    let Some(gpu) = gpu() else { return };
    let ranks = Nccl::join(&gpu, nccl::unique_id().unwrap(), 0, 1).unwrap();
    let values: Vec<f32> = (0..100_000).map(|index| index as f32 * 0.5).collect();
    let mut floats = gpu.upload(&values).unwrap();
    let mut numbers = gpu.upload(&[0.5_f64, -3.0]).unwrap();
    let shared = floats.shared(10..20);
    assert_eq!(shared.to_vec().unwrap(), values[10..20]);
    let mut sums = || -> Result<(), gpu_kernels::Error> {
        ranks.gpu().wait_for(&gpu)?;
        ranks.all_reduce(&floats.view_mut().part(0..777))?;
        ranks.reduce(&mut floats.view_mut(), &[(0, 1_000..1_003), (0, 5_000..100_000)])?;
        ranks.share(&mut floats.view_mut(), &[(0, 0..50_000), (0, 50_000..100_000)])?;
        ranks.all_reduce_f64(&mut numbers)?;
        gpu.wait_for(ranks.gpu())
    };
    // Once as it is, which makes connections, and then recorded.
    sums().unwrap();
    let recording = gpu.record(&mut sums).unwrap();
    for _ in 0..3 {
        recording.replay().unwrap();
    }
    // One rank's sums are what it has.
    assert_eq!(floats.to_vec().unwrap(), values);
    assert_eq!(numbers.to_vec().unwrap(), [0.5, -3.0]);
    ranks.check().unwrap();
    // Aborted with its recording still there, which NCCL then waits for.
    ranks.abort();
    drop(recording);
    let refused = ranks.all_reduce_f64(&mut numbers).unwrap_err().to_string();
    assert!(refused.contains("another rank is gone"), "{refused}");
}

#[test]
fn two_ranks_add_up() {
    if gpu().is_none() || Gpu::count().unwrap_or(0) < 2 {
        return;
    }
    let id = nccl::unique_id().unwrap();
    let of = |rank: usize| -> Vec<f32> { (0..70_001).map(|i| (i * 3 + rank) as f32).collect() };
    let sum: Vec<f32> = of(0).iter().zip(&of(1)).map(|(one, other)| one + other).collect();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let sum = &sum;
            scope.spawn(move || {
                let gpu = Gpu::open(rank).unwrap();
                let ranks = Nccl::join(&gpu, id, rank, 2).unwrap();
                let own = of(rank);
                let mut values = ranks.gpu().upload(&own).unwrap();
                ranks.all_reduce(&values.view_mut()).unwrap();
                assert_eq!(&values.to_vec().unwrap(), sum);
                values.upload(&own).unwrap();
                // Parts of any length: summed on their owners, then given to all.
                let parts = [(1, 0..3), (0, 3..40_000), (1, 40_000..70_001)];
                ranks.reduce(&mut values.view_mut(), &parts).unwrap();
                let found = values.to_vec().unwrap();
                for (owner, part) in &parts {
                    if *owner == rank {
                        assert_eq!(found[part.clone()], sum[part.clone()]);
                    }
                }
                ranks.share(&mut values.view_mut(), &parts).unwrap();
                assert_eq!(&values.to_vec().unwrap(), sum);
                let mut numbers = ranks.gpu().upload(&[rank as f64 + 0.25]).unwrap();
                ranks.all_reduce_f64(&mut numbers).unwrap();
                assert_eq!(numbers.to_vec().unwrap(), [1.5]);
                assert!(!ranks.all_reduce_ms(1 << 20, 3).unwrap().is_empty());
            });
        }
    });
}
