//! The next update, begun on the device itself: its number, random keys and scalars, without a copy from the
//! host. Launches `cuda/advance.cu`.
//!
//! A recorded step that begins so is an update anew at every replay, whoever replays it.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use bytemuck::{Pod, Zeroable};

use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::{self, ADVANCE_RULES_MAX, ADVANCE_THREADS};
use crate::{Buffer, Error, Gpu};

/// What a group of tensors is updated by.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rule {
    /// The shares of the first and of the second moment that survive an update.
    pub betas: [f64; 2],
    /// What is added to the denominator.
    pub eps: f64,
    /// The share of a parameter lost per unit of learning rate.
    pub weight_decay: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The address of an f32 in device memory that is read as the learning rate at every update instead; 0
    /// for none.
    pub rate_address: u64,
}

// SAFETY: numbers only, for which zero bits are a value.
unsafe impl Zeroable for Rule {}
// SAFETY: a C layout of numbers of eight bytes, so no byte is padding; any bits are a value.
unsafe impl Pod for Rule {}

/// What a launch is given.
#[repr(C)]
struct Argument {
    control: u64,
    seed: u64,
    gradient_norm: f64,
    first: u32,
    count: u32,
    rules: [Rule; ADVANCE_RULES_MAX],
}

/// The kernel that begins an update.
pub(crate) struct Advance(Kernel);

impl Advance {
    pub(crate) fn new(gpu: &Gpu) -> Result<Advance, Error> {
        Ok(Advance(gpu.best_module(&programs::advance())?.kernel("begin_update")?))
    }

    /// Queues the next update of a model with `rules` for its groups.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Safety
    ///
    /// 1. `control` is that of a model with as many groups, and belongs to the device.
    /// 2. At the addresses of learning rates an f32 lies until the work is done.
    pub(crate) unsafe fn queue(
        &self,
        gpu: &Gpu,
        control: &mut Buffer<u32>,
        rules: &[Rule],
        (seed, gradient_norm): (u64, f64),
    ) -> Result<(), Error> {
        for (number, part) in rules.chunks(ADVANCE_RULES_MAX).enumerate() {
            let mut argument = Argument {
                control: control.address(),
                seed,
                gradient_norm,
                first: (number * ADVANCE_RULES_MAX) as u32,
                count: part.len() as u32,
                rules: [Rule::default(); ADVANCE_RULES_MAX],
            };
            argument.rules[..part.len()].copy_from_slice(part);
            // SAFETY: 1. `Argument` is laid out as in advance.cu, which was compiled for these threads and
            // rules. 2. and 3. The control has room for all groups and was borrowed mutably; what else
            // is read is the caller's 2.
            unsafe { launch(gpu, &self.0, 1, ADVANCE_THREADS, &argument)? };
        }
        Ok(())
    }
}
