//! One model twice: in the optimizer and in the authority, compared bit for bit.

use formats::published_random::Place;
use formats::{Format, RandomStream};
use optimizer::{
    AdamW, BiasChoice, CpuAdamW, Group, Instructions, OnNonfinite, Options, Report, SavedState,
    TensorSpec,
};
use reference::{Hyperparameters, Model, State, Tensor};

/// What both are made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Length and group of every tensor.
    pub tensors: Vec<(usize, usize)>,
    pub groups: Vec<Group>,
    pub options: Options,
}

pub struct Pair {
    pub optimizer: CpuAdamW,
    pub parameters: Vec<f32>,
    pub authority: Model,
    rates: Vec<f64>,
}

/// Rates of AdamW for language models, in `format`.
pub fn group(format: Format) -> Group {
    Group {
        learning_rate: 1e-2,
        betas: [0.9, 0.95],
        eps: 1e-8,
        weight_decay: 0.1,
        format,
        ..Group::default()
    }
}

pub fn specs(tensors: &[(usize, usize)]) -> Vec<TensorSpec> {
    let named = tensors.iter().enumerate();
    named.map(|(i, &(length, group))| TensorSpec::new(format!("t{i}"), length, group)).collect()
}

/// Numbers of both signs from 1e-12 to about `largest`, from a counter.
pub fn noise(count: usize, seed: u64, largest: f32) -> Vec<f32> {
    let stream = RandomStream::new(seed, 0, 0, 0);
    let number = |i: u32| {
        let (mantissa, exponent) = (stream.word(2 * i), stream.word(2 * i + 1));
        let scale = 10f32.powf(-12.0 * (exponent as f32 / u32::MAX as f32).powi(2));
        mantissa as i32 as f32 / 2f32.powi(31) * scale * largest
    };
    (0..count as u32).map(number).collect()
}

impl Setup {
    pub fn of(format: Format, lengths: &[usize]) -> Setup {
        Setup {
            tensors: lengths.iter().map(|&length| (length, 0)).collect(),
            groups: vec![group(format)],
            options: Options::default(),
        }
    }

    pub fn elements(&self) -> usize {
        self.tensors.iter().map(|&(length, _)| length).sum()
    }

    pub fn build(&self, instructions: Instructions) -> Pair {
        let parameters = noise(self.elements(), 1000, 1.0);
        let optimizer = CpuAdamW::new(&specs(&self.tensors), &self.groups, self.options).unwrap();
        let mut rest = &parameters[..];
        let tensors = self.tensors.iter().map(|&(length, group)| {
            let group = self.groups[group];
            let (own, later) = rest.split_at(length);
            rest = later;
            let bias = match group.bias {
                BiasChoice::Fixed(bias) => Some(bias),
                BiasChoice::Auto if group.format.has_bias() => None,
                BiasChoice::Auto => Some(Default::default()),
            };
            Tensor::new(own.to_vec(), group.format, bias, hyperparameters(&group))
        });
        let mut tensors: Vec<Tensor> = tensors.collect();
        let mut counts = vec![0; self.groups.len()];
        for (tensor, &(_, group)) in tensors.iter_mut().zip(&self.tensors) {
            tensor.place = Place { group: group as u32, parameter: counts[group] };
            counts[group] += 1;
        }
        let authority = Model {
            tensors,
            seed: self.options.seed,
            clip_norm: self.options.clip_norm,
            skip_nonfinite: self.options.on_nonfinite == OnNonfinite::Skip,
            maps: None,
            written: 0,
        };
        let rates = self.groups.iter().map(|group| group.learning_rate).collect();
        let optimizer = optimizer.with_instructions(instructions);
        Pair { optimizer, parameters, authority, rates }
    }
}

fn hyperparameters(group: &Group) -> Hyperparameters {
    let [beta1, beta2] = group.betas;
    let Group { learning_rate, eps, weight_decay, .. } = *group;
    Hyperparameters { learning_rate, beta1, beta2, eps, weight_decay }
}

impl Pair {
    /// The same update in both; everything that it leaves is compared.
    #[track_caller]
    pub fn step(&mut self, update: u64, gradients: &Vec<f32>) -> Report {
        self.optimizer.set_update(update, &self.rates).unwrap();
        self.optimizer.step(&mut self.parameters, gradients).unwrap();
        let found = self.optimizer.report().unwrap();

        let mut rest = &gradients[..];
        let mut by_tensor = Vec::new();
        for tensor in &self.authority.tensors {
            let (own, later) = rest.split_at(tensor.parameters.len());
            by_tensor.push(own);
            rest = later;
        }
        let expected = self.authority.step(update, &by_tensor);
        assert_eq!(found.update, update);
        assert_eq!(found.gradient_norm.to_bits(), expected.gradient_norm.to_bits());
        assert_eq!(found.clip_scale.to_bits(), expected.clip_scale.to_bits());
        assert_eq!(
            (found.nonfinite, found.saturated_m, found.saturated_r, found.skipped),
            (expected.nonfinite, expected.saturated_m, expected.saturated_r, expected.skipped)
        );
        let location = found.first_nonfinite.map(|found| (found.tensor, found.index));
        assert_eq!(location, expected.first_nonfinite.map(|first| (first.tensor, first.index)));
        self.assert_same();
        found
    }

    /// Parameters, biases and stored bits are the same.
    #[track_caller]
    pub fn assert_same(&self) {
        let mut rest = &self.parameters[..];
        let saved = self.optimizer.save().unwrap();
        for (position, tensor) in self.authority.tensors.iter().enumerate() {
            let (own, later) = rest.split_at(tensor.parameters.len());
            rest = later;
            let difference = reference::first_difference(own, &tensor.parameters);
            assert_eq!(difference, None, "parameters of tensor {position}");
            if tensor.format.has_bias() {
                assert_eq!(self.optimizer.bias(position), tensor.bias);
            }
            let words = |section: &str| words(&saved, &format!("t{position}.{section}"));
            match &tensor.state {
                State::F32(moments) => {
                    let expected: Vec<u32> = moments.iter().map(|[m, _]| m.to_bits()).collect();
                    assert_eq!(words("m"), expected, "m of tensor {position}");
                    let expected: Vec<u32> = moments.iter().map(|[_, v]| v.to_bits()).collect();
                    assert_eq!(words("v"), expected, "v of tensor {position}");
                }
                State::Words(expected) => {
                    assert_eq!(&words("word"), expected, "words of tensor {position}");
                }
                State::Arrays(arrays) => {
                    let elements = tensor.parameters.len() as u64;
                    for (section, expected) in tensor.format.sections(elements).zip(arrays) {
                        let name = format!("t{position}.{}", section.name);
                        let found = saved.arrays.iter().find(|array| array.name == name).unwrap();
                        let differs = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
                        let pairs = found.bytes.iter().zip(expected).enumerate();
                        assert_eq!(pairs.clone().find(differs), None, "{name} {}", tensor.format);
                        assert_eq!(found.bytes.len(), expected.len(), "{name}");
                    }
                }
            }
        }
    }
}

/// The elements of a saved array, as bits.
pub fn words(saved: &SavedState<'_>, name: &str) -> Vec<u32> {
    let array = saved.arrays.iter().find(|array| array.name == name).unwrap();
    let words = array.bytes.chunks_exact(4);
    words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}
