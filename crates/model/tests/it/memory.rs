//! Memory is planned once: the plan lists what is taken, and a step takes nothing more.

use allocation_counter::measure;
use model::ops::{Embedding, EmbeddingShape, Gelu, LayerNorm, LayerNormShape};
use model::{Batch, Cpu, Decoder, Gpt, Layout, Plan, Purpose};

use crate::samples::{self, Samples};

/// A pool whose one thread is the caller's, where allocations are counted.
fn on_this_thread<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let run = || {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
            let pool = pool.build().unwrap();
            pool.install(run)
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn the_plan_is_what_is_taken() {
    on_this_thread(|| {
        let config = samples::config([300, 40, 32, 3, 4]);
        let batch = Batch { rows: 4, time: 40 };
        for purpose in [Purpose::Training, Purpose::TrainingRecomputed, Purpose::Evaluation] {
            let plan = Plan::new(&Cpu::<f32>::new(), config, batch, purpose).unwrap();
            let mut gpt = None;
            let taken = measure(|| {
                gpt = Some(Gpt::new(Cpu::<f32>::new(), config, batch, purpose).unwrap());
            });
            // Beside the buffers: slot names, ranges and the vectors of layers, a few kilobytes.
            let beside = taken.bytes_current as u64 - plan.buffer_bytes();
            assert!(beside < 16_000, "{beside} bytes beside {}", plan.buffer_bytes());
            let gradients = if purpose.is_training() { plan.parameter_bytes } else { 0 };
            assert_eq!(plan.gradient_bytes, gradients);
            assert_eq!(plan.parameter_bytes, 4 * config.parameters() as u64);
            assert_eq!(
                plan.total_bytes(),
                plan.parameter_bytes + plan.gradient_bytes + plan.buffer_bytes()
            );
        }
    });
}

#[test]
fn a_plan_names_its_buffers() {
    let config = samples::config([300, 40, 32, 2, 4]);
    let batch = Batch { rows: 4, time: 40 };
    let plan = Plan::new(&Cpu::<f64>::new(), config, batch, Purpose::Training).unwrap();
    let buffer = |name: &str| plan.buffers.iter().find(|buffer| buffer.name == name).unwrap();
    assert_eq!(buffer("h.1.mlp.c_fc").elements, 160 * 4 * 32);
    assert_eq!(buffer("h.1.mlp.c_fc").bytes, 8 * 160 * 4 * 32);
    assert_eq!(buffer("residual.4").elements, 160 * 32);
    assert_eq!(buffer("tokens").bytes, 4 * 160);
    let names: std::collections::HashSet<_> =
        plan.buffers.iter().map(|buffer| &buffer.name).collect();
    assert_eq!(names.len(), plan.buffers.len());
}

/// The crate `gemm` packs its inputs into memory of its own, taken and given back at every product.
/// Nothing else may take memory in a step. Here every activation has 2 MiB or more, so that one
/// taken by the step would show in its peak, which the packing of a tile stays below.
#[test]
fn a_step_takes_no_memory_beyond_the_packing_of_products() {
    on_this_thread(|| {
        let config = samples::config([500, 128, 64, 2, 4]);
        let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
        let mut gradients = parameters.clone();
        let mut gpt = samples::gpt::<f32>(config, 64, 128);
        let mut samples = Samples::new(1);
        let (tokens, targets) = (samples.ids(64 * 128, 500), samples.ids(64 * 128, 500));
        let mut step = |accumulate| {
            measure(|| {
                gpt.upload(&tokens, &targets, 1.0).unwrap();
                gpt.forward_backward(&parameters, &mut gradients, accumulate).unwrap();
                gpt.loss().unwrap();
            })
        };
        step(false);
        let (second, third) = (step(true), step(true));
        assert_eq!(second, third);
        assert_eq!(second.bytes_current, 0);
        assert_eq!(second.count_current, 0);
        assert!(second.bytes_max < 2 << 20, "a peak of {} bytes", second.bytes_max);
    });
}

#[test]
fn operations_without_products_take_no_memory() {
    on_this_thread(|| {
        let cpu = Cpu::<f32>::new();
        let mut samples = Samples::new(1);
        let (x, table) = (samples.vector(90 * 16, 1.0), samples.vector::<f32>(10 * 16, 1.0));
        let (tokens, gain_bias) = (samples.ids(90, 10), samples.vector::<f32>(32, 1.0));
        let (mut out, mut statistics) = (x.clone(), vec![0.0; 180]);
        let taken = measure(|| {
            let shape =
                EmbeddingShape { batch: 9, time: 10, channels: 16, vocabulary: 10, context: 10 };
            cpu.embedding_forward(&mut out, &tokens, &table, &table, shape).unwrap();
            let shape = LayerNormShape { rows: 90, channels: 16 };
            cpu.layernorm_forward(&mut out, &mut statistics, &x, &gain_bias, shape).unwrap();
            cpu.gelu_forward(&mut out, &x, 90 * 16).unwrap();
            cpu.gelu_backward(&mut out, &x, 90 * 16).unwrap();
        });
        assert_eq!(taken.count_total, 0);
    });
}

#[test]
fn a_decoder_step_gives_back_all_it_takes() {
    on_this_thread(|| {
        let config = samples::config([300, 40, 32, 3, 4]);
        let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
        let mut decoder = Decoder::new(Cpu::<f32>::new(), config).unwrap();
        decoder.step(&parameters, 1).unwrap();
        let taken = measure(|| {
            decoder.step(&parameters, 2).unwrap();
        });
        assert_eq!(taken.bytes_current, 0);
    });
}

/// The sizes that docs/models.md tells.
#[test]
fn reference_12m_takes_what_the_docs_say() {
    let config = samples::config([12096, 1152, 320, 6, 5]);
    let batch = Batch { rows: 1, time: 1152 };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        for (purpose, megabytes) in [(Purpose::Training, 179), (Purpose::Evaluation, 50)] {
            let plan = Plan::new(&Cpu::<f32>::new(), config, batch, purpose).unwrap();
            assert_eq!((plan.buffer_bytes() + 500_000) / 1_000_000, megabytes);
        }
    });
}
