//! Parameters in halves on the device.

use formats::RandomStream;
use formats::split::Split;
use gpu_kernels::SplitKernels;

use crate::emulator::device;

#[test]
fn halves_are_those_of_the_codec_and_come_back() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let stream = RandomStream::new(5, 0, 0, 0);
    let special = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x7F7F_FFFF, 0x7F80_0000, 0xFFFF_FFFF];
    let random = (0..device.size(1 << 22, 1 << 16) as u32).map(|i| stream.word(i));
    let bits: Vec<u32> = special.into_iter().chain(random).collect();
    let numbers: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
    let kernels = SplitKernels::new(&gpu).unwrap();
    let from = gpu.upload(&numbers).unwrap();
    let mut upper = gpu.zeros::<u16>(bits.len()).unwrap();
    let mut remainders = gpu.zeros::<u16>(bits.len()).unwrap();
    kernels.split(&from, &mut upper, &mut remainders).unwrap();
    let found = upper.to_vec().unwrap().into_iter().zip(remainders.to_vec().unwrap());
    let expected = numbers.iter().map(|&number| Split::of(number));
    assert!(expected.map(|half| (half.upper, half.remainder)).eq(found));
    let mut back = gpu.zeros::<f32>(bits.len()).unwrap();
    kernels.recombine(&upper, &remainders, &mut back).unwrap();
    assert!(back.to_vec().unwrap().iter().map(|number| number.to_bits()).eq(bits));
    let mut short = gpu.zeros::<u16>(3).unwrap();
    let error = kernels.split(&from, &mut short, &mut remainders).unwrap_err();
    assert!(error.to_string().starts_with("upper halves: expected"), "{error}");
}
