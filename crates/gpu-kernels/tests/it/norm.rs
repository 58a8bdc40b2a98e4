//! The gradient norm by its tree: the same bits as the authority's.

use formats::Format;
use gpu_kernels::GradientType;

use crate::emulator::device;
use crate::pair::{Setup, noise};

#[test]
fn chunks_of_every_length_and_alignment() {
    let Some(device) = device() else { return };
    let lengths = [16_384, 3, 16_385, 0, 1023, 40_000, 1, 1024, 2, 32_768, 5, 16_383];
    for gradients in GradientType::ALL {
        let mut setup = Setup::of(Format::Fp32, &lengths);
        setup.groups[0].kind.gradients = gradients;
        let mut pair = setup.build(&device.gpu());
        for (update, largest) in (1..).zip([1.0, 1e19, 1e-22]) {
            let outcome = pair.step(update, &noise(setup.elements(), update, largest));
            assert!(outcome.gradient_norm > 0.0);
        }
    }
}

#[test]
fn more_chunks_than_lanes() {
    let Some(device) = device() else { return };
    // Many tensors have a chunk each, or a few have many.
    let lengths = if device.is_emulated { vec![3; 2500] } else { vec![17_000_000, 3, 20_000] };
    let mut setup = Setup::of(Format::E4, &lengths);
    setup.options.clip_norm = Some(1e-3);
    let mut pair = setup.build(&device.gpu());
    pair.step(1, &noise(setup.elements(), 1, 1.0));
    pair.step(2, &noise(setup.elements(), 2, 1.0));
    let sums = pair.fused.chunk_sums().unwrap().unwrap();
    let chunks: usize = lengths.iter().map(|length| length.div_ceil(16_384)).sum();
    assert_eq!(sums.len(), chunks);
}

#[test]
fn a_norm_nobody_wants_is_not_measured() {
    let Some(device) = device() else { return };
    let mut setup = Setup::of(Format::E4, &[5000]);
    setup.options.measures_norm = false;
    let mut pair = setup.build(&device.gpu());
    pair.step(1, &noise(5000, 1, 1.0));
    assert_eq!(pair.fused.chunk_sums().unwrap(), None);
}

#[test]
fn pieces_have_the_bits_of_a_whole_step() {
    let Some(device) = device() else { return };
    let lengths = [40_000, 16_384, 3, 0, 1023, 33_000, 1, 1024, 16_385, 5];
    for (format, bias) in [(Format::E4, None), (Format::E4, Some(16)), (Format::Fp16, None)] {
        let mut setup = Setup::of(format, &lengths);
        setup.groups[0].bias = bias;
        setup.options.clip_norm = Some(1.0);
        setup.options.holds_nonfinite = true;
        let gpu = device.gpu();
        let mut pair = setup.build(&gpu);
        for update in 1..4 {
            pair.prepare(update, &noise(setup.elements(), update, 1.0));
            pair.queue_step_in_pieces(&gpu, &[2..5, 5..8, 8..10]);
            pair.compare(update);
            pair.step(update + 10, &noise(setup.elements(), update + 10, 1.0));
        }
    }
}
