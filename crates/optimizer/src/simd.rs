//! Which vector instructions a kernel is compiled for, chosen at run time.
//!
//! A [`Kernel`] is ordinary code that is always inlined. [`Instructions::run`]
//! inlines it into one function per instruction set, where the compiler may use
//! what the name says; results do not depend on the choice, since every set has
//! the same IEEE operations. Without one of the sets below, a fused multiply-add
//! is a library call: slow, and as exact.
//!
//! What needs more than loops, such as tables, is written with [`Vectors`]: sixteen lanes, by the
//! instructions of each set in `simd/`.
//!
//! This file and those under it are the only ones of the crate with unsafe code: calls into functions
//! compiled for more than the baseline, and the prefetch instruction.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calling a function compiled for instructions that were found")
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::fmt;

/// Code that [`Instructions::run`] compiles once per instruction set. Mark `run`
/// as `#[inline(always)]`, and all it calls in its loops.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it, with what the instruction set can do beyond loops.
    fn run<V: Vectors>(self) -> Self::Output;
}

/// Sixteen lanes of f32 or u32, and what is done with all of them at once. Operations of f32 are those of
/// IEEE, rounded to nearest; sums and products of u32 wrap. Types of this trait are made known to a kernel by
/// [`Instructions::run`] alone, which has found the features.
///
/// *Fours* are sixty-four numbers in four vectors: vector k has number k of each four neighbours. Which
/// lane has which four is up to the set; [`four_numbers`](Self::four_numbers) says it.
pub(crate) trait Vectors {
    /// Whether a fused multiply-add is an instruction; else it is a call.
    const FUSES: bool;
    type Floats: Copy;
    type Words: Copy;
    type Flags: Copy;

    fn load(from: &[f32; 16]) -> Self::Floats;
    fn store(x: Self::Floats, to: &mut [f32; 16]);
    fn load_words(from: &[u32; 16]) -> Self::Words;
    /// Pairs of halves, the first one lower.
    fn pairs(from: &[[u16; 2]; 16]) -> Self::Words;
    fn splat(x: f32) -> Self::Floats;
    fn words(x: u32) -> Self::Words;
    fn bytes(from: &[u8; 16]) -> Self::Words;

