//! The class that Python sees: tensors on one device that are updated together.

use optimizer::{
    AdamW as _, BiasChoice, Group, OnNonfinite, Options, Part, SharedAdamW as _, TensorSpec,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cpu::OnCpu;
use crate::cuda::OnCuda;
use crate::state::{self, Array};

/// How parameters and gradients of a tensor lie in memory: whether each is bf16.
#[derive(Clone, Copy)]
pub struct Types {
    pub parameters_bf16: bool,
    pub gradients_bf16: bool,
}

/// Addresses of the tensors' memory, in their order.
pub struct Addresses {
    pub parameters: Vec<u64>,
    /// Of the 16 bits that each bf16 parameter lacks; 0 for f32.
    pub remainders: Vec<u64>,
    pub gradients: Vec<u64>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Addresses {
    type Error = PyErr;

    /// From a tuple of the three.
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Addresses> {
        let (parameters, remainders, gradients) = object.extract()?;
        Ok(Addresses { parameters, remainders, gradients })
    }
}

/// The learning rate of a group: a number, or the address of an f32 on the device.
#[derive(FromPyObject)]
pub enum Rate {
    Value(f64),
    At((u64,)),
}

/// Packed AdamW over tensors of one device.
#[pyclass(module = "packed_adamw._native")]
pub struct Engine {
    device: Device,
    groups: Vec<Group>,
}

enum Device {
    Cpu(Box<OnCpu>),
    Cuda(Box<OnCuda>),
}

/// Calls a method on whichever device there is.
macro_rules! on_device {
    ($device:expr, $on:ident => $call:expr) => {
        match $device {
            Device::Cpu($on) => $call,
            Device::Cuda($on) => $call,
        }
    };
}

/// What a group of tensors is updated by, as Python says it.
type GroupSettings = (String, [f64; 2], f64, f64, Option<u32>);
/// Of a part: position of the whole tensor among all and in its group, first element, elements of the whole.
type PartSettings = (u32, u32, u64, u64);
/// Name, length, group, whether parameters and whether gradients are bf16, what it is a part of.
type TensorSettings = (String, usize, usize, bool, bool, Option<PartSettings>);

#[pymethods]
impl Engine {
    /// An optimizer with fresh state. `device` is the number of a CUDA device, or below 0 for the processor; `stream`
    /// the address of the stream that is current there.
    #[new]
    #[pyo3(signature = (device, stream, tensors, groups, clip_norm, skip_nonfinite, seed))]
    fn new(
        device: i64,
        stream: u64,
        tensors: Vec<TensorSettings>,
        groups: Vec<GroupSettings>,
        clip_norm: Option<f64>,
        skip_nonfinite: bool,
        seed: u64,
    ) -> PyResult<Engine> {
        let on_nonfinite = if skip_nonfinite { OnNonfinite::Skip } else { OnNonfinite::Stop };
        let options = Options { clip_norm, on_nonfinite, seed };
        let groups = groups.into_iter().map(group).collect::<PyResult<Vec<Group>>>()?;
        let types = |&(_, _, _, parameters_bf16, gradients_bf16, _): &TensorSettings| Types {
            parameters_bf16,
            gradients_bf16,
        };
        let types: Vec<Types> = tensors.iter().map(types).collect();
        let spec = |(name, length, group, _, _, part): TensorSettings| {
            let part = part.map(|(tensor, place_in_group, start, whole)| Part {
                tensor,
                place_in_group,
                start,
                whole,
            });
            TensorSpec { part, ..TensorSpec::new(name, length, group) }
        };
        let tensors: Vec<TensorSpec> = tensors.into_iter().map(spec).collect();
        let device = match usize::try_from(device) {
            Err(_) => Device::Cpu(Box::new(
                OnCpu::new(&tensors, &groups, options, types).map_err(refused)?,
            )),
            Ok(ordinal) => Device::Cuda(Box::new(
                OnCuda::new(ordinal, stream, &tensors, &groups, options, &types)
                    .map_err(refused)?,
            )),
        };
        Ok(Engine { device, groups })
    }

    /// Gives a group other betas, eps and decay from the next step on.
    fn set_group(
        &mut self,
        position: usize,
        betas: [f64; 2],
        eps: f64,
        weight_decay: f64,
    ) -> PyResult<()> {
        let count = self.groups.len();
        let Some(own) = self.groups.get_mut(position) else {
            return Err(PyValueError::new_err(format!(
                "expected a group below {count}, found {position}"
            )));
        };
        let group = Group { betas, eps, weight_decay, ..*own };
        if group != *own {
            on_device!(&mut self.device, on => on.adamw.set_group(position, group))
                .map_err(refused)?;
            *own = group;
        }
        Ok(())
    }

    /// One update of all tensors, queued on `stream` where there are streams.
    fn step(
        &mut self,
        py: Python<'_>,
        stream: u64,
        addresses: Addresses,
        rates: Vec<Rate>,
    ) -> PyResult<()> {
        match &mut self.device {
            Device::Cpu(on) => py.detach(|| on.step(&addresses, &rates)),
            Device::Cuda(on) => on.step(stream, &addresses, &rates),
        }
        .map_err(refused)
    }

    /// The first stage of an update of tensors that are parts of others, in other processes. Then comes
    /// `measured`, to be added up over all of them, `update_parts`, `spreads` likewise, and `finish`.
    fn measure(
        &mut self,
        py: Python<'_>,
        stream: u64,
        addresses: Addresses,
        rates: Vec<Rate>,
    ) -> PyResult<()> {
        match &mut self.device {
            Device::Cpu(on) => py.detach(|| on.measure(&addresses, &rates)),
            Device::Cuda(on) => on.measure(stream, &addresses, &rates),
        }
        .map_err(refused)
    }

    /// Address and length of the f64 numbers that were measured, if any are.
    fn measured(&mut self) -> Option<(u64, usize)> {
        on_device!(&mut self.device, on => on.measured())
    }

    /// The second stage, over the tensors of the first.
    fn update_parts(&mut self, addresses: Addresses) -> PyResult<()> {
        on_device!(&mut self.device, on => on.update_parts(&addresses)).map_err(refused)
    }

    /// Address and length of the f64 numbers that scales follow from, if there are scales.
    fn spreads(&mut self) -> Option<(u64, usize)> {
        on_device!(&mut self.device, on => on.spreads())
    }

    /// The last stage.
    fn finish(&mut self) -> PyResult<()> {
        on_device!(&mut self.device, on => on.adamw.finish()).map_err(refused)
    }

    /// What the last step found: update, gradient norm, clip scale, elements that are not finite, saturated first
    /// moments, saturated RMS, whether it was skipped. Waits for the step.
    fn report(&mut self) -> PyResult<(u64, f64, f32, u64, u64, u64, bool)> {
        let report = on_device!(&mut self.device, on => on.adamw.report()).map_err(refused)?;
        Ok((
            report.update,
            report.gradient_norm,
            report.clip_scale,
            report.nonfinite,
            report.saturated_m,
            report.saturated_r,
            report.skipped,
        ))
    }

    /// Bytes of the stored moments.
    fn state_bytes(&self) -> u64 {
        on_device!(&self.device, on => on.adamw.state_bytes())
    }

    /// The stored moments: arrays as name, element type and bytes, and what belongs to them.
    fn save(&mut self, py: Python<'_>) -> PyResult<state::Saved> {
        let saved = on_device!(&mut self.device, on => { on.settle()?; on.adamw.save() })
            .map_err(refused)?;
        Ok(state::to_python(py, &saved))
    }

    /// Takes over stored moments, of update `update`; `entries` are what belongs to them besides.
    fn load(&mut self, arrays: Vec<Array>, entries: Vec<(String, String)>) -> PyResult<()> {
        let device = &mut self.device;
        on_device!(device, on => {
            on.settle()?;
            let own = on.adamw.save().map_err(refused)?.metadata;
            let state = state::from_python(arrays, entries, own)?;
            on.adamw.load(&state)
        })
        .map_err(refused)
    }

    /// The moments of a tensor as f32: first and second.
    fn moments<'py>(
        &mut self,
        py: Python<'py>,
        position: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let moments =
            on_device!(&mut self.device, on => { on.settle()?; on.adamw.moments(position) });
        let moments = moments.map_err(refused)?;
        Ok((state::bytes_of(py, &moments.m), state::bytes_of(py, &moments.v)))
    }

    /// Replaces the moments of a tensor on the processor, as update `update` would have left them. `add` is given
    /// numbers and returns their sums over all who have parts of the tensor.
    fn set_moments(
        &mut self,
        position: usize,
        update: u64,
        m: &[u8],
        v: &[u8],
        add: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Device::Cpu(on) = &mut self.device else {
            return Err(PyRuntimeError::new_err(
                "moments are set on the processor, and saved and loaded from there",
            ));
        };
        let moments = state::moments(m, v)?;
        let add = |numbers: &mut [f64]| -> Result<(), Failure> {
            let sums: Vec<f64> = add.call1((numbers.to_vec(),))?.extract()?;
            if sums.len() != numbers.len() {
                let (expected, found) = (numbers.len(), sums.len());
                let message = format!("sums: expected {expected}, found {found}");
                return Err(PyValueError::new_err(message).into());
            }
            numbers.copy_from_slice(&sums);
            Ok(())
        };
        Ok(on.adamw.set_moments_shared(position, update, &moments, add)?)
    }
}

/// An error of Python, or ours as one.
struct Failure(PyErr);

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure(error)
    }
}

impl From<optimizer::Error> for Failure {
    fn from(error: optimizer::Error) -> Failure {
        Failure(refused(error))
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> PyErr {
        error
    }
}

fn group((format, betas, eps, weight_decay, bias): GroupSettings) -> PyResult<Group> {
    let format = state::format(&format)?;
    let bias = match bias {
        None => BiasChoice::Auto,
        Some(bias) => BiasChoice::Fixed(formats::Bias::new(bias).map_err(refused)?),
    };
    // The rate of a group counts only where no other is given; every step gives one.
    Ok(Group { learning_rate: 0.0, betas, eps, weight_decay, format, bias })
}

/// An error of ours as Python's.
pub fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
