//! What flows between operations: numbers of a type that the precision decides.
//!
//! Operations convert at their edges and compute in f32; on the host activations are f32 always.

use crate::buffer::{Held, check_length};
use crate::{Buffer, Error, Gpu, Precision};

/// Numbers in the memory of a device, f32 or bf16.
#[derive(Debug)]
pub enum Activations {
    /// For [`Precision::Fp32`] and [`Precision::Tf32`].
    F32(Buffer<f32>),
    /// For [`Precision::Bf16`]: the upper 16 bits of an f32.
    Bf16(Buffer<u16>),
}

/// What begins at a multiple of as many elements is as well aligned as an allocation of its own.
const ALIGNMENT_ELEMENTS: usize = 128;

impl Activations {
    /// `length` zeros.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn zeros(gpu: &Gpu, precision: Precision, length: usize) -> Result<Activations, Error> {
        Ok(match precision {
            Precision::Fp32 | Precision::Tf32 => Activations::F32(gpu.zeros(length)?),
            Precision::Bf16 => Activations::Bf16(gpu.zeros(length)?),
        })
    }

    /// `count` times `length` zeros, in buffers that begin at equal distances, so that one operation can
    /// take them all.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn side_by_side(
        gpu: &Gpu,
        precision: Precision,
        length: usize,
        count: usize,
    ) -> Result<Vec<Activations>, Error> {
        let step = length.max(1).next_multiple_of(ALIGNMENT_ELEMENTS);
        let all = Activations::zeros(gpu, precision, step * count)?;
        Ok(match all {
            Activations::F32(all) => {
                all.split(length, step).into_iter().map(Activations::F32).collect()
            }
            Activations::Bf16(all) => {
                all.split(length, step).into_iter().map(Activations::Bf16).collect()
            }
        })
    }

    /// These numbers, each rounded to the nearest of its type.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn of(gpu: &Gpu, precision: Precision, numbers: &[f32]) -> Result<Activations, Error> {
        let mut activations = Activations::zeros(gpu, precision, numbers.len())?;
        activations.upload(numbers)?;
        Ok(activations)
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Activations::F32(buffer) => buffer.len(),
            Activations::Bf16(buffer) => buffer.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its first element, for kernels; 0 without elements.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self {
            Activations::F32(buffer) => buffer.address(),
            Activations::Bf16(buffer) => buffer.address(),
        }
    }

    /// Its address, with its memory.
    pub(crate) fn held(&self) -> Held {
        match self {
            Activations::F32(buffer) => buffer.held(),
            Activations::Bf16(buffer) => buffer.held(),
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        match self {
            Activations::F32(_) => 4,
            Activations::Bf16(_) => 2,
        }
    }

    /// The device and stream that it was made with.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        match self {
            Activations::F32(buffer) => buffer.gpu(),
            Activations::Bf16(buffer) => buffer.gpu(),
        }
    }

    /// Overwrites it from the host, each number rounded to the nearest of its type.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn upload(&mut self, from: &[f32]) -> Result<(), Error> {
        match self {
            Activations::F32(buffer) => buffer.upload(from),
            Activations::Bf16(buffer) => {
                buffer.upload(&from.iter().map(|&number| bf16(number)).collect::<Vec<u16>>())
            }
        }
    }

    /// Its numbers, after all work of its stream.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in that work.
    pub fn to_vec(&self) -> Result<Vec<f32>, Error> {
        match self {
            Activations::F32(buffer) => buffer.to_vec(),
            Activations::Bf16(buffer) => {
                let widened = |&bits: &u16| f32::from_bits(u32::from(bits) << 16);
                Ok(buffer.to_vec()?.iter().map(widened).collect())
            }
        }
    }

    /// Overwrites `to` with the front of it, after all work of its stream.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if it is shorter, what the driver refuses, and what went wrong in that work.
    pub fn download(&self, to: &mut [f32]) -> Result<(), Error> {
        let numbers = self.to_vec()?;
        check_length("a download", to.len(), numbers.len().min(to.len()))?;
        to.copy_from_slice(&numbers[..to.len()]);
        Ok(())
    }

    /// Refuses activations of another type or fewer than `length` of them.
    pub(crate) fn check(
        &self,
        what: &'static str,
        precision: Precision,
        length: usize,
    ) -> Result<(), Error> {
        if self.element_bytes() != precision.activation_bytes() {
            let name = |is_bf16| if is_bf16 { "bf16 activations" } else { "f32 activations" };
            let (expected, found) = (name(precision.is_bf16()), name(!precision.is_bf16()));
            return Err(Error::OtherType { what, expected, found });
        }
        check_length(what, length, self.len().min(length))
    }
}

/// The bits of the nearest bf16, ties to even; NaN stays NaN.
#[must_use]
pub fn bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let half = 0x7FFF + (bits >> 16 & 1);
    (bits.wrapping_add(half) >> 16) as u16
}
