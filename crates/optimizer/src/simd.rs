//! Which vector instructions a kernel is compiled for, chosen at run time.
//!
//! A [`Kernel`] is ordinary code that is always inlined. [`Instructions::run`]
//! inlines it into one function per instruction set, where the compiler may use
//! what the name says; results do not depend on the choice, since every set has
//! the same IEEE operations. Without one of the sets below, a fused multiply-add
//! is a library call: slow, and as exact.
//!
//! This file is the only one of the crate with unsafe code: calls into functions
//! compiled for more than the baseline, and the prefetch instruction.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calling a function compiled for instructions that were found")
)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::fmt;

/// Code that [`Instructions::run`] compiles once per instruction set. Mark `run`
/// as `#[inline(always)]`, and all it calls in its loops.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it.
    fn run(self) -> Self::Output;
}

/// A set of vector instructions that this machine has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Instructions(Set);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// All sets, the widest last, whether this machine has them or not.
const ALL: &[Instructions] = &[
    Instructions(Set::Portable),
    #[cfg(target_arch = "x86_64")]
    Instructions(Set::Avx2),
    #[cfg(target_arch = "x86_64")]
    Instructions(Set::Avx512),
];

impl Instructions {
    /// The sets that this machine has, the widest last.
    #[must_use]
    pub fn available() -> Vec<Instructions> {
        ALL.iter().copied().filter(|set| set.is_available()).collect()
    }

    /// The widest set that this machine has.
    #[must_use]
    pub fn best() -> Instructions {
        let widest = ALL.iter().copied().rfind(|set| set.is_available());
        widest.unwrap_or(Instructions(Set::Portable))
    }

    fn is_available(self) -> bool {
        match self.0 {
            Set::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// The name of the set: `portable`, `avx2` or `avx512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }

    /// Runs `kernel`, compiled for this set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Set::Portable => kernel.run(),
            // SAFETY: 1. others get a value of this set only from `available` or `best`,
            // which found the features.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: 1. as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { run_avx512(kernel) },
        }
    }
}

/// Asks for the line of memory that holds element `index` counted from the start of
/// `slice`, which may lie anywhere: a hint that changes no result.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    let address = slice.as_ptr().wrapping_add(index);
    // SAFETY: the instruction may be given any address; it neither reads nor faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// # Safety
///
/// 1. The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// # Safety
///
/// 1. The machine has AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
