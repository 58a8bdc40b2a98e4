//! Typed memory of a device, and views of parts of it.
//!
//! A buffer is allocated once, zeroed, and freed when dropped, after the work that uses it; or several
//! are made of one allocation, which is freed with the last of them. All its own operations go to the
//! stream that it was made with.

#![expect(unsafe_code, reason = "calls into the driver with addresses of its own memory")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;
use cudarc::driver::sys::CUresult;

use crate::gpu::During;
use crate::{Error, Gpu};

/// Elements in the memory of a device.
pub struct Buffer<T> {
    gpu: Gpu,
    memory: Arc<Memory>,
    /// 0 without elements.
    address: u64,
    length: usize,
    elements: PhantomData<T>,
}

/// An allocation, freed when nobody needs it any more.
#[derive(Debug)]
struct Memory {
    gpu: Gpu,
    /// 0 without elements.
    address: u64,
}

/// An address, with the memory that it is in: work that is queued later finds it there.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    address: u64,
    _memory: Arc<Memory>,
}

impl Held {
    /// The address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The address so many bytes behind it, in the same memory.
    pub(crate) fn at(mut self, bytes: usize) -> Held {
        self.address += bytes as u64;
        self
    }
}

/// A part of a [`Buffer`], to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    gpu: &'a Gpu,
    address: u64,
    length: usize,
    elements: PhantomData<&'a [T]>,
}

/// A part of a [`Buffer`], to write.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    gpu: &'a Gpu,
    memory: &'a Arc<Memory>,
    address: u64,
    length: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl Gpu {
    /// A buffer of `length` zeros.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn zeros<T: Pod>(&self, length: usize) -> Result<Buffer<T>, Error> {
        let mut buffer = self.allocate(length)?;
        buffer.fill_zero()?;
        Ok(buffer)
    }

    /// A buffer with these elements.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn upload<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.allocate(elements.len())?;
        buffer.upload(elements)?;
        Ok(buffer)
    }

    /// Memory with anything in it, which the caller overwrites.
    fn allocate<T: Pod>(&self, length: usize) -> Result<Buffer<T>, Error> {
        let too_large = Error::TooLarge { what: "a buffer", limit: "the address space" };
        let bytes = length.checked_mul(size_of::<T>()).ok_or(too_large)?;
        let operation = || format!("allocating {length} elements of {} bytes", size_of::<T>());
        let mut address = 0;
        if bytes > 0 {
            self.refuse_recording("allocating device memory")?;
            self.bind(operation)?;
            // SAFETY: the size is not zero; whatever the memory holds is a valid T, as for any Pod.
            address = match unsafe { result::malloc_sync(bytes) } {
                Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(Error::OutOfMemory {
                        operation: operation(),
                        needed_bytes: bytes as u64,
                        free_bytes: self.free_bytes().unwrap_or(0),
                        total_bytes: self.facts().memory_bytes,
                    });
                }
                allocated => allocated.during(operation)?,
            };
        }
        let memory = Arc::new(Memory { gpu: self.clone(), address });
        Ok(Buffer { gpu: self.clone(), memory, address, length, elements: PhantomData })
    }
}

