//! The versions of the loaded libraries.

#![expect(unsafe_code, reason = "calling into loaded libraries")]

use std::ffi::c_int;

use crate::library::Library;

/// The version of a library that [`load`](crate::library::load) has made ready.
pub(crate) fn of(library: Library) -> Option<String> {
    match library {
        Library::Driver => driver().map(|(major, minor)| format!("{major}.{minor}")),
        Library::Nvrtc => nvrtc().map(|(major, minor)| format!("{major}.{minor}")),
        Library::CublasLt => {
            // SAFETY: the library is loaded; the function takes nothing and cannot fail.
            let number = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() };
            Some(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
        }
        Library::Nccl => crate::nccl::version(),
    }
}

/// The CUDA version that the driver supports.
pub(crate) fn driver() -> Option<(u32, u32)> {
    let mut number: c_int = 0;
    // SAFETY: the library is loaded, and the function writes one int.
    let result = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut number) };
    let number = u32::try_from(number).ok()?;
    result.result().ok().map(|()| (number / 1000, number % 1000 / 10))
}

/// The version of NVRTC.
pub(crate) fn nvrtc() -> Option<(i32, i32)> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is loaded, and the function writes two ints.
    let result = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    result.result().ok().map(|()| (major, minor))
}

/// The architectures that NVRTC compiles for, as in 90 of `sm_90`.
pub(crate) fn nvrtc_architectures() -> Option<Vec<c_int>> {
    let mut count: c_int = 0;
    // SAFETY: the library is loaded, and the function writes one int.
    let counted = unsafe { cudarc::nvrtc::sys::nvrtcGetNumSupportedArchs(&mut count) };
    counted.result().ok()?;
    let mut architectures = vec![0; usize::try_from(count).ok()?];
    // SAFETY: the library is loaded, and the function writes as many ints as it counted.
    let listed = unsafe { cudarc::nvrtc::sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
    listed.result().ok().map(|()| architectures)
}
