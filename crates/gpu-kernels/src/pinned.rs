//! Host memory that a device copies from and to without waiting for the host.
//!
//! A [`Pinned`] remembers the last copy that uses it, and waits for it before its elements are
//! touched again, so that a queued copy never meets a half-written buffer.

#![expect(unsafe_code, reason = "memory that the driver allocates")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;

use crate::buffer::{check_device, check_length};
use crate::event::Event;
use crate::gpu::During;
use crate::{Buffer, Error, Gpu, ViewMut};

/// Elements in page-locked host memory; not write-combined, so reading them is as fast as
/// reading any other memory.
pub struct Pinned<T: Pod> {
    gpu: Gpu,
    /// Dangling without elements.
    elements: NonNull<T>,
    length: usize,
    last_copy: Event,
    /// Whether there was one.
    is_used: bool,
}

// SAFETY: the memory is owned, and like a Box of plain numbers.
unsafe impl<T: Pod + Send> Send for Pinned<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Pod + Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// `length` zeros.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn zeros(gpu: &Gpu, length: usize) -> Result<Pinned<T>, Error> {
        let bytes = length * size_of::<T>();
        let operation = || format!("allocating {bytes} bytes of pinned host memory");
        let last_copy = Event::new(gpu)?;
        let mut elements = NonNull::dangling();
        if bytes > 0 {
            gpu.bind(operation)?;
            // SAFETY: the size is not zero. The driver aligns to pages, which is enough for any T,
            // and zero bytes are a valid T.
            unsafe {
                let memory = result::malloc_host(bytes, 0).during(operation)?;
                memory.cast::<u8>().write_bytes(0, bytes);
                elements = NonNull::new(memory.cast()).expect("the driver allocated");
            }
        }
        Ok(Pinned { gpu: gpu.clone(), elements, length, last_copy, is_used: false })
    }

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its elements, after the last copy that uses them.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before that copy.
    pub fn read(&self) -> Result<&[T], Error> {
        self.wait()?;
        // SAFETY: the memory is that long, initialised, borrowed with self, and no copy is under way.
        Ok(unsafe { slice::from_raw_parts(self.elements.as_ptr(), self.length) })
    }

    /// Its elements, to write, after the last copy that uses them.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before that copy.
    pub fn write(&mut self) -> Result<&mut [T], Error> {
        self.wait()?;
        // SAFETY: as in `read`, with a mutable borrow of self.
        Ok(unsafe { slice::from_raw_parts_mut(self.elements.as_ptr(), self.length) })
    }

    /// Whether the last copy that uses it is done.
    ///
    /// # Errors
    ///
    /// What went wrong in the work before that copy.
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.last_copy.is_reached()
    }

    /// Queues a copy of it over the front of `to`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if `to` is shorter, [`Error::OtherDevice`], [`Error::Recording`], and what
    /// the driver refuses.
    pub fn queue_upload(&mut self, to: &mut Buffer<T>) -> Result<(), Error> {
        let length = self.length;
        check_length("a copy", length, to.len().min(length))?;
        self.queue_front(to.view_mut().part(0..length))
    }

    /// Queues a copy of its front over all of `to`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if `to` is longer, [`Error::OtherDevice`], [`Error::Recording`], and what
    /// the driver refuses.
    pub fn queue_front(&mut self, to: ViewMut<'_, T>) -> Result<(), Error> {
        let length = to.len();
        check_length("a copy", length, self.length.min(length))?;
        let gpu = to.gpu();
        self.check(gpu)?;
        let elements = &self.write()?[..length];
        let operation = || "queuing a copy to the device".to_owned();
        gpu.bind(operation)?;
        if !elements.is_empty() {
            let stream = gpu.stream.cu_stream();
            // SAFETY: `to` is as long. The elements stay as they are until the copy is done: `write` and
            // the drop wait for the event below.
            unsafe { result::memcpy_htod_async(to.address(), elements, stream) }
                .during(operation)?;
        }
        self.is_used = true;
        self.last_copy.record(gpu)
    }

    /// Queues a copy of it over the front of `to`, also while work is recorded. Nobody knows when the last
    /// replay of a recording is done, so the elements stay as they are for good.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if `to` is shorter, [`Error::OtherDevice`], and what the driver refuses.
    pub(crate) fn queue_upload_for_good(&mut self, to: &mut Buffer<T>) -> Result<(), Error> {
        check_length("a copy", self.length, to.len().min(self.length))?;
        check_device("a copy", &self.gpu, to.gpu())?;
        let (gpu, operation) = (to.gpu(), || "queuing a copy to the device".to_owned());
        gpu.bind(operation)?;
        if self.length > 0 {
            // SAFETY: as in `read`; no copy was queued before.
            let elements = unsafe { slice::from_raw_parts(self.elements.as_ptr(), self.length) };
            // SAFETY: `to` is at least as long. The elements stay as they are, as the caller was told.
            unsafe { result::memcpy_htod_async(to.address(), elements, gpu.stream.cu_stream()) }
                .during(operation)?;
        }
        Ok(())
    }

    /// Queues a copy of the front of `from` over it.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if `from` is shorter, [`Error::OtherDevice`], [`Error::Recording`], and what
    /// the driver refuses.
    pub fn queue_download(&mut self, from: &Buffer<T>) -> Result<(), Error> {
        check_length("a copy", self.length, from.len().min(self.length))?;
        self.check(from.gpu())?;
        let elements = self.write()?;
        let (gpu, operation) = (from.gpu(), || "queuing a copy from the device".to_owned());
        gpu.bind(operation)?;
        if !elements.is_empty() {
            let stream = gpu.stream.cu_stream();
            // SAFETY: `from` is at least as long. Nobody reads the elements until the copy is done:
            // `read`, `write` and the drop wait for the event below.
            unsafe { result::memcpy_dtoh_async(elements, from.address(), stream) }
                .during(operation)?;
        }
        self.is_used = true;
        self.last_copy.record(from.gpu())
    }

    /// Waits for the last copy; without one for nothing, also while a stream is recorded, when no event can be
    /// waited for.
    fn wait(&self) -> Result<(), Error> {
        if self.is_used { self.last_copy.wait() } else { Ok(()) }
    }

    fn check(&self, gpu: &Gpu) -> Result<(), Error> {
        check_device("a copy", &self.gpu, gpu)?;
        gpu.refuse_recording("copying to or from host memory")
    }
}

