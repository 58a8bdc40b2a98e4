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
use std::arch::x86_64::{
    _CMP_LE_OQ, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch, _mm256_and_si256,
    _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cvtepu8_epi32, _mm256_i32gather_epi32,
    _mm256_i32gather_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_permutevar8x32_ps,
    _mm256_set1_epi32, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_and_si512,
    _mm512_cmp_ps_mask, _mm512_cvtepu8_epi32, _mm512_i32gather_epi32, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_mask_mov_epi32, _mm512_or_si512,
    _mm512_permutex2var_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_test_epi32_mask,
};
use std::fmt;

/// Code that [`Instructions::run`] compiles once per instruction set. Mark `run`
/// as `#[inline(always)]`, and all it calls in its loops.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it, with what the instruction set can do beyond loops.
    fn run<V: Vectors>(self) -> Self::Output;
}

/// Looks into tables, for which the compiler finds no vector instructions. Types of this trait are made
/// known to a kernel by [`Instructions::run`] alone, which has found the features.
pub(crate) trait Vectors {
    /// `out[i] = table[codes[i]]`; of codes of 16 or more, the lower four bits count.
    fn look_up_16(table: &[f32; 16], codes: &[u32], out: &mut [f32]);

    /// How many of the levels but the first each number has reached; they ascend.
    fn count_16(levels: &[f32; 16], numbers: &[f32], counts: &mut [u32]);

    /// `out[i] = table[codes[i]]`
    fn look_up_256(table: &[f32; 256], codes: &[u8], out: &mut [f32]);

    /// `words[i] = table[words[i]]`; of places of 4096 or more, the lower 12 bits count.
    fn look_up_4096(table: &[u32; 4096], words: &mut [u32]);
}

/// Loops.
pub(crate) struct Plain;
/// AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
struct Avx2;
/// AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
struct Avx512;

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
            Set::Portable => kernel.run::<Plain>(),
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
    kernel.run::<Avx2>()
}

/// # Safety
///
/// 1. The machine has AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

impl Vectors for Plain {
    #[inline(always)]
    fn count_16(levels: &[f32; 16], numbers: &[f32], counts: &mut [u32]) {
        for (count, &number) in counts.iter_mut().zip(numbers) {
            *count = levels[1..].iter().map(|&level| u32::from(level <= number)).sum();
        }
    }

    #[inline(always)]
    fn look_up_16(table: &[f32; 16], codes: &[u32], out: &mut [f32]) {
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = table[code as usize % 16];
        }
    }

    #[inline(always)]
    fn look_up_256(table: &[f32; 256], codes: &[u8], out: &mut [f32]) {
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = table[code as usize];
        }
    }

    #[inline(always)]
    fn look_up_4096(table: &[u32; 4096], words: &mut [u32]) {
        for word in words {
            *word = table[*word as usize % 4096];
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Avx2 {
    #[inline(always)]
    fn count_16(levels: &[f32; 16], numbers: &[f32], counts: &mut [u32]) {
        Plain::count_16(levels, numbers, counts);
    }

    #[inline(always)]
    fn look_up_16(table: &[f32; 16], codes: &[u32], out: &mut [f32]) {
        let (code_runs, codes) = codes.as_chunks::<8>();
        let (out_runs, out) = out.as_chunks_mut::<8>();
        for (codes, out) in code_runs.iter().zip(out_runs) {
            // SAFETY: 1. whoever has this type found the features.
            unsafe { look_up_16_avx2(table, codes, out) };
        }
        Plain::look_up_16(table, codes, out);
    }

    #[inline(always)]
    fn look_up_256(table: &[f32; 256], codes: &[u8], out: &mut [f32]) {
        let (code_runs, codes) = codes.as_chunks::<8>();
        let (out_runs, out) = out.as_chunks_mut::<8>();
        for (codes, out) in code_runs.iter().zip(out_runs) {
            // SAFETY: 1. as above.
            unsafe { look_up_256_avx2(table, codes, out) };
        }
        Plain::look_up_256(table, codes, out);
    }

    #[inline(always)]
    fn look_up_4096(table: &[u32; 4096], words: &mut [u32]) {
        let (runs, words) = words.as_chunks_mut::<8>();
        for words in runs {
            // SAFETY: 1. as above.
            unsafe { look_up_4096_avx2(table, words) };
        }
        Plain::look_up_4096(table, words);
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Avx512 {
    #[inline(always)]
    fn count_16(levels: &[f32; 16], numbers: &[f32], counts: &mut [u32]) {
        let (number_runs, numbers) = numbers.as_chunks::<16>();
        let (count_runs, counts) = counts.as_chunks_mut::<16>();
        for (numbers, counts) in number_runs.iter().zip(count_runs) {
            // SAFETY: 1. whoever has this type found the features.
            unsafe { count_16_avx512(levels, numbers, counts) };
        }
        Plain::count_16(levels, numbers, counts);
    }

    #[inline(always)]
    fn look_up_16(table: &[f32; 16], codes: &[u32], out: &mut [f32]) {
        let (code_runs, codes) = codes.as_chunks::<16>();
        let (out_runs, out) = out.as_chunks_mut::<16>();
        for (codes, out) in code_runs.iter().zip(out_runs) {
            // SAFETY: 1. whoever has this type found the features.
            unsafe { look_up_16_avx512(table, codes, out) };
        }
        Plain::look_up_16(table, codes, out);
    }

    #[inline(always)]
    fn look_up_256(table: &[f32; 256], codes: &[u8], out: &mut [f32]) {
        let (code_runs, codes) = codes.as_chunks::<16>();
        let (out_runs, out) = out.as_chunks_mut::<16>();
        for (codes, out) in code_runs.iter().zip(out_runs) {
            // SAFETY: 1. as above.
            unsafe { look_up_256_avx512(table, codes, out) };
        }
        Plain::look_up_256(table, codes, out);
    }

    #[inline(always)]
    fn look_up_4096(table: &[u32; 4096], words: &mut [u32]) {
        let (runs, words) = words.as_chunks_mut::<16>();
        for words in runs {
            // SAFETY: 1. as above.
            unsafe { look_up_4096_avx512(table, words) };
        }
        Plain::look_up_4096(table, words);
    }
}

/// # Safety
///
/// 1. The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn look_up_16_avx2(table: &[f32; 16], codes: &[u32; 8], out: &mut [f32; 8]) {
    // SAFETY: all reads and writes are of arrays of the width that they have.
    unsafe {
        let codes = _mm256_loadu_si256(codes.as_ptr().cast());
        let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), codes);
        let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), codes);
        // Bit 3 of a code goes where a blend looks.
        let choice = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        _mm256_storeu_ps(out.as_mut_ptr(), _mm256_blendv_ps(low, high, choice));
    }
}

