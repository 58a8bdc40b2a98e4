//! Training with candle: it learns, with the bits of the optimizer itself, in candle's own memory.

use candle_adamw::{Config, PackedAdamW};
use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, Var};
use candle_nn::{Linear, Module as _, Optimizer as _, VarBuilder, VarMap, linear};
use formats::Format;
use optimizer::{AdamW as _, CpuAdamW, Group, Options, TensorSpec};

struct Network {
    first: Linear,
    second: Linear,
}

impl Network {
    fn new(vars: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            first: linear(2, 16, vars.pp("first"))?,
            second: linear(16, 1, vars.pp("second"))?,
        })
    }

    /// The mean squared error on the four cases of exclusive or.
    fn loss(&self) -> Result<Tensor> {
        let inputs =
            Tensor::new(&[[0.0_f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], &Device::Cpu)?;
        let targets = Tensor::new(&[[0.0_f32], [1.0], [1.0], [0.0]], &Device::Cpu)?;
        let hidden = self.first.forward(&inputs)?.tanh()?;
        (self.second.forward(&hidden)? - targets)?.sqr()?.mean_all()
    }
}

fn config(format: Format) -> Config {
    let group = Group { learning_rate: 0.02, weight_decay: 0.0, format, ..Group::default() };
    Config { group, options: Options { clip_norm: Some(1.0), ..Options::default() } }
}

#[test]
fn a_small_model_learns_in_every_format() -> Result<()> {
    for format in Format::ALL {
        let vars = VarMap::new();
        let network = Network::new(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
        let mut adamw = PackedAdamW::new(vars.all_vars(), config(format))?;
        let before = network.loss()?.to_scalar::<f32>()?;
        for _ in 0..400 {
            adamw.backward_step(&network.loss()?)?;
        }
        let after = network.loss()?.to_scalar::<f32>()?;
        assert!(after < 0.01 && after < before, "{format}: {before} {after}");
        assert_eq!(
            adamw.state_bytes(),
            [2 * 16, 16, 16, 1].map(|n| format.state_bytes(n)).iter().sum::<u64>()
        );
        assert_eq!(adamw.report()?.nonfinite, 0);
    }
    Ok(())
}

#[test]
fn bits_are_those_of_the_optimizer_and_nothing_is_copied() -> Result<()> {
    let lengths = [5, 3];
    let var = |n: usize| Var::from_vec((0..n).map(|i| 0.1 + i as f32).collect(), n, &Device::Cpu);
    let vars = lengths.map(var).into_iter().collect::<Result<Vec<_>>>()?;
    let address = |var: &Var| match &*var.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F32(values)) => values.as_ptr(),
        _ => panic!("variables are f32 and on the processor"),
    };
    let before: Vec<_> = vars.iter().map(address).collect();
    let Config { group, options } = config(Format::E4);
    let mut adamw = PackedAdamW::new(vars.clone(), Config { group, options })?;

    let spec = |(i, &length): (usize, &usize)| TensorSpec::new(i.to_string(), length, 0);
    let tensors: Vec<TensorSpec> = lengths.iter().enumerate().map(spec).collect();
    let mut plain = CpuAdamW::new(&tensors, &[group], options).expect("good hyperparameters");
    let mut parameters: Vec<f32> =
        lengths.iter().flat_map(|&n| (0..n).map(|i| 0.1 + i as f32)).collect();
    for (update, rate) in (1..).zip([0.02, 0.01, 0.005]) {
        // The loss is the sum of squares, whose gradient is twice the value.
        let loss = (vars[0].sqr()?.sum_all()? + vars[1].sqr()?.sum_all()?)?;
        let gradients: Vec<f32> = parameters.iter().map(|value| 2.0 * value).collect();
        adamw.set_learning_rate(rate);
        assert_eq!(adamw.learning_rate(), rate);
        adamw.backward_step(&loss)?;
        plain.set_update(update, &[rate]).expect("an update");
        plain.step(&mut parameters, &gradients).expect("buffers that fit");
        let found = [vars[0].to_vec1::<f32>()?, vars[1].to_vec1::<f32>()?].concat();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&parameters));
    }
    assert_eq!(vars.iter().map(address).collect::<Vec<_>>(), before);
    Ok(())
}

#[test]
fn variables_that_cannot_be_updated_are_refused() -> Result<()> {
    let double = Var::from_vec(vec![1.0_f64], 1, &Device::Cpu)?;
    let error = PackedAdamW::new(vec![double], Config::default()).expect_err("f64");
    assert!(error.to_string().contains("variable 0: expected f32"), "{error}");
    let var = Var::from_vec(vec![1.0_f32], 1, &Device::Cpu)?;
    let error = PackedAdamW::new(vec![var.clone(), var], Config::default()).expect_err("twice");
    assert!(error.to_string().contains("variable 1: there twice"), "{error}");
    Ok(())
}