/// Copies to host memory that somebody else reads later, perhaps on another thread: the next copy goes over the
/// last one if nobody has that any more, and else to memory of its own.
#[derive(Default)]
pub struct Downloads<T: Pod> {
    last: Option<Arc<Pinned<T>>>,
}

impl<T: Pod> Downloads<T> {
    /// Queues a copy of a buffer, which is read as soon as the copy is there.
    ///
    /// # Errors
    ///
    /// As [`Pinned::queue_download`], and [`Error::OutOfMemory`].
    pub fn queue(&mut self, from: &Buffer<T>) -> Result<Arc<Pinned<T>>, Error> {
        let last = self.last.take().and_then(Arc::into_inner);
        let mut pinned = match last.filter(|last| last.len() == from.len()) {
            Some(pinned) => pinned,
            None => Pinned::zeros(from.gpu(), from.len())?,
        };
        pinned.queue_download(from)?;
        let pinned = Arc::new(pinned);
        self.last = Some(Arc::clone(&pinned));
        Ok(pinned)
    }
}

impl<T: Pod> Drop for Pinned<T> {
    fn drop(&mut self) {
        let waited = self.wait();
        if self.length > 0 && size_of::<T>() > 0 && self.gpu.bind(String::new).is_ok() {
            // A device that is lost copies no more, so the memory may go either way.
            let _ = waited;
            // SAFETY: the memory came from `malloc_host`, is freed once, and no copy uses it.
            let _ = unsafe { result::free_host(self.elements.as_ptr().cast()) };
        }
    }
}