/// # Safety
///
/// 1. The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn look_up_256_avx2(table: &[f32; 256], codes: &[u8; 8], out: &mut [f32; 8]) {
    // SAFETY: the codes are below the table's length; the rest as above.
    unsafe {
        let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.as_ptr().cast()));
        _mm256_storeu_ps(out.as_mut_ptr(), _mm256_i32gather_ps::<4>(table.as_ptr(), codes));
    }
}

/// # Safety
///
/// 1. The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn look_up_16_avx512(table: &[f32; 16], codes: &[u32; 16], out: &mut [f32; 16]) {
    // SAFETY: all reads and writes are of arrays of the width that they have.
    unsafe {
        let codes = _mm512_loadu_si512(codes.as_ptr().cast());
        let table = _mm512_loadu_ps(table.as_ptr());
        _mm512_storeu_ps(out.as_mut_ptr(), _mm512_permutexvar_ps(codes, table));
    }
}

/// # Safety
///
/// 1. The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn count_16_avx512(levels: &[f32; 16], numbers: &[f32; 16], counts: &mut [u32; 16]) {
    // SAFETY: all reads and writes are of arrays of the width that they have.
    unsafe {
        let numbers = _mm512_loadu_ps(numbers.as_ptr());
        let levels = _mm512_loadu_ps(levels.as_ptr());
        let mut count = _mm512_set1_epi32(0);
        // By halves: the level that many steps further on, if the number has reached it.
        for step in [8, 4, 2, 1] {
            let next = _mm512_or_si512(count, _mm512_set1_epi32(step));
            let level = _mm512_permutexvar_ps(next, levels);
            let has_reached = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(level, numbers);
            count = _mm512_mask_mov_epi32(count, has_reached, next);
        }
        _mm512_storeu_si512(counts.as_mut_ptr().cast(), count);
    }
}

/// # Safety
///
/// 1. The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn look_up_256_avx512(table: &[f32; 256], codes: &[u8; 16], out: &mut [f32; 16]) {
    // SAFETY: all reads and writes are of arrays of the width that they have.
    unsafe {
        let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
        let part = |number: usize| _mm512_loadu_ps(table.as_ptr().add(16 * number));
        // One of 32 entries by the lower five bits, then one of two by each bit more.
        let of_32 =
            |number: usize| _mm512_permutex2var_ps(part(2 * number), codes, part(2 * number + 1));
        let has = |bit: i32| _mm512_test_epi32_mask(codes, _mm512_set1_epi32(1 << bit));
        let (bit_5, bit_6, bit_7) = (has(5), has(6), has(7));
        let of_64 =
            |number: usize| _mm512_mask_blend_ps(bit_5, of_32(2 * number), of_32(2 * number + 1));
        let of_128 =
            |number: usize| _mm512_mask_blend_ps(bit_6, of_64(2 * number), of_64(2 * number + 1));
        _mm512_storeu_ps(out.as_mut_ptr(), _mm512_mask_blend_ps(bit_7, of_128(0), of_128(1)));
    }
}

/// # Safety
///
/// 1. The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn look_up_4096_avx2(table: &[u32; 4096], words: &mut [u32; 8]) {
    // SAFETY: the places are cut to 12 bits; the rest as above.
    unsafe {
        let places = _mm256_loadu_si256(words.as_ptr().cast());
        let places = _mm256_and_si256(places, _mm256_set1_epi32(4095));
        let found = _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), places);
        _mm256_storeu_si256(words.as_mut_ptr().cast(), found);
    }
}

/// # Safety
///
/// 1. The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn look_up_4096_avx512(table: &[u32; 4096], words: &mut [u32; 16]) {
    // SAFETY: the places are cut to 12 bits; the rest as above.
    unsafe {
        let places = _mm512_loadu_si512(words.as_ptr().cast());
        let places = _mm512_and_si512(places, _mm512_set1_epi32(4095));
        let found = _mm512_i32gather_epi32::<4>(places, table.as_ptr().cast());
        _mm512_storeu_si512(words.as_mut_ptr().cast(), found);
    }
}
