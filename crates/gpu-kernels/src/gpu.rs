//! A device with a stream of work: opened without ever panicking, cheap to clone, and the place
//! where buffers, events and recordings come from.
//!
//! Work is asynchronous: a call returns when it is queued, and calls on one stream happen in
//! order. A [`Gpu`] is a device and one stream; [`Gpu::fork`] makes another stream of the same
//! device, and [`Gpu::wait_for`] orders the two.
//!
//! What this file does not do: hold memory (see [`buffer`](crate::buffer)) or launch
//! anything (see `launch`).

#![expect(unsafe_code, reason = "calls into the driver")]

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use crate::cache::Cache;
use crate::compile::{Compiler, Nvrtc};
use crate::event::Event;
use crate::library::{self, Library};
use crate::module::Module;
use crate::{Error, version};

/// The oldest compute capability that has all that kernels use.
const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// A device and a stream of work on it.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) device: Arc<Device>,
    pub(crate) stream: Arc<CudaStream>,
}

/// What the streams of a device share.
pub(crate) struct Device {
    /// Loaded kernels by the keys of their programs; unloaded before the context goes.
    pub(crate) modules: Mutex<HashMap<String, Arc<Module>>>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) facts: Facts,
    pub(crate) compiler: Box<dyn Compiler>,
    pub(crate) cache: Cache,
    /// What took time because it was not in the cache.
    pub(crate) kernels_compiled: AtomicU64,
    pub(crate) products_timed: AtomicU64,
}

/// What was made for a device since it was opened and was not in the kernel cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Kernel sources that were compiled.
    pub kernels: u64,
    /// Products whose algorithms were timed.
    pub products: u64,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its memory.
    pub memory_bytes: u64,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// The shared memory that a block of threads can have.
    pub shared_bytes_of_block: u32,
    /// The size of its second-level cache.
    pub l2_bytes: u64,
    /// The CUDA version that its driver supports, major and minor.
    pub driver_version: (u32, u32),
}

impl Facts {
    /// The architecture that kernels are compiled for, such as `sm_90`.
    #[must_use]
    pub fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }
}

