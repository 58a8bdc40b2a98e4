//! Tensors in the processor's memory. bf16 ones pass through f32: a parameter is put together from its bf16 and the 16
//! bits beside it, updated, and taken apart again, which loses nothing.

use std::slice;

use formats::split::Split;
use optimizer::{
    AdamW as _, CpuAdamW, Error, Group, Options, SharedAdamW as _, TensorSpec,
};

use crate::engine::{Addresses, Rate, Types};

/// An optimizer, and room for tensors that are not f32.
pub struct OnCpu {
    pub adamw: CpuAdamW,
    lengths: Vec<usize>,
    types: Vec<Types>,
    /// f32 twins of bf16 parameters and gradients; empty for f32 ones.
    parameters: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl OnCpu {
    pub fn new(
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
        types: Vec<Types>,
    ) -> Result<OnCpu, Error> {
        let room = |is_bf16: fn(&Types) -> bool| {
            let lengths = tensors.iter().zip(&types);
            lengths.map(|(t, types)| vec![0.0; if is_bf16(types) { t.length } else { 0 }]).collect()
        };
        Ok(OnCpu {
            adamw: CpuAdamW::new(tensors, groups, options)?,
            lengths: tensors.iter().map(|tensor| tensor.length).collect(),
            parameters: room(|types| types.parameters_bf16),
            gradients: room(|types| types.gradients_bf16),
            types,
        })
    }

    /// One update. Every address is that of a tensor's contiguous memory, which Python has checked and holds.
    pub fn step(&mut self, addresses: &Addresses, rates: &[Rate]) -> Result<(), Error> {
        self.begin(addresses, rates)?;
        self.update(addresses, CpuAdamW::step_slices)
    }

    /// The first stage of an update of parts.
    pub fn measure(&mut self, addresses: &Addresses, rates: &[Rate]) -> Result<(), Error> {
        self.begin(addresses, rates)?;
        let gradients = gradients_at(addresses, &self.gradients, &self.types, &self.lengths);
        self.adamw.measure_slices(&gradients)
    }

    /// What was measured: address and length.
    pub fn measured(&mut self) -> Option<(u64, usize)> {
        self.adamw.measured().map(place_of)
    }

    /// The second stage.
    pub fn update_parts(&mut self, addresses: &Addresses) -> Result<(), Error> {
        self.update(addresses, CpuAdamW::update_slices)
    }

    /// What scales follow from: address and length.
    pub fn spreads(&mut self) -> Option<(u64, usize)> {
        self.adamw.spreads().map(place_of)
    }

    fn begin(&mut self, addresses: &Addresses, rates: &[Rate]) -> Result<(), Error> {
        let value = |rate: &Rate| match *rate {
            Rate::Value(value) => value,
            Rate::At(_) => unreachable!("Python reads learning rates on the processor"),
        };
        let update = self.adamw.update() + 1;
        self.adamw.set_update(update, &rates.iter().map(value).collect::<Vec<f64>>())?;
        self.widen(addresses);
        Ok(())
    }

    fn update(&mut self, addresses: &Addresses, work: Work) -> Result<(), Error> {
        let mut parameters: Vec<&mut [f32]> = Vec::with_capacity(self.lengths.len());
        for (position, twin) in self.parameters.iter_mut().enumerate() {
            let length = self.lengths[position];
            parameters.push(if self.types[position].parameters_bf16 {
                twin
            } else {
                // SAFETY: Python's tensor is f32, contiguous and this long, and no other tensor overlaps it.
                unsafe { slice_mut(addresses.parameters[position], length) }
            });
        }
        let gradients = gradients_at(addresses, &self.gradients, &self.types, &self.lengths);
        work(&mut self.adamw, &mut parameters, &gradients)?;
        self.narrow(addresses);
        Ok(())
    }

    /// Fills the twins of bf16 tensors.
    fn widen(&mut self, addresses: &Addresses) {
        for (position, types) in self.types.iter().enumerate() {
            let length = self.lengths[position];
            if types.parameters_bf16 {
                // SAFETY: Python's tensors are bf16 and 16-bit integers, contiguous and this long.
                let halves = unsafe {
                    let upper: &[u16] = slice_of(addresses.parameters[position], length);
                    upper.iter().zip(slice_of::<u16>(addresses.remainders[position], length))
                };
                for (twin, (&upper, &remainder)) in self.parameters[position].iter_mut().zip(halves)
                {
                    *twin = Split { upper, remainder }.recombine();
                }
            }
            if types.gradients_bf16 {
                // SAFETY: as above.
                let bits: &[u16] = unsafe { slice_of(addresses.gradients[position], length) };
                for (twin, &bits) in self.gradients[position].iter_mut().zip(bits) {
                    *twin = f32::from_bits(u32::from(bits) << 16);
                }
            }
        }
    }

    /// Takes the twins of bf16 parameters apart.
    fn narrow(&self, addresses: &Addresses) {
        for (position, types) in self.types.iter().enumerate() {
            if !types.parameters_bf16 {
                continue;
            }
            let length = self.lengths[position];
            // SAFETY: as in `widen`; nobody else has them now.
            let (upper, remainders): (&mut [u16], &mut [u16]) = unsafe {
                (
                    slice_mut(addresses.parameters[position], length),
                    slice_mut(addresses.remainders[position], length),
                )
            };
            let halves = upper.iter_mut().zip(remainders);
            for ((upper, remainder), &twin) in halves.zip(&self.parameters[position]) {
                let split = Split::of(twin);
                (*upper, *remainder) = (split.upper, split.remainder);
            }
        }
    }

    /// Nothing is under way on the processor.
    pub fn settle(&self) -> Result<(), pyo3::PyErr> {
        Ok(())
    }
}

/// An update over slices.
type Work = fn(&mut CpuAdamW, &mut [&mut [f32]], &[&[f32]]) -> Result<(), Error>;

fn place_of(numbers: &mut [f64]) -> (u64, usize) {
    (numbers.as_mut_ptr().expose_provenance() as u64, numbers.len())
}

/// Gradients where they lie, or their twins.
fn gradients_at<'a>(
    addresses: &Addresses,
    twins: &'a [Vec<f32>],
    types: &[Types],
    lengths: &[usize],
) -> Vec<&'a [f32]> {
    let gradients = twins.iter().enumerate().map(|(position, twin)| {
        if types[position].gradients_bf16 {
            &twin[..]
        } else {
            // SAFETY: Python's gradient is f32, contiguous and this long, and nobody writes it meanwhile.
            unsafe { slice_of(addresses.gradients[position], lengths[position]) }
        }
    });
    gradients.collect()
}

/// # Safety
///
/// At `address` lie `length` elements, aligned, that nobody writes while the slice lives.
unsafe fn slice_of<'a, T>(address: u64, length: usize) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(address as usize), length) }
}

/// # Safety
///
/// At `address` lie `length` elements, aligned, that nobody else uses while the slice lives.
unsafe fn slice_mut<'a, T>(address: u64, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's.
    unsafe {
        slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), length)
    }
}