    fn add(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    fn sub(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    fn mul(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    fn div(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    fn sqrt(x: Self::Floats) -> Self::Floats;
    /// `x y + z`, rounded once.
    fn fused(x: Self::Floats, y: Self::Floats, z: Self::Floats) -> Self::Floats;
    /// x where it is less than y, else y.
    fn min(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// x where it is more than y, else y.
    fn max(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `x >= y`
    fn reaches(x: Self::Floats, y: Self::Floats) -> Self::Flags;
    /// `x > y`
    fn exceeds(x: Self::Floats, y: Self::Floats) -> Self::Flags;
    /// x where a flag is set, else y.
    fn choose(which: Self::Flags, x: Self::Floats, y: Self::Floats) -> Self::Floats;

    fn bits(x: Self::Floats) -> Self::Words;
    fn float(x: Self::Words) -> Self::Floats;
    /// The binary16 not above finite numbers of at most 65504, and those not below.
    fn halves_below(x: Self::Floats) -> Self::Words;
    fn halves_above(x: Self::Floats) -> Self::Words;
    /// The values of binary16 in the lower halves of words.
    fn from_halves(x: Self::Words) -> Self::Floats;
    /// Signed numbers as f32.
    fn counted(x: Self::Words) -> Self::Floats;
    /// The exponents of normal numbers above zero, and these over their powers of two; of others anything.
    fn exponents(x: Self::Floats) -> Self::Floats;
    fn mantissas(x: Self::Floats) -> Self::Floats;
    /// Numbers from 0 to below 2^31, rounded down.
    fn whole(x: Self::Floats) -> Self::Words;
    fn plus(x: Self::Words, y: Self::Words) -> Self::Words;
    fn minus(x: Self::Words, y: Self::Words) -> Self::Words;
    fn and(x: Self::Words, y: Self::Words) -> Self::Words;
    fn or(x: Self::Words, y: Self::Words) -> Self::Words;
    fn xor(x: Self::Words, y: Self::Words) -> Self::Words;
    fn shl<const N: u32>(x: Self::Words) -> Self::Words;
    fn shr<const N: u32>(x: Self::Words) -> Self::Words;
    /// Signed numbers, shifted.
    fn sar<const N: u32>(x: Self::Words) -> Self::Words;
    /// Halves exchanged.
    fn turned(x: Self::Words) -> Self::Words;
    fn smaller(x: Self::Words, y: Self::Words) -> Self::Words;
    fn larger(x: Self::Words, y: Self::Words) -> Self::Words;
    fn times(x: Self::Words, y: Self::Words) -> Self::Words;
    /// The halves of products of 64 bits, added without carry.
    fn folded(x: Self::Words, y: Self::Words) -> Self::Words;
    fn is_below(x: Self::Words, y: Self::Words) -> Self::Flags;
    fn choose_words(which: Self::Flags, x: Self::Words, y: Self::Words) -> Self::Words;
    /// `table[place]`; of places of 16 or more, the lower four bits count.
    fn look_up(table: Self::Floats, places: Self::Words) -> Self::Floats;

    /// Adds the squares of numbers, which are exact.
    fn add_squares(of: &[f32; 16], to: &mut [f64; 16]);

    /// The number of flags that are set.
    fn count(which: Self::Flags) -> u32;
    fn total(x: Self::Words) -> u32;
    fn smallest(x: Self::Words) -> u32;
    fn largest(x: Self::Words) -> u32;

    /// Of each of sixteen pairs of vectors of bits the smallest of the first and the largest of the second, a lane for
    /// each pair.
    fn extents(of: &[[[f32; 16]; 2]; 16]) -> [Self::Words; 2];

    /// Which four each lane has.
    fn four_numbers() -> Self::Words;
    fn fours(from: &[f32; 64]) -> [Self::Floats; 4];
    fn store_fours(fours: [Self::Floats; 4], to: &mut [f32; 64]);
    /// A word for each four: its bytes, the first of them lowest.
    fn four_words(from: &[u8; 64]) -> Self::Words;
    /// A word for each four.
    fn four_bytes(from: &[u8; 16]) -> Self::Words;
    fn four_halves(from: &[u16; 16]) -> Self::Words;
    fn to_four_bytes(x: Self::Words) -> [u8; 16];
    fn to_four_halves(x: Self::Words) -> [u16; 16];
    fn to_four_words(x: Self::Words) -> [u32; 16];
    /// The sum of a number for each four, by halves: that of j and j + 8 first.
    fn tree_sum(x: Self::Floats) -> f32;
    /// Those of sixteen vectors that were stored, a lane for each.
    fn tree_sums(of: &[[f32; 16]; 16]) -> Self::Floats;

    /// The entries of codes, in order.
    fn look_up_256(table: &Table, codes: &[u8; 64]) -> [Self::Floats; 4];
    /// Guesses, of less than 256, and one more where a number exceeds the entry of its guess. If they `turn`, the guess
    /// of a number below zero is 253 less that of its magnitude, which is given, or 0.
    fn settle(
        table: &Table,
        guesses: [Self::Words; 4],
        x: [Self::Floats; 4],
        turn: bool,
        to: &mut [u8; 64],
    );
}

/// Entries that belong to codes, where no register of them crosses a line of memory.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Table {
    entries: [f32; 256],
    /// The bytes of all entries, the lowest ones first.
    planes: [[u8; 256]; 4],
}

/// Loops.
pub(crate) struct Plain;
/// AVX2, F16C, FMA and POPCNT.
#[cfg(target_arch = "x86_64")]
struct Avx2;
/// AVX-512 F, BW, DQ, VL and VBMI, and POPCNT.
#[cfg(target_arch = "x86_64")]
struct Avx512;

impl Table {
    pub(crate) fn new(entries: &[f32; 256]) -> Table {
        let mut planes = [[0; 256]; 4];
        for (code, entry) in entries.iter().enumerate() {
            for (plane, byte) in planes.iter_mut().zip(entry.to_bits().to_le_bytes()) {
                plane[code] = byte;
            }
        }
        Table { entries: *entries, planes }
    }
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
            Set::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("popcnt")
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

/// Where a slice begins, to ask for its lines; nothing is read through it.
#[derive(Clone, Copy)]
pub(crate) struct Place<T>(*const T);

impl<T> Place<T> {
    pub(crate) fn of(slice: &[T]) -> Place<T> {
        Place(slice.as_ptr())
    }

    /// Asks for the line of memory that holds element `index` counted from the start,
    /// which may lie anywhere: a hint that changes no result.
    #[inline(always)]
    pub(crate) fn prefetch(self, index: usize) {
        let address = self.0.wrapping_add(index);
        // SAFETY: the instruction may be given any address; it neither reads nor faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

/// [`Place::prefetch`] of a slice.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    Place::of(slice).prefetch(index);
}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// # Safety
///
/// 1. The machine has AVX2, F16C, FMA and POPCNT.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// # Safety
///
/// 1. The machine has AVX-512 F, BW, DQ, VL and VBMI, and POPCNT.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}