impl<T: Pod> Buffer<T> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The device and stream that it was made with.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Buffers of `length` elements each that begin every `step` elements and share its memory.
    ///
    /// # Panics
    ///
    /// If they overlap, or if there is none of the memory that they would begin in.
    #[must_use]
    pub fn split(self, length: usize, step: usize) -> Vec<Buffer<T>> {
        assert!(length <= step && self.length.is_multiple_of(step), "{length} every {step}");
        let parts = (0..self.length).step_by(step).map(|start| {
            let (address, length) = part::<T>(self.address, self.length, start..start + length);
            let (gpu, memory) = (self.gpu.clone(), Arc::clone(&self.memory));
            Buffer { gpu, memory, address, length, elements: PhantomData }
        });
        parts.collect()
    }

    /// A part of it as a buffer, in the same memory: what is written to one is read from the other. Work on both is ordered
    /// as work of one stream is, or by whoever queues it.
    ///
    /// # Panics
    ///
    /// If the range is not within it.
    #[must_use]
    pub fn shared(&self, range: Range<usize>) -> Buffer<T> {
        let (address, length) = part::<T>(self.address, self.length, range);
        let (gpu, memory) = (self.gpu.clone(), Arc::clone(&self.memory));
        let address = if length == 0 { 0 } else { address };
        Buffer { gpu, memory, address, length, elements: PhantomData }
    }

    /// Its address, with its memory.
    pub(crate) fn held(&self) -> Held {
        Held { address: self.address, _memory: Arc::clone(&self.memory) }
    }

    /// Has later work on it queued on another stream of its device. Whoever asks for it orders that work with
    /// what the former stream still has.
    ///
    /// # Panics
    ///
    /// If others share its memory.
    pub(crate) fn set_stream(&mut self, gpu: &Gpu) {
        let memory = Arc::get_mut(&mut self.memory).expect("a buffer with memory of its own");
        memory.gpu = gpu.clone();
        self.gpu = gpu.clone();
    }

    /// All of it, to read.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View { gpu: &self.gpu, address: self.address, length: self.length, elements: PhantomData }
    }

    /// All of it, to write.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            gpu: &self.gpu,
            memory: &self.memory,
            address: self.address,
            length: self.length,
            elements: PhantomData,
        }
    }

    /// The address of its first element, for kernels; 0 without elements.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Overwrites it with zero bits.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn fill_zero(&mut self) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let operation = || format!("zeroing {} bytes", self.bytes());
        self.gpu.bind(operation)?;
        // SAFETY: the memory is this buffer's, which is borrowed mutably, and that long.
        let done = unsafe {
            result::memset_d8_async(self.address, 0, self.bytes(), self.gpu.stream.cu_stream())
        };
        done.during(operation)
    }

    /// Overwrites it from the host.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn upload(&mut self, from: &[T]) -> Result<(), Error> {
        self.view_mut().upload(from)
    }

    /// Overwrites `to` with it, after all work of its stream.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], what the driver refuses, and what went wrong in that work.
    pub fn download(&self, to: &mut [T]) -> Result<(), Error> {
        self.view().download(to)
    }

    /// Its elements, after all work of its stream.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in that work.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        self.view().to_vec()
    }

    /// Overwrites it with another buffer of the same length.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and what the driver refuses.
    pub fn copy_from(&mut self, from: &Buffer<T>) -> Result<(), Error> {
        self.view_mut().copy_from(from.view())
    }

    /// Its size.
    fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }
}

