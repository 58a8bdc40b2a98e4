//! Tensors in the memory of a CUDA device: steps on PyTorch's own stream, begun on the device itself, so that
//! nothing is copied from the host or waited for, and a graph that PyTorch captures goes on by itself.

use gpu_kernels::{
    DeviceRate, Gpu, GradientType, LearningRate, ParameterType, Placement, TensorPlace,
};
use optimizer::{SharedAdamW as _, CudaAdamW, CudaSettings, Error, Group, Options, TensorSpec, TensorTypes};
use pyo3::PyErr;

use crate::engine::{Addresses, Rate, Types, refused};

/// An optimizer, and where its tensors lay in the last step.
pub struct OnCuda {
    pub adamw: CudaAdamW,
    gpu: Gpu,
    stream: u64,
    places: Vec<TensorPlace>,
    placement: Option<Placement>,
}

impl OnCuda {
    pub fn new(
        ordinal: usize,
        stream: u64,
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
        types: &[Types],
    ) -> Result<OnCuda, Error> {
        let gpu = Gpu::open(ordinal)?;
        // SAFETY: 1. PyTorch's streams are those of the device's primary context. 2. It never destroys them.
        let own = unsafe { gpu.on_stream(stream) };
        let types = types.iter().map(|types| TensorTypes {
            parameters: if types.parameters_bf16 {
                ParameterType::Split
            } else {
                ParameterType::F32
            },
            gradients: if types.gradients_bf16 { GradientType::Bf16 } else { GradientType::F32 },
        });
        let types: Vec<TensorTypes> = types.collect();
        let places = tensors.iter().zip(&types).map(|(tensor, types)| TensorPlace {
            parameters: 0,
            remainders: 0,
            gradients: 0,
            length: tensor.length,
            parameter_type: types.parameters,
            gradient_type: types.gradients,
        });
        let places = places.collect();
        // The norm costs one more read of all gradients; clipping measures it in any case.
        let measures_norm = false;
        let settings =
            CudaSettings { types, is_placed: true, measures_norm, ..CudaSettings::default() };
        let mut adamw = CudaAdamW::with_settings(&own, tensors, groups, options, &settings)?;
        adamw.prepare_begin_update()?;
        Ok(OnCuda { adamw, gpu, stream, places, placement: None })
    }

    /// Queues one update on `stream`.
    pub fn step(
        &mut self,
        stream: u64,
        addresses: &Addresses,
        rates: &[Rate],
    ) -> Result<(), Error> {
        self.begin(stream, addresses, rates)?;
        let placement = self.placement.as_ref().expect("it was placed above");
        self.adamw.step_placed(placement)
    }

    /// Queues the first stage of an update of parts.
    pub fn measure(
        &mut self,
        stream: u64,
        addresses: &Addresses,
        rates: &[Rate],
    ) -> Result<(), Error> {
        self.begin(stream, addresses, rates)?;
        let placement = self.placement.as_ref().expect("it was placed above");
        self.adamw.measure_placed(placement)
    }

    /// What was measured: address and length.
    pub fn measured(&mut self) -> Option<(u64, usize)> {
        self.adamw.measured().map(|numbers| (numbers.address(), numbers.len()))
    }

    /// Queues the second stage.
    pub fn update_parts(&mut self, _addresses: &Addresses) -> Result<(), Error> {
        self.adamw.update_placed_parts()
    }

    /// What scales follow from: address and length.
    pub fn spreads(&mut self) -> Option<(u64, usize)> {
        self.adamw.spreads().map(|numbers| (numbers.address(), numbers.len()))
    }

    /// Sets the stream, the places and the next update.
    fn begin(&mut self, stream: u64, addresses: &Addresses, rates: &[Rate]) -> Result<(), Error> {
        if stream != self.stream {
            // SAFETY: as in `new`; PyTorch's user orders the work of two streams, as for any of its operations.
            self.adamw.set_stream(&unsafe { self.gpu.on_stream(stream) })?;
            self.stream = stream;
        }
        let rates = rates.iter().map(|rate| match *rate {
            Rate::Value(value) => LearningRate::Value(value),
            // SAFETY: 1. Python holds the tensor of a learning rate as long as the parameter groups do. 2. It is
            // written in the order of PyTorch's streams.
            Rate::At((address,)) => LearningRate::InMemory(unsafe { DeviceRate::at(address) }),
        });
        let rates: Vec<LearningRate> = rates.collect();
        self.place(addresses)?;
        self.adamw.begin_update(&rates)
    }

    /// Makes a placement of these addresses, where they are not those of the last step.
    fn place(&mut self, addresses: &Addresses) -> Result<(), Error> {
        let mut is_same = self.placement.is_some();
        for (position, place) in self.places.iter_mut().enumerate() {
            let (parameters, gradients) =
                (addresses.parameters[position], addresses.gradients[position]);
            let remainders = addresses.remainders[position];
            is_same &= (place.parameters, place.remainders, place.gradients)
                == (parameters, remainders, gradients);
            (place.parameters, place.remainders, place.gradients) =
                (parameters, remainders, gradients);
        }
        if !is_same {
            self.placement = None;
            // SAFETY: 1. The addresses are those of contiguous tensors of this device, with as many elements of
            // these types as Python has checked; PyTorch's allocator keeps memory that a stream still uses.
            // 2. They are ordered by PyTorch's streams.
            let placement = unsafe { Placement::new(self.places.clone()) };
            self.placement = Some(placement.map_err(Error::from)?);
        }
        Ok(())
    }

    /// Waits for all steps, so that what is read next is what they left.
    pub fn settle(&self) -> Result<(), PyErr> {
        self.adamw.gpu().synchronize().map_err(refused)
    }
}
