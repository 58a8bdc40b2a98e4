//! The launch of a kernel, and how many blocks it takes.
//!
//! Every kernel takes one struct by value, which may be given as its bytes. A launch is the one place where addresses meet a
//! kernel that believes them, so its duties are numbered, and each caller answers them.

#![expect(unsafe_code, reason = "a kernel reads and writes whatever its argument says")]

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{DriverError, result, sys};

use crate::gpu::During;
use crate::module::Kernel;
use crate::{Error, Gpu};

/// Most blocks of a launch in its one direction.
const BLOCKS_MAX: u64 = i32::MAX as u64;

/// The blocks for `elements`, as many as a launch can have.
///
/// # Errors
///
/// [`Error::TooLarge`].
pub(crate) fn blocks_of(elements: u64, block_elements: u64) -> Result<u32, Error> {
    checked_blocks(elements.div_ceil(block_elements))
}

/// `blocks`, if a launch can have as many.
///
/// # Errors
///
/// [`Error::TooLarge`].
pub(crate) fn checked_blocks(blocks: u64) -> Result<u32, Error> {
    let limit = "the 2^31 - 1 blocks of a launch";
    let too_large = Error::TooLarge { what: "a model", limit };
    if blocks <= BLOCKS_MAX { Ok(blocks as u32) } else { Err(too_large) }
}

/// Queues a kernel on the stream of `gpu`. Without blocks there is nothing to do.
///
/// # Errors
///
/// What the driver refuses.
///
/// # Safety
///
/// 1. `argument` is laid out as the one parameter of the kernel, and `threads` is what it was compiled for.
/// 2. All memory that the kernel reads through `argument` is allocated, on this device, until the
///    kernel is done, and holds what the kernel expects.
/// 3. The same of all memory that it writes, and nothing else uses that meanwhile but work on the
///    same stream.
pub(crate) unsafe fn launch<A: ?Sized>(
    gpu: &Gpu,
    kernel: &Kernel,
    blocks: u32,
    threads: u32,
    argument: &A,
) -> Result<(), Error> {
    // SAFETY: the caller's.
    unsafe { launch_with_shared(gpu, kernel, (blocks, threads, 0), argument) }
}

/// [`launch`] of so many blocks, threads of each, and bytes of shared memory beyond what the kernel has
/// by itself; more than 48 KiB of it after [`Kernel::allow_shared`].
///
/// # Errors
///
/// What the driver refuses.
///
/// # Safety
///
/// As of [`launch`]; and the kernel was compiled for as much shared memory.
pub(crate) unsafe fn launch_with_shared<A: ?Sized>(
    gpu: &Gpu,
    kernel: &Kernel,
    (blocks, threads, shared_bytes): (u32, u32, u32),
    argument: &A,
) -> Result<(), Error> {
    queue(gpu, kernel, blocks, argument, |parameters| {
        let stream = gpu.stream.cu_stream();
        let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
        // SAFETY: the function belongs to a loaded module, which the kernel keeps; the driver copies the
        // argument before it returns; the rest are the caller's duties 1 to 3.
        unsafe {
            result::launch_kernel(kernel.function, grid, block, shared_bytes, stream, parameters)
        }
    })
}

/// Hands a kernel and its parameters over to the driver, by `launch`, where there are blocks.
fn queue<A: ?Sized>(
    gpu: &Gpu,
    kernel: &Kernel,
    blocks: u32,
    argument: &A,
    launch: impl FnOnce(&mut [*mut c_void; 1]) -> Result<(), DriverError>,
) -> Result<(), Error> {
    if blocks == 0 {
        return Ok(());
    }
    let operation = || format!("launching {}", kernel.name);
    gpu.bind(operation)?;
    launch(&mut [ptr::from_ref(argument).cast_mut().cast()]).during(operation)
}

/// [`launch_with_shared`] of a kernel that may begin before the work before it is done: as soon as all blocks of the
/// kernel before it have ended or said so (`launch_next` in `cuda/engine.cuh`), if that is a kernel. It waits
/// for that work by itself (`launch_wait`).
///
/// # Errors
///
/// What the driver refuses.
///
/// # Safety
///
/// As of [`launch_with_shared`]; and
///
/// 4. All threads of the kernel wait before they end, and before they touch memory that is written, or read and then
///    written, by the operation before it on the stream.
pub(crate) unsafe fn launch_early<A: ?Sized>(
    gpu: &Gpu,
    kernel: &Kernel,
    (blocks, threads, shared_bytes): (u32, u32, u32),
    argument: &A,
) -> Result<(), Error> {
    // SAFETY: an attribute is numbers, for which zeros are values.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let config = sys::CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared_bytes,
        hStream: gpu.stream.cu_stream(),
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    queue(gpu, kernel, blocks, argument, |parameters| {
        let parameters = parameters.as_mut_ptr();
        // SAFETY: as in `launch_with_shared`; the one attribute lives until the driver returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel.function, parameters, ptr::null_mut())
        }
        .result()
    })
}

/// Blocks whose threads stride over `accesses`: no more than fill the device a few times.
pub(crate) fn striding_blocks(gpu: &Gpu, accesses: usize, threads: u32) -> u32 {
    const BLOCKS_OF_MULTIPROCESSOR: usize = 16;
    let most = gpu.facts().multiprocessors as usize * BLOCKS_OF_MULTIPROCESSOR;
    accesses.div_ceil(threads as usize).clamp(1, most) as u32
}