impl Gpu {
    /// Opens device number `ordinal`. Kernels are compiled by NVRTC and cached in the user's cache
    /// folder.
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`] without a driver, [`Error::NoDevice`], [`Error::TooOld`], and what the
    /// driver refuses.
    pub fn open(ordinal: usize) -> Result<Gpu, Error> {
        Gpu::open_with(ordinal, Box::new(Nvrtc), Cache::of_user())
    }

    /// [`Gpu::open`] with another compiler and another cache of what it makes.
    ///
    /// # Errors
    ///
    /// As [`Gpu::open`].
    pub fn open_with(
        ordinal: usize,
        compiler: Box<dyn Compiler>,
        cache: Cache,
    ) -> Result<Gpu, Error> {
        let devices = Gpu::count()?;
        if ordinal >= devices {
            return Err(Error::NoDevice { devices, ordinal });
        }
        let context = CudaContext::new(ordinal).during(|| format!("opening device {ordinal}"))?;
        // SAFETY: nothing has been allocated in this context yet. The tracking would record
        // events per buffer, which a recording cannot contain; here the streams of a device are
        // ordered by hand.
        unsafe { context.disable_event_tracking() };
        let stream = new_stream(&context, Urgency::Usual)?;
        let facts = facts(&context).during(|| format!("asking device {ordinal} what it is"))?;
        if facts.compute_capability < CAPABILITY_MIN {
            let (major, minor) = facts.compute_capability;
            let (name, found) = (facts.name, format!("{major}.{minor}"));
            return Err(Error::TooOld { ordinal, name, found });
        }
        let device = Arc::new(Device {
            modules: Mutex::default(),
            context,
            facts,
            compiler,
            cache,
            kernels_compiled: AtomicU64::new(0),
            products_timed: AtomicU64::new(0),
        });
        Ok(Gpu { device, stream })
    }

    /// The number of devices.
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`] without a driver, and what the driver refuses. A driver
    /// without devices is no error.
    pub fn count() -> Result<usize, Error> {
        library::load(Library::Driver)?;
        match CudaContext::device_count() {
            Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
            Err(error) => Err(error).during(|| "counting devices".to_owned()),
        }
    }

    /// What the device is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.device.facts
    }

    /// The memory that is free.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let (free, _) =
            self.device.context.mem_get_info().during(|| "asking for free memory".to_owned())?;
        Ok(free as u64)
    }

    /// What was made for the device so far, from any thread.
    #[must_use]
    pub fn made(&self) -> Made {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Made {
            kernels: read(&self.device.kernels_compiled),
            products: read(&self.device.products_timed),
        }
    }

    /// The folder of the kernel cache, where there is one.
    #[must_use]
    pub fn cache_folder(&self) -> Option<&std::path::Path> {
        self.device.cache.folder()
    }

    /// The same device with a stream of its own, which begins after the work that this one
    /// has been given so far.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn fork(&self) -> Result<Gpu, Error> {
        self.forked(Urgency::Usual)
    }

    /// [`Gpu::fork`] with a stream whose work begins before that of all others where both have some.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn fork_ahead(&self) -> Result<Gpu, Error> {
        self.forked(Urgency::Ahead)
    }

    /// [`Gpu::fork`] with a stream that leaves the device to all others where both have work.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn fork_behind(&self) -> Result<Gpu, Error> {
        self.forked(Urgency::Behind)
    }

    /// The same device with a stream of another library, by its address: that of a `CUstream` or
    /// `cudaStream_t`, 0 for the default one.
    ///
    /// # Safety
    ///
    /// 1. The stream is one of this device's primary context.
    /// 2. It lives as long as what is returned and everything made from that.
    #[must_use]
    pub unsafe fn on_stream(&self, stream: u64) -> Gpu {
        let stream = ptr::with_exposed_provenance_mut::<sys::CUstream_st>(stream as usize);
        // SAFETY: the caller's 1. and 2.; work on it is queued as on any other.
        let stream = unsafe { self.device.context.wrap_borrowed_stream(stream) };
        Gpu { device: Arc::clone(&self.device), stream }
    }

    /// The address of the stream, as [`on_stream`](Self::on_stream) takes it.
    #[must_use]
    pub fn stream_address(&self) -> u64 {
        self.stream.cu_stream().expose_provenance() as u64
    }

    fn forked(&self, urgency: Urgency) -> Result<Gpu, Error> {
        let stream = new_stream(&self.device.context, urgency)?;
        let forked = Gpu { device: Arc::clone(&self.device), stream };
        forked.wait_for(self)?;
        Ok(forked)
    }

    /// Makes later work of this stream wait for what `other` has been given so far.
    ///
    /// # Errors
    ///
    /// What the driver refuses, such as a stream of another device.
    pub fn wait_for(&self, other: &Gpu) -> Result<(), Error> {
        self.stream.join(&other.stream).during(|| "ordering two streams".to_owned())
    }

    /// Makes later work of this stream wait for an event, which has been recorded.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn wait_for_event(&self, event: &Event) -> Result<(), Error> {
        event.hold(self)
    }

    /// Waits until all work of this stream is done.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in that work.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.stream.synchronize().during(|| "waiting for the device".to_owned())
    }

    /// How many milliseconds the device takes for the work that `work` queues.
    ///
    /// # Errors
    ///
    /// What `work` and the driver refuse.
    pub fn elapsed_ms<E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<f64, E> {
        let start = Event::timed(self)?;
        let end = Event::timed(self)?;
        start.record(self)?;
        work()?;
        end.record(self)?;
        Ok(start.elapsed_ms(&end)?)
    }

    /// Whether work is being recorded instead of done.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn is_recording(&self) -> Result<bool, Error> {
        let status = self.stream.capture_status().during(|| "asking for a recording".to_owned())?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Refuses `operation` while work is being recorded.
    pub(crate) fn refuse_recording(&self, operation: &'static str) -> Result<(), Error> {
        if self.is_recording()? { Err(Error::Recording { operation }) } else { Ok(()) }
    }

    /// Makes the device current on this thread, which calls below the bindings' own need.
    pub(crate) fn bind(&self, operation: impl FnOnce() -> String) -> Result<(), Error> {
        self.device.context.bind_to_thread().during(operation)
    }

    /// Whether two handles are of one device.
    pub(crate) fn shares_device(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.device.context, &other.device.context)
    }

    /// The modules loaded so far.
    pub(crate) fn modules(&self) -> MutexGuard<'_, HashMap<String, Arc<Module>>> {
        self.device.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}: {})", self.device.facts.ordinal, self.device.facts.name)
    }
}

/// Which streams' work begins first, where several have some.
#[derive(Clone, Copy)]
enum Urgency {
    Behind,
    Usual,
    Ahead,
}

fn new_stream(context: &Arc<CudaContext>, urgency: Urgency) -> Result<Arc<CudaStream>, Error> {
    let operation = || "making a stream".to_owned();
    context.bind_to_thread().during(operation)?;
    let (least, most) = result::stream::get_priority_range().during(operation)?;
    // The most urgent is the least number.
    let priority = match urgency {
        Urgency::Behind => least,
        Urgency::Usual => least.midpoint(most),
        Urgency::Ahead => most,
    };
    context.new_stream_with_priority(priority).during(operation)
}

fn facts(context: &CudaContext) -> Result<Facts, DriverError> {
    let number = |attribute| context.attribute(attribute).map(i32::unsigned_abs);
    let (major, minor) = context.compute_capability()?;
    Ok(Facts {
        ordinal: context.ordinal(),
        name: context.name()?,
        compute_capability: (major.unsigned_abs(), minor.unsigned_abs()),
        memory_bytes: context.total_mem()? as u64,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_of_block: number(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        l2_bytes: u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        driver_version: version::driver().unwrap_or_default(),
    })
}

/// Names the operation in a driver's error.
pub(crate) trait During<T> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| {
            let operation = operation();
            let code = format!("{:?}", error.0);
            let message = error.error_string().map(|text| text.to_string_lossy().into_owned());
            let message = message.unwrap_or_else(|_| "no words for it".to_owned());
            if is_lost(error.0) {
                Error::DeviceLost { operation, code, message }
            } else {
                Error::Driver { operation, code, message }
            }
        })
    }
}

/// Whether a device that answers this answers nothing else any more.
fn is_lost(code: sys::CUresult) -> bool {
    use sys::CUresult as Code;
    matches!(
        code,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_SYSTEM_NOT_READY
            | Code::CUDA_ERROR_UNKNOWN
    )
}