impl<'a, T: Pod> View<'a, T> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of its first element, for kernels.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Panics
    ///
    /// If the range is not within it.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> View<'a, T> {
        let (address, length) = part::<T>(self.address, self.length, range);
        View { gpu: self.gpu, address, length, elements: PhantomData }
    }

    /// Overwrites `to` with it, after all work of the buffer's stream.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], what the driver refuses, and what went wrong in that work.
    pub fn download(self, to: &mut [T]) -> Result<(), Error> {
        check_length("a download", self.length, to.len())?;
        if self.is_empty() {
            return Ok(());
        }
        let bytes = size_of_val(&to[..]);
        let operation = || format!("copying {bytes} bytes from the device");
        self.gpu.refuse_recording("copying to host memory")?;
        self.gpu.bind(operation)?;
        // SAFETY: the lengths are equal, and `to` stays borrowed until the copy is done, below.
        let done =
            unsafe { result::memcpy_dtoh_async(to, self.address, self.gpu.stream.cu_stream()) };
        done.during(operation)?;
        self.gpu.synchronize()
    }

    /// Its elements, after all work of the buffer's stream.
    ///
    /// # Errors
    ///
    /// As [`View::download`].
    pub fn to_vec(self) -> Result<Vec<T>, Error> {
        let mut elements = vec![T::zeroed(); self.length];
        self.download(&mut elements)?;
        Ok(elements)
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    /// The device and stream that the buffer was made with.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of its first element, for kernels.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Panics
    ///
    /// If the range is not within it.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> ViewMut<'a, T> {
        let (address, length) = part::<T>(self.address, self.length, range);
        ViewMut { gpu: self.gpu, memory: self.memory, address, length, elements: PhantomData }
    }

    /// Its address, with its memory.
    pub(crate) fn held(&self) -> Held {
        Held { address: self.address, _memory: Arc::clone(self.memory) }
    }

    /// Its first `length` elements, and the others.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    #[must_use]
    pub fn split_at(self, length: usize) -> (ViewMut<'a, T>, ViewMut<'a, T>) {
        let half = |range| {
            let (address, length) = part::<T>(self.address, self.length, range);
            ViewMut { gpu: self.gpu, memory: self.memory, address, length, elements: PhantomData }
        };
        (half(0..length), half(length..self.length))
    }

    /// Overwrites it with a part of another buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], and what the driver refuses.
    pub fn copy_from(self, from: View<'_, T>) -> Result<(), Error> {
        check_length("a copy", self.length, from.length)?;
        check_device("a copy", self.gpu, from.gpu)?;
        if self.is_empty() {
            return Ok(());
        }
        let bytes = self.length * size_of::<T>();
        let operation = || format!("copying {bytes} bytes on the device");
        self.gpu.bind(operation)?;
        // SAFETY: both are that long, and a mutable borrow keeps them apart.
        let done = unsafe {
            let stream = self.gpu.stream.cu_stream();
            result::memcpy_dtod_async(self.address, from.address, bytes, stream)
        };
        done.during(operation)
    }

    /// Overwrites it from the host.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], and what the driver refuses.
    pub fn upload(self, from: &[T]) -> Result<(), Error> {
        check_length("an upload", self.length, from.len())?;
        if self.is_empty() {
            return Ok(());
        }
        let operation = || format!("copying {} bytes to the device", size_of_val(from));
        self.gpu.refuse_recording("copying from host memory")?;
        self.gpu.bind(operation)?;
        // SAFETY: the lengths are equal, and `from` stays borrowed until the copy is done, below.
        let done =
            unsafe { result::memcpy_htod_async(self.address, from, self.gpu.stream.cu_stream()) };
        done.during(operation)?;
        self.gpu.synchronize()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 && self.gpu.bind(String::new).is_ok() {
            // SAFETY: the memory came from `malloc_sync` and is freed once; the driver waits for work
            // that uses it. A failure, as after the loss of the device, has nobody to go to.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl<T: Pod> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} elements on device {})", self.length, self.gpu().facts().ordinal)
    }
}

fn part<T>(address: u64, length: usize, range: Range<usize>) -> (u64, usize) {
    let Range { start, end } = range;
    assert!(start <= end && end <= length, "the part {start}..{end} of {length} elements");
    (address + (start * size_of::<T>()) as u64, end - start)
}

pub(crate) fn check_length(what: &str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Length { what: what.to_owned(), expected, found })
    }
}

/// Refuses parameters at an address that wide accesses cannot reach, where there are such.
pub(crate) fn check_aligned(what: &str, address: u64, is_wide: bool) -> Result<(), Error> {
    let bytes = if is_wide { 16 } else { 4 };
    if address.is_multiple_of(bytes) {
        Ok(())
    } else {
        Err(Error::Misaligned { what: what.to_owned(), bytes, address })
    }
}

pub(crate) fn check_device(what: &'static str, expected: &Gpu, found: &Gpu) -> Result<(), Error> {
    if expected.shares_device(found) {
        Ok(())
    } else {
        let (expected, found) = (expected.facts().ordinal, found.facts().ordinal);
        Err(Error::OtherDevice { what, expected, found })
    }
}
