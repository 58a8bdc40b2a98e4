//! NCCL: sums over the devices of several ranks, on the devices themselves, and in recordings.
//!
//! Types are those of cudarc's binding. Its functions are not: it asks the loader for `libnccl.so` alone, and what NCCL
//! is installed as is `libnccl.so.2`. So the few that are needed are looked up here, in the library that
//! [`library`] found.
//!
//! A communicator has a stream of its own. What is queued on it follows the work of other streams where it is told to
//! wait for them, so that sums run beside a backward pass. All ranks queue the same operations in the same order.
//!
//! With the same ranks on the same devices NCCL adds in the same order every time, as long as it chooses the same way to
//! do so; [`choose_fixed_order`] takes the one choice away whose order is not known.

#![expect(unsafe_code, reason = "calls into NCCL, which the bindings do not find")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use crate::library::{self, Library};
use crate::{Buffer, Error, Event, Gpu, ViewMut};

/// How long the end of a communicator is waited for.
const FAREWELL: Duration = Duration::from_secs(5);

/// What ranks must have in common to become one communicator.
pub type UniqueId = [u8; 128];

/// The ranks of a job, each with a device, as this one sees them.
pub struct Nccl {
    gpu: Gpu,
    rank: usize,
    world_size: usize,
    /// None once it was aborted.
    communicator: Mutex<Option<Communicator>>,
    ending: Mutex<Option<JoinHandle<()>>>,
}

/// NCCL's own handle.
struct Communicator(ncclComm_t);

// SAFETY: NCCL's handles are not bound to threads, and each is used by one at a time, behind a lock.
unsafe impl Send for Communicator {}

/// The functions of the library.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int,
    abort: unsafe extern "C" fn(ncclComm_t) -> c_int,
    async_error: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        ncclComm_t,
        cudaStream_t,
    ) -> c_int,
    reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> c_int,
    send: unsafe extern "C" fn(
        *const c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> c_int,
    receive: unsafe extern "C" fn(
        *mut c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> c_int,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> c_int,
}

/// What calls for a part have in common.
struct Call {
    count: usize,
    root: c_int,
    on: ncclComm_t,
    stream: cudaStream_t,
}

/// Opens the library by its name, for the rest of the program; whether it is there.
pub(crate) fn is_present() -> bool {
    // SAFETY: a vendor's library is opened for the rest of the program; its initialisers are the only code that runs.
    let opened = unsafe { libloading::Library::new(Library::Nccl.file_names()[0]) };
    opened.map(std::mem::forget).is_ok()
}

/// The version of a library that was made ready.
pub(crate) fn version() -> Option<String> {
    let mut number = 0;
    // SAFETY: the function writes one int.
    let result = unsafe { (functions().ok()?.get_version)(&raw mut number) };
    (result == 0).then(|| format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
}

/// Asks NCCL, before it is first used, not to add within switches, whose order nothing says. It is told by an
/// environment variable, `NCCL_NVLS_ENABLE`, unless that is set already; a process that has more than one thread by now
/// cannot set it, and stays as it is. Returns whether the variable is set to 0.
pub fn choose_fixed_order() -> bool {
    const VARIABLE: &str = "NCCL_NVLS_ENABLE";
    if std::env::var_os(VARIABLE).is_none() && is_single_threaded() {
        // SAFETY: no other thread reads or writes the environment, since there is none.
        unsafe { std::env::set_var(VARIABLE, "0") };
    }
    std::env::var(VARIABLE).is_ok_and(|value| value.trim() == "0")
}

fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    library::load(Library::Nccl)?;
    let found = FUNCTIONS.get_or_init(look_up).as_ref();
    found.ok_or_else(|| Error::Nccl {
        operation: "looking up its functions",
        code: 0,
        message: "the library is too old; NCCL 2.18 or later is needed".to_owned(),
    })
}

fn look_up() -> Option<Functions> {
    // SAFETY: the library is open already; the types of its functions are those of nccl.h.
    unsafe {
        let library = libloading::Library::new(Library::Nccl.file_names()[0]).ok()?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        Some(Functions {
            get_version: *library.get(b"ncclGetVersion").ok()?,
            get_unique_id: *library.get(b"ncclGetUniqueId").ok()?,
            init_rank: *library.get(b"ncclCommInitRank").ok()?,
            abort: *library.get(b"ncclCommAbort").ok()?,
            async_error: *library.get(b"ncclCommGetAsyncError").ok()?,
            error_string: *library.get(b"ncclGetErrorString").ok()?,
            last_error: *library.get(b"ncclGetLastError").ok()?,
            all_reduce: *library.get(b"ncclAllReduce").ok()?,
            reduce: *library.get(b"ncclReduce").ok()?,
            send: *library.get(b"ncclSend").ok()?,
            receive: *library.get(b"ncclRecv").ok()?,
            broadcast: *library.get(b"ncclBroadcast").ok()?,
            group_start: *library.get(b"ncclGroupStart").ok()?,
            group_end: *library.get(b"ncclGroupEnd").ok()?,
        })
    }
}

/// What rank 0 makes and gives to all others before they [join](Nccl::join).
///
/// # Errors
///
/// [`Error::LibraryMissing`], and what NCCL refuses.
pub fn unique_id() -> Result<UniqueId, Error> {
    let functions = functions()?;
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the function writes one id.
    let result = unsafe { (functions.get_unique_id)(&raw mut id) };
    functions.check(result, "making an id for the ranks", std::ptr::null_mut())?;
    Ok(id.internal.map(c_char::cast_unsigned))
}

/// Whether there is an NCCL.
///
/// # Errors
///
/// [`Error::LibraryMissing`], and one that is too old.
pub fn is_there() -> Result<(), Error> {
    functions().map(drop)
}

impl Functions {
    fn check(&self, result: c_int, operation: &'static str, on: ncclComm_t) -> Result<(), Error> {
        // 7: under way, which only communicators answer that do not block.
        if result == 0 || result == 7 {
            return Ok(());
        }
        // SAFETY: both return texts that live as long as the library, or null.
        let (name, last) = unsafe { ((self.error_string)(result), (self.last_error)(on)) };
        let words = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: it is a C string, of which nobody writes while this thread has made no other call.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        };
        let (name, last) = (words(name), words(last));
        let message = if last.is_empty() { name } else { format!("{name}; {last}") };
        Err(Error::Nccl { operation, code: result, message })
    }
}

