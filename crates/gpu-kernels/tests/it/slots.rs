//! Several updates in one recording, with copies of the parameters: the bits of one update after the other.

use gpu_kernels::{
    Buffer, Error, FusedAdamW, Gpu, Gradients, Kind, Outcome, ParameterType, ParametersMut,
    UPDATES_AT_ONCE, bf16,
};

use crate::emulator::device;
use crate::pair::{Setup, noise};

const LENGTHS: [usize; 8] = [700, 3, 1024, 0, 2051, 7, 33_000, 16];

/// A model on the device, with copies of its parameters.
struct Copied {
    fused: FusedAdamW,
    parameters: Buffer<f32>,
    copies: Buffer<u16>,
}

impl Copied {
    fn new(gpu: &Gpu, setup: &Setup) -> Copied {
        let parameters = noise(setup.elements(), 5, 1.0);
        let copies: Vec<u16> = parameters.iter().map(|&parameter| bf16(parameter)).collect();
        let (mut fused, copies) = (setup.build(gpu).fused, gpu.upload(&copies).unwrap());
        fused.set_copies(Some(copies.shared(0..copies.len()))).unwrap();
        Copied { fused, parameters: gpu.upload(&parameters).unwrap(), copies }
    }

    /// Parameters and states, bit by bit, after a look at the copies.
    #[track_caller]
    fn bits(&self) -> Vec<u32> {
        let parameters = self.parameters.to_vec().unwrap();
        let copies: Vec<u16> = parameters.iter().map(|&parameter| bf16(parameter)).collect();
        assert!(self.copies.to_vec().unwrap() == copies, "the copies are not the parameters'");
        let states = LENGTHS.iter().enumerate().filter(|&(_, &length)| length > 0);
        let words = states.flat_map(|(tensor, _)| self.fused.state(tensor, 0).unwrap());
        parameters.iter().map(|parameter| parameter.to_bits()).chain(words).collect()
    }

    fn queue_step(&mut self, gradients: &Buffer<f32>, loss: &Buffer<f64>) -> Result<(), Error> {
        let (parameters, gradients) =
            (ParametersMut::F32(&mut self.parameters), Gradients::F32(gradients));
        self.fused.step_watching(parameters, gradients, Some(loss))
    }
}

/// What is wrong with the gradients and the loss of an update.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Gradient,
    Loss,
}

/// Outcomes in words, since NaN is not equal to itself.
fn words(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().map(|outcome| format!("{outcome:?}")).collect()
}

#[track_caller]
fn check(gpu: &Gpu, setup: &Setup, wrong: [Wrong; 3]) {
    let gradients: Vec<Buffer<f32>> = (1..=3)
        .zip(wrong)
        .map(|(update, wrong)| {
            let mut gradients = noise(setup.elements(), update, 1e-1);
            if wrong == Wrong::Gradient {
                gradients[1800] = f32::NAN;
            }
            gpu.upload(&gradients).unwrap()
        })
        .collect();
    let losses: Vec<Buffer<f64>> = wrong
        .iter()
        .map(|&wrong| gpu.upload(&[if wrong == Wrong::Loss { f64::NAN } else { 3.0 }]).unwrap())
        .collect();

    let mut alone = Copied::new(gpu, setup);
    let mut expected = Vec::new();
    for update in 1..=6 {
        let (keys, scalars) = setup.scalars(update);
        let (gradients, loss) =
            (&gradients[(update as usize - 1) % 3], &losses[(update as usize - 1) % 3]);
        alone.fused.set_update(update, keys, scalars.into_iter()).unwrap();
        alone.queue_step(gradients, loss).unwrap();
        expected.push(alone.fused.outcome().unwrap());
    }

    let mut together = Copied::new(gpu, setup);
    let graph = gpu.record(|| {
        for (slot, (gradients, loss)) in gradients.iter().zip(&losses).enumerate() {
            together.fused.select(slot);
            together.queue_step(gradients, loss)?;
        }
        Ok::<(), Error>(())
    });
    let graph = graph.unwrap();
    for first in [1, 4] {
        let updates = (first..first + 3).map(|update| {
            let (keys, scalars) = setup.scalars(update);
            (update, keys, scalars.into_iter())
        });
        let updates: Vec<_> = updates.collect();
        together.fused.set_updates(updates.into_iter()).unwrap();
        graph.replay().unwrap();
        together.fused.queue_outcomes().unwrap();
    }
    let mut found = Vec::new();
    while let Some(outcomes) = together.fused.take_outcomes(true).unwrap() {
        assert_eq!(outcomes.len(), 3);
        found.extend(outcomes);
    }
    assert_eq!(words(&found), words(&expected));
    assert_eq!(together.fused.update_number().unwrap(), 6);
    assert!(together.bits() == alone.bits(), "other bits in {}", setup.groups[0].kind.format);
}

#[test]
fn updates_recorded_together_have_the_bits_of_single_ones() {
    let Some(device) = device() else { return };
    for format in Kind::FORMATS {
        let mut setup = Setup::of(format, &LENGTHS);
        setup.groups[0].bias = None;
        setup.options.clip_norm = Some(0.7);
        check(&device.gpu(), &setup, [Wrong::Nothing; 3]);
        for wrong in [Wrong::Gradient, Wrong::Loss] {
            setup.options.holds_nonfinite = true;
            check(&device.gpu(), &setup, [Wrong::Nothing, wrong, Wrong::Nothing]);
            (setup.options.holds_nonfinite, setup.options.skips_nonfinite) = (false, true);
            check(&device.gpu(), &setup, [Wrong::Nothing, wrong, Wrong::Nothing]);
            setup.options.skips_nonfinite = false;
        }
    }
}

#[test]
fn copies_are_of_f32_parameters_and_as_many() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut setup = Setup::of(Kind::FORMATS[2], &[10]);
    let mut fused = setup.build(&gpu).fused;
    assert!(matches!(fused.set_copies(Some(gpu.zeros(9).unwrap())), Err(Error::Length { .. })));
    setup.groups[0].kind.parameters = ParameterType::Split;
    let mut fused = setup.build(&gpu).fused;
    let refused = fused.set_copies(Some(gpu.zeros(10).unwrap()));
    assert!(matches!(refused, Err(Error::OtherType { .. })));
}

#[test]
#[should_panic(expected = "9 updates at once")]
fn more_updates_than_slots_are_refused() {
    assert_eq!(UPDATES_AT_ONCE, 8);
    let Some(device) = device() else { panic!("9 updates at once are refused by a device") };
    let setup = Setup::of(Kind::FORMATS[2], &[10]);
    let mut fused = setup.build(&device.gpu()).fused;
    let updates = (1..10).map(|update| (update, setup.scalars(update)));
    let updates = updates.map(|(update, (keys, scalars))| (update, keys, scalars.into_iter()));
    fused.set_updates(updates.collect::<Vec<_>>().into_iter()).unwrap();
}
