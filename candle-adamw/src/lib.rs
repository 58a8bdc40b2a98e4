//! Packed AdamW as an optimizer of candle: the moments of candle's variables persist in the formats of this
//! repository, `e4` for one, with 4 bytes a parameter instead of 8.
//!
//! ```
//! use candle_adamw::{Config, PackedAdamW};
//! use candle_core::{Device, Tensor, Var};
//! use candle_nn::Optimizer as _;
//!
//! let weight = Var::from_vec(vec![1.0_f32, 2.0], 2, &Device::Cpu)?;
//! let mut adamw = PackedAdamW::new(vec![weight.clone()], Config::default())?;
//! let loss = weight.sqr()?.sum_all()?;
//! adamw.backward_step(&loss)?;
//! assert!(weight.to_vec1::<f32>()?[0] < 1.0);
//! assert_eq!(adamw.state_bytes(), 8);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! On the processor a step works on candle's own memory, all variables in one pass, and copies nothing but gradients
//! that are not contiguous. On other devices values go through the host's memory: candle links CUDA's libraries when it is
//! built, this project loads them at run time, and the bindings that both use refuse the two in one program.
//!
//! What does not live here: the update itself, which is crate `optimizer`, and its formats.

mod memory;

use std::collections::HashSet;

use candle_core::backprop::GradStore;
use candle_core::{DType, Error, Result, Var, bail};
use candle_nn::Optimizer;
use optimizer::{AdamW as _, CpuAdamW, Group, Options, Report, TensorSpec};

/// What a packed AdamW is told: hyperparameters and state format, and the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Learning rate, betas, epsilon, weight decay, state format and its bias, for all variables.
    pub group: Group,
    /// Clipping, what a value that is not finite does, and the seed of stochastic rounding.
    pub options: Options,
}

/// AdamW whose moments persist packed.
#[derive(Debug)]
pub struct PackedAdamW {
    variables: Vec<Var>,
    adamw: CpuAdamW,
    learning_rate: f64,
    updates: u64,
}

impl Optimizer for PackedAdamW {
    type Config = Config;

    /// An optimizer of `vars`, which must be f32, each one there once.
    fn new(vars: Vec<Var>, config: Config) -> Result<Self> {
        let mut seen = HashSet::new();
        for (index, var) in vars.iter().enumerate() {
            if var.dtype() != DType::F32 {
                bail!("variable {index}: expected f32, found {:?}", var.dtype());
            }
            if !seen.insert(var.id()) {
                bail!("variable {index}: there twice; a shared variable is given once");
            }
        }
        let spec = |(index, var): (usize, &Var)| {
            TensorSpec::new(format!("variable.{index}"), var.elem_count(), 0)
        };
        let tensors: Vec<TensorSpec> = vars.iter().enumerate().map(spec).collect();
        let adamw =
            CpuAdamW::new(&tensors, &[config.group], config.options).map_err(Error::wrap)?;
        Ok(Self { variables: vars, adamw, learning_rate: config.group.learning_rate, updates: 0 })
    }

    /// One update of all variables. One without a gradient is updated with zeros: its moments fade.
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let gradients = memory::gradients(&self.variables, grads)?;
        self.adamw.set_update(self.updates + 1, &[self.learning_rate]).map_err(Error::wrap)?;
        let adamw = &mut self.adamw;
        let mut step = |parameters: &mut [&mut [f32]]| {
            memory::with_gradients(&gradients, &mut |gradients| {
                adamw.step_slices(parameters, gradients).map_err(Error::wrap)
            })
        };
        if self.variables.iter().all(|var| var.device().is_cpu()) {
            memory::in_place(&self.variables, Vec::new(), &mut step)?;
        } else {
            memory::through_host(&self.variables, &mut step)?;
        }
        self.updates += 1;
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.learning_rate = lr;
    }
}

impl PackedAdamW {
    /// What the last update met: the gradient norm, what was clipped, saturated or not finite.
    ///
    /// # Errors
    ///
    /// No update so far.
    pub fn report(&mut self) -> Result<Report> {
        self.adamw.report().map_err(Error::wrap)
    }

    /// Bytes of all moments.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.adamw.state_bytes()
    }
}
