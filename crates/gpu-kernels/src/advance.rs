//! The next update, begun on the device itself: its number, random keys and scalars, without a copy from the
//! host. Launches `cuda/advance.cu`.
//!
//! A recorded step that begins so is an update anew at every replay, whoever replays it.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::{self, ADVANCE_RULES_MAX, ADVANCE_THREADS};
use crate::table::{Control, Group};
use crate::{Buffer, Error, Gpu};

/// What a group of tensors is updated by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The shares of the first and of the second moment that survive an update.
    pub betas: [f64; 2],
    /// What is added to the denominator.
    pub eps: f64,
    /// The share of a parameter lost per unit of learning rate.
    pub weight_decay: f64,
    /// The learning rate.
    pub learning_rate: LearningRate,
}

/// The learning rate of a group at an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LearningRate {
    /// This one.
    Value(f64),
    /// That in device memory, whatever it is when the update begins.
    InMemory(DeviceRate),
}

/// An f32 in device memory that is read as a learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRate(u64);

impl DeviceRate {
    /// The one at `address`.
    ///
    /// # Safety
    ///
    /// 1. Until the last update that reads it is done, and the last replay of a recording of one, an f32 lies
    ///    there in memory of the device.
    /// 2. Nothing writes it meanwhile, but work that is ordered with the updates.
    #[must_use]
    pub unsafe fn at(address: u64) -> DeviceRate {
        DeviceRate(address)
    }
}

/// A rule as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct DeviceRule {
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    learning_rate: f64,
    /// 0 for none.
    rate_address: u64,
}

impl From<&Rule> for DeviceRule {
    fn from(rule: &Rule) -> DeviceRule {
        let (learning_rate, rate_address) = match rule.learning_rate {
            LearningRate::Value(value) => (value, 0),
            LearningRate::InMemory(DeviceRate(address)) => (0.0, address),
        };
        let Rule { betas, eps, weight_decay, .. } = *rule;
        DeviceRule { betas, eps, weight_decay, learning_rate, rate_address }
    }
}

/// What a launch is given.
#[repr(C)]
struct Argument {
    control: u64,
    seed: u64,
    gate: u64,
    gradient_norm: f64,
    first: u32,
    count: u32,
    rules: [DeviceRule; ADVANCE_RULES_MAX],
}

/// The kernel that begins an update.
pub(crate) struct Advance(Kernel);

impl Advance {
    pub(crate) fn new(gpu: &Gpu) -> Result<Advance, Error> {
        Ok(Advance(gpu.best_module(&programs::advance())?.kernel("begin_update")?))
    }

    /// Queues the next update of a model, of whose groups `rules` are.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Panics
    ///
    /// If `control` has no room for as many groups.
    pub(crate) fn queue(
        &self,
        gpu: &Gpu,
        control: &mut Buffer<u32>,
        rules: &[Rule],
        (seed, gate, gradient_norm): (u64, u64, f64),
    ) -> Result<(), Error> {
        let bytes = size_of::<Control>() + size_of::<Group>() * rules.len();
        assert_eq!(control.len() * size_of::<u32>(), bytes, "one rule a group");
        for (number, part) in rules.chunks(ADVANCE_RULES_MAX).enumerate() {
            let mut argument = Argument {
                control: control.address(),
                seed,
                gate,
                gradient_norm,
                first: (number * ADVANCE_RULES_MAX) as u32,
                count: part.len() as u32,
                rules: [DeviceRule::default(); ADVANCE_RULES_MAX],
            };
            for (own, rule) in argument.rules.iter_mut().zip(part) {
                *own = rule.into();
            }
            // SAFETY: 1. `Argument` is laid out as in advance.cu, which was compiled for these threads and
            // rules. 2. and 3. The control has room for all groups, as was seen above, and was borrowed
            // mutably; learning rates in memory were vouched for.
            unsafe { launch(gpu, &self.0, 1, ADVANCE_THREADS, &argument)? };
        }
        Ok(())
    }
}
