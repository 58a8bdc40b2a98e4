//! Parameters as matrix products read them: f32 as they are, and for bf16 a copy of every
//! parameter buffer, rounded at the start of a pass, or by whoever changes the buffer. Launches `cuda/cast.cu`.
//!
//! A copy is made ready once for each parameter buffer and lives as long as the [`Shadows`], so
//! that recorded work may keep its address.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::launch::{launch, striding_blocks};
use crate::module::Kernel;
use crate::programs::network::{self, THREADS};
use crate::{Buffer, Error, Gpu, Precision, View};

/// The bf16 copies of parameter buffers; none for other precisions.
pub struct Shadows {
    cast: Option<Kernel>,
    shadows: Mutex<Vec<Shadow>>,
}

struct Shadow {
    address: u64,
    halves: Buffer<u16>,
}

/// A part of a parameter buffer, and of its copy.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    floats: View<'a, f32>,
    /// 0 without a copy.
    halves: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Cast {
    to: u64,
    from: u64,
    length: u64,
}

impl Shadows {
    /// Without any copy yet.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Shadows, Error> {
        let cast = match precision {
            Precision::Fp32 | Precision::Tf32 => None,
            Precision::Bf16 => Some(gpu.module(&network::cast())?.kernel("cast")?),
        };
        Ok(Shadows { cast, shadows: Mutex::default() })
    }

    /// Takes memory for the copy of a buffer, unless it has one. Not in a recording.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Recording`], and what the driver refuses.
    pub fn reserve(&self, gpu: &Gpu, parameters: &Buffer<f32>) -> Result<(), Error> {
        let mut shadows = self.shadows();
        if self.cast.is_some() && find(&shadows, parameters).is_none() {
            let halves = gpu.zeros(parameters.len())?;
            shadows.push(Shadow { address: parameters.address(), halves });
        }
        Ok(())
    }

    /// Whether there are any copies.
    #[must_use]
    pub fn are_kept(&self) -> bool {
        self.cast.is_some()
    }

    /// Overwrites a part of the copy of a buffer with what the buffer holds now, rounded to nearest,
    /// ties to even.
    ///
    /// # Errors
    ///
    /// As [`Shadows::reserve`].
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    pub fn refresh(
        &self,
        gpu: &Gpu,
        parameters: &Buffer<f32>,
        range: Range<usize>,
    ) -> Result<(), Error> {
        let Some(kernel) = &self.cast else { return Ok(()) };
        self.reserve(gpu, parameters)?;
        let (start, length) = (range.start as u64, range.len());
        let from = parameters.view().part(range).address();
        let to = find(&self.shadows(), parameters).expect("it was reserved above") + 2 * start;
        let argument = Cast { to, from, length: length as u64 };
        let blocks = striding_blocks(gpu, length.div_ceil(8), THREADS);
        // SAFETY: 1. `Cast` is laid out as in cast.cu, which was compiled for these threads. 2. Both
        // have `length` elements. 3. Copies are written here alone.
        unsafe { launch(gpu, kernel, blocks, THREADS, &argument) }
    }

    /// The copy of a buffer, if there is one, for whoever changes the buffer and the copy with it.
    #[must_use]
    pub fn copy(&self, parameters: &Buffer<f32>) -> Option<Buffer<u16>> {
        let shadows = self.shadows();
        let halves = &shadows.iter().find(|shadow| shadow.is_of(parameters))?.halves;
        Some(halves.shared(0..halves.len()))
    }

    /// A part of a buffer and of its copy.
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    #[must_use]
    pub fn view<'a>(&'a self, parameters: &'a Buffer<f32>, range: Range<usize>) -> Weights<'a> {
        let copy = self.cast.as_ref().and_then(|_| find(&self.shadows(), parameters));
        let halves = copy.map_or(0, |address| address + 2 * range.start as u64);
        Weights { floats: parameters.view().part(range), halves }
    }

    fn shadows(&self) -> MutexGuard<'_, Vec<Shadow>> {
        self.shadows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address of a buffer's copy.
fn find(shadows: &[Shadow], parameters: &Buffer<f32>) -> Option<u64> {
    shadows.iter().find(|shadow| shadow.is_of(parameters)).map(|shadow| shadow.halves.address())
}

impl Shadow {
    fn is_of(&self, parameters: &Buffer<f32>) -> bool {
        self.address == parameters.address() && self.halves.len() == parameters.len()
    }
}

impl<'a> Weights<'a> {
    /// The parameters themselves.
    #[must_use]
    pub fn floats(self) -> View<'a, f32> {
        self.floats
    }

    /// Where products find them: in the copy if there is one.
    #[must_use]
    pub fn product_addresses(self) -> Range<u64> {
        let length = self.floats.len() as u64;
        match self.halves {
            0 => self.floats.address()..self.floats.address() + 4 * length,
            start => start..start + 2 * length,
        }
    }

    /// The address at which a product in `precision` reads element `start`.
    pub(crate) fn address(self, precision: Precision, start: usize) -> Result<u64, Error> {
        if !precision.is_bf16() {
            return Ok(self.floats.address() + 4 * start as u64);
        }
        if self.halves == 0 {
            let (expected, found) = ("a copy in bf16", "none: they were never prepared");
            return Err(Error::OtherType { what: "parameters", expected, found });
        }
        Ok(self.halves + 2 * start as u64)
    }
}
