//! Tensors that lie apart, instead of one flat buffer.

use formats::Format;
use optimizer::{AdamW, CpuAdamW, Error, Options};

use crate::pair::{group, noise, specs};

#[test]
fn slices_give_the_bits_of_a_flat_buffer() {
    let lengths = [20_000usize, 0, 1, 333];
    let tensors = specs(&lengths.map(|length| (length, 0)));
    for format in Format::ALL {
        let options = Options { clip_norm: Some(0.1), ..Options::default() };
        let mut flat = CpuAdamW::new(&tensors, &[group(format)], options).unwrap();
        let mut apart = flat.clone();
        let mut parameters = noise(20_334, 7, 1.0);
        let mut pieces = Vec::new();
        let mut rest = &parameters[..];
        for length in lengths {
            let (piece, later) = rest.split_at(length);
            pieces.push(piece.to_vec());
            rest = later;
        }
        for update in 1..=3 {
            let gradients = noise(20_334, update, 1e-2);
            flat.set_update(update, &[1e-3]).unwrap();
            flat.step(&mut parameters, &gradients).unwrap();

            let (mut rest, mut gradient_slices) = (&gradients[..], Vec::new());
            for length in lengths {
                let (slice, later) = rest.split_at(length);
                gradient_slices.push(slice);
                rest = later;
            }
            let mut parameter_slices: Vec<&mut [f32]> =
                pieces.iter_mut().map(|piece| &mut piece[..]).collect();
            apart.set_update(update, &[1e-3]).unwrap();
            apart.step_slices(&mut parameter_slices, &gradient_slices).unwrap();
            assert_eq!(apart.report(), flat.report());
            assert_eq!(pieces.concat(), parameters);
            assert_eq!(apart.save(), flat.save());
        }
    }
}

#[test]
fn slices_of_the_wrong_number_or_length_are_refused() {
    let tensors = specs(&[(2, 0), (3, 0)]);
    let mut optimizer = CpuAdamW::new(&tensors, &[group(Format::E4)], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    let (mut a, mut b) = ([0.0; 2], [0.0; 2]);
    let error = optimizer.step_slices(&mut [&mut a], &[&[0.0; 2], &[0.0; 3]]).unwrap_err();
    assert_eq!(error, Error::SliceCount { buffer: "parameters", expected: 2, found: 1 });
    let error = optimizer.step_slices(&mut [&mut a, &mut b], &[&[0.0; 2], &[0.0; 3]]).unwrap_err();
    assert_eq!(error.to_string(), "parameters of tensor \"t1\": expected 3 elements, found 2");
    let mut b = [0.0; 3];
    let error = optimizer.step_slices(&mut [&mut a, &mut b], &[&[0.0; 2], &[0.0; 4]]).unwrap_err();
    assert_eq!(error.to_string(), "gradients of tensor \"t1\": expected 3 elements, found 4");
}