impl Functions {
    /// Makes a call for each item, as one group; what the first that is refused returns.
    fn group<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut call: impl FnMut(T) -> c_int,
    ) -> c_int {
        // SAFETY: a group is begun and ended on this thread.
        let mut result = unsafe { (self.group_start)() };
        for item in items {
            if result == 0 {
                result = call(item);
            }
        }
        // SAFETY: as above; also after a failure, so that the group is over.
        let ended = unsafe { (self.group_end)() };
        if result == 0 { ended } else { result }
    }
}

impl Nccl {
    /// Joins the ranks that were given the same id; returns when all have. Each has a device of its own.
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`], and what NCCL and the driver refuse.
    pub fn join(gpu: &Gpu, id: UniqueId, rank: usize, world_size: usize) -> Result<Nccl, Error> {
        let functions = functions()?;
        let gpu = gpu.fork_ahead()?;
        gpu.bind(|| "joining the ranks".to_owned())?;
        let id = ncclUniqueId { internal: id.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut communicator = std::ptr::null_mut();
        let (ranks, own) = (world_size as c_int, rank as c_int);
        // SAFETY: the device of this thread is set; the function writes one handle.
        let result = unsafe { (functions.init_rank)(&raw mut communicator, ranks, id, own) };
        functions.check(result, "joining the ranks", std::ptr::null_mut())?;
        Ok(Nccl {
            gpu,
            rank,
            world_size,
            communicator: Mutex::new(Some(Communicator(communicator))),
            ending: Mutex::new(None),
        })
    }

    /// The device, and the stream of all sums.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Queues `values = sum of the values of all ranks`, the same bits on every rank.
    ///
    /// # Errors
    ///
    /// What NCCL refuses.
    pub fn all_reduce(&self, values: &ViewMut<'_, f32>) -> Result<(), Error> {
        self.sum(values.address(), values.len(), ncclDataType_t::ncclFloat32)
    }

    /// [`Nccl::all_reduce`] of numbers of f64.
    ///
    /// # Errors
    ///
    /// What NCCL refuses.
    pub fn all_reduce_f64(&self, values: &mut Buffer<f64>) -> Result<(), Error> {
        self.sum(values.address(), values.len(), ncclDataType_t::ncclFloat64)
    }

    fn sum(&self, address: u64, count: usize, of: ncclDataType_t) -> Result<(), Error> {
        self.call("adding up over ranks", |functions, on, stream| {
            let place = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: so many numbers lie there, borrowed mutably by the caller; the stream orders who reads them.
            unsafe {
                (functions.all_reduce)(place, place, count, of, ncclRedOp_t::ncclSum, on, stream)
            }
        })
    }

    /// Queues, for each part of `values`, its sum over all ranks on the rank that it is given with, in place; other ranks
    /// keep their own values there. Together with others like it that is a reduce-scatter of parts of any length.
    ///
    /// # Errors
    ///
    /// What NCCL refuses.
    ///
    /// # Panics
    ///
    /// If a part is not within `values`.
    pub fn reduce(
        &self,
        values: &mut ViewMut<'_, f32>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        self.each("adding up parts over ranks", values, parts, |functions, place, call| {
            let Call { count, root, on, stream } = call;
            let (of, how) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
            // SAFETY: as for `sum`.
            unsafe { (functions.reduce)(place, place, count, of, how, root, on, stream) }
        })
    }

    /// Queues that each part of `values` comes from the rank that it is given with to all.
    ///
    /// # Errors
    ///
    /// What NCCL refuses.
    ///
    /// # Panics
    ///
    /// If a part is not within `values`.
    pub fn share(
        &self,
        values: &mut ViewMut<'_, f32>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<(), Error> {
        self.each("sharing parts with ranks", values, parts, |functions, place, call| {
            let Call { count, root, on, stream } = call;
            let of = ncclDataType_t::ncclFloat32;
            // SAFETY: as for `sum`.
            unsafe { (functions.broadcast)(place, place, count, of, root, on, stream) }
        })
    }

    /// Queues that values go from rank to rank: each of `outgoing` to the rank that it is given with, and into each of
    /// `incoming` what the rank that it is given with sends here, in its order.
    ///
    /// # Errors
    ///
    /// What NCCL refuses.
    pub fn swap(
        &self,
        outgoing: &[(usize, Buffer<f32>)],
        incoming: &mut [(usize, Buffer<f32>)],
    ) -> Result<(), Error> {
        let of = ncclDataType_t::ncclFloat32;
        self.call("sending parts to ranks", |functions, on, stream| {
            let to = outgoing.iter().map(|(rank, values)| (true, *rank, values));
            let from = incoming.iter().map(|(rank, values)| (false, *rank, values));
            functions.group(to.chain(from), |(is_sent, rank, values)| {
                let place = std::ptr::with_exposed_provenance_mut(values.address() as usize);
                let (count, peer) = (values.len(), rank as c_int);
                // SAFETY: so many numbers lie there, those to be written borrowed mutably; the stream orders who reads them.
                unsafe {
                    match is_sent {
                        true => (functions.send)(place, count, of, peer, on, stream),
                        false => (functions.receive)(place, count, of, peer, on, stream),
                    }
                }
            })
        })
    }

    /// Makes a call for each part, as one group.
    fn each(
        &self,
        operation: &'static str,
        values: &mut ViewMut<'_, f32>,
        parts: &[(usize, Range<usize>)],
        each: impl Fn(&Functions, *mut c_void, Call) -> c_int,
    ) -> Result<(), Error> {
        let inside = |part: &Range<usize>| part.start <= part.end && part.end <= values.len();
        assert!(parts.iter().all(|(_, part)| inside(part)), "parts of {} values", values.len());
        let base = values.address() as usize;
        self.call(operation, |functions, on, stream| {
            functions.group(parts, |(root, part)| {
                let address = base + part.start * size_of::<f32>();
                let place = std::ptr::with_exposed_provenance_mut(address);
                each(functions, place, Call { count: part.len(), root: *root as c_int, on, stream })
            })
        })
    }

    /// Milliseconds of a sum of `bytes` bytes, one after the other in a recording of `repeats` of them: one number for each
    /// of several replays, shortest first.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what NCCL and the driver refuse.
    pub fn all_reduce_ms(&self, bytes: usize, repeats: usize) -> Result<Vec<f64>, Error> {
        const REPLAYS: usize = 5;
        let mut values: Buffer<f32> = self.gpu.zeros(bytes / size_of::<f32>())?;
        // What NCCL makes ready for a size is no part of a recording.
        self.all_reduce(&values.view_mut())?;
        let sums = self
            .gpu
            .record(|| (0..repeats).try_for_each(|_| self.all_reduce(&values.view_mut())))?;
        sums.replay()?;
        let mut points = vec![self.point()?];
        for _ in 0..REPLAYS {
            sums.replay()?;
            points.push(self.point()?);
        }
        let times = points.windows(2).map(|pair| pair[0].elapsed_ms(&pair[1]));
        let mut times: Vec<f64> = times.collect::<Result<_, _>>()?;
        times.iter_mut().for_each(|ms| *ms /= repeats as f64);
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    fn point(&self) -> Result<Event, Error> {
        let point = Event::timed(&self.gpu)?;
        point.record(&self.gpu)?;
        Ok(point)
    }

    fn call(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Functions, ncclComm_t, cudaStream_t) -> c_int,
    ) -> Result<(), Error> {
        let functions = functions()?;
        self.gpu.bind(|| operation.to_owned())?;
        let communicator = self.lock();
        let Some(Communicator(on)) = &*communicator else {
            let message = "another rank is gone".to_owned();
            return Err(Error::Nccl { operation, code: 0, message });
        };
        let result = call(functions, *on, self.gpu.stream.cu_stream().cast());
        functions.check(result, operation, *on)
    }

    /// Whether work that was queued before has failed.
    ///
    /// # Errors
    ///
    /// What failed.
    pub fn check(&self) -> Result<(), Error> {
        let functions = functions()?;
        let communicator = self.lock();
        let Some(Communicator(on)) = &*communicator else { return Ok(()) };
        let (operation, mut found) = ("work over ranks", 0);
        // SAFETY: the handle lives; the function writes one number.
        let asked = unsafe { (functions.async_error)(*on, &raw mut found) };
        functions.check(asked, operation, *on)?;
        functions.check(found, operation, *on)
    }

    /// Ends all work over ranks, also work that waits for a rank that is gone, and refuses more. Does not wait; recordings
    /// with such work must be gone before this handle is.
    pub fn abort(&self) {
        let Ok(functions) = functions() else { return };
        let deadline = Instant::now() + FAREWELL;
        let taken = loop {
            // A call that waits for a rank that is gone keeps the lock; then nothing helps but the end of the process.
            match self.communicator.try_lock() {
                Ok(mut communicator) => break communicator.take(),
                Err(_) if Instant::now() > deadline => return,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let Some(communicator) = taken else { return };
        let gpu = self.gpu.clone();
        // NCCL waits here for recordings to be gone, which the caller may still have.
        let ending = std::thread::Builder::new().name("nccl abort".into()).spawn(move || {
            let Communicator(on) = { communicator };
            if gpu.bind(String::new).is_ok() {
                // SAFETY: the handle was taken, so that nobody else uses it any more.
                let _ = unsafe { (functions.abort)(on) };
            }
        });
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = ending.ok();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Communicator>> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.abort();
        let deadline = Instant::now() + FAREWELL;
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        while ending.as_ref().is_some_and(|thread| !thread.is_finished())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl(rank {} of {} on {:?})", self.rank, self.world_size, self.gpu)
    }
}
