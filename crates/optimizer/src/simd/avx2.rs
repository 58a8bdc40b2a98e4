//! Sixteen lanes in two registers of AVX2.
//!
//! Four neighbours lie in four pairs of registers, transposed within runs of 128 bits; so lane 4 L + k of the
//! first register holds the four 2 k + L, and that of the second the one 8 further on.

use std::arch::x86_64::*;

use super::{Avx2, Plain, Table, Vectors};

/// Two registers.
type Floats = [__m256; 2];
type Words = [__m256i; 2];

/// Lanes in the order of fours.
const TO_LANES: [i32; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Fours in the order of lanes.
const TO_FOURS: [i32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// One function of vectors each, all of whose intrinsics are of AVX2 or FMA.
macro_rules! functions {
    ($($name:ident$(::<$n:ident>)?($($x:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name$(<const $n: u32>)?($($x: $type),*) -> $result {
            #[target_feature(enable = "avx2,f16c,fma,popcnt")]
            #[inline]
            fn on_this_machine$(<const $n: u32>)?($($x: $type),*) -> $result {
                $body
            }
            // SAFETY: 1. whoever has this type found the features.
            unsafe { on_this_machine$(::<$n>)?($($x),*) }
        }
    )* };
}

/// The same of both registers of each vector.
macro_rules! of_both {
    ($function:ident, $($x:expr),*) => {
        [$function($($x[0]),*), $function($($x[1]),*)]
    };
}

impl Vectors for Avx2 {
    const FUSES: bool = true;
    type Floats = Floats;
    type Words = Words;
    type Flags = Floats;

    functions! {
        load(from: &[f32; 16]) -> Floats = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
        };
        store(x: Floats, to: &mut [f32; 16]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);

            }
        };
        load_words(from: &[u32; 16]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { [
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(8).cast()),
        ] }
        };
        pairs(from: &[[u16; 2]; 16]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { [
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(8).cast()),
        ] }
        };
        splat(x: f32) -> Floats = [_mm256_set1_ps(x); 2];
        words(x: u32) -> Words = [_mm256_set1_epi32(x as i32); 2];
        bytes(from: &[u8; 16]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast())),
        ] }
        };

        add(x: Floats, y: Floats) -> Floats = of_both!(_mm256_add_ps, x, y);
        sub(x: Floats, y: Floats) -> Floats = of_both!(_mm256_sub_ps, x, y);
        mul(x: Floats, y: Floats) -> Floats = of_both!(_mm256_mul_ps, x, y);
        div(x: Floats, y: Floats) -> Floats = of_both!(_mm256_div_ps, x, y);
        sqrt(x: Floats) -> Floats = of_both!(_mm256_sqrt_ps, x);
        fused(x: Floats, y: Floats, z: Floats) -> Floats = of_both!(_mm256_fmadd_ps, x, y, z);
        min(x: Floats, y: Floats) -> Floats = of_both!(_mm256_min_ps, x, y);
        max(x: Floats, y: Floats) -> Floats = of_both!(_mm256_max_ps, x, y);
        reaches(x: Floats, y: Floats) -> Floats =
            [_mm256_cmp_ps::<_CMP_GE_OQ>(x[0], y[0]), _mm256_cmp_ps::<_CMP_GE_OQ>(x[1], y[1])];
        exceeds(x: Floats, y: Floats) -> Floats =
            [_mm256_cmp_ps::<_CMP_GT_OQ>(x[0], y[0]), _mm256_cmp_ps::<_CMP_GT_OQ>(x[1], y[1])];
        choose(which: Floats, x: Floats, y: Floats) -> Floats = of_both!(_mm256_blendv_ps, y, x, which);

        bits(x: Floats) -> Words = of_both!(_mm256_castps_si256, x);
        float(x: Words) -> Floats = of_both!(_mm256_castsi256_ps, x);
        counted(x: Words) -> Floats = of_both!(_mm256_cvtepi32_ps, x);
        exponents(x: Floats) -> Floats = x.map(|x| {
            let biased = _mm256_srli_epi32::<23>(_mm256_castps_si256(x));
            _mm256_sub_ps(_mm256_cvtepi32_ps(biased), _mm256_set1_ps(127.0))
        });
        mantissas(x: Floats) -> Floats = x.map(|x| {
            let fraction = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x007F_FFFF)));
            _mm256_or_ps(fraction, _mm256_set1_ps(1.0))
        });
        whole(x: Floats) -> Words = of_both!(_mm256_cvttps_epi32, x);
        plus(x: Words, y: Words) -> Words = of_both!(_mm256_add_epi32, x, y);
        minus(x: Words, y: Words) -> Words = of_both!(_mm256_sub_epi32, x, y);
        and(x: Words, y: Words) -> Words = of_both!(_mm256_and_si256, x, y);
        or(x: Words, y: Words) -> Words = of_both!(_mm256_or_si256, x, y);
        xor(x: Words, y: Words) -> Words = of_both!(_mm256_xor_si256, x, y);
        shl::<N>(x: Words) -> Words = {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi32(x[0], count), _mm256_sll_epi32(x[1], count)]
        };
        shr::<N>(x: Words) -> Words = {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi32(x[0], count), _mm256_srl_epi32(x[1], count)]
        };
        sar::<N>(x: Words) -> Words = {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sra_epi32(x[0], count), _mm256_sra_epi32(x[1], count)]
        };
        halves_below(x: Floats) -> Words = x.map(|x| {
            _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<_MM_FROUND_TO_NEG_INF>(x))
        });
        halves_above(x: Floats) -> Words = x.map(|x| {
            _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<_MM_FROUND_TO_POS_INF>(x))
        });
        from_halves(x: Words) -> Floats = x.map(|x| {
            // Halves of both runs of 128 bits, side by side.
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(x, x));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        });
        turned(x: Words) -> Words = x.map(|x| {
            _mm256_or_si256(_mm256_slli_epi32::<16>(x), _mm256_srli_epi32::<16>(x))
        });
        smaller(x: Words, y: Words) -> Words = of_both!(_mm256_min_epu32, x, y);
        larger(x: Words, y: Words) -> Words = of_both!(_mm256_max_epu32, x, y);
        times(x: Words, y: Words) -> Words = of_both!(_mm256_mullo_epi32, x, y);
        folded(x: Words, y: Words) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { of_both!(folded, x, y) }
        };
        is_below(x: Words, y: Words) -> Floats = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { of_both!(is_below, x, y) }
        };
        choose_words(which: Floats, x: Words, y: Words) -> Words =
            Avx2::bits(Avx2::choose(which, Avx2::float(x), Avx2::float(y)));
        look_up(table: Floats, places: Words) -> Floats = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { places.map(|places| look_up(table, places)) }
        };

        add_squares(of: &[f32; 16], to: &mut [f64; 16]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                for part in [0, 4, 8, 12] {
                    let x = _mm256_cvtps_pd(_mm_loadu_ps(of.as_ptr().add(part)));
                    let sum = to.as_mut_ptr().add(part);
                    // The product is exact, so that a fused one is no other.
                    _mm256_storeu_pd(sum, _mm256_fmadd_pd(x, x, _mm256_loadu_pd(sum)));
                }
            }
        };

        count(which: Floats) -> u32 =
            which.map(|which| _mm256_movemask_ps(which).count_ones()).iter().sum();
        total(x: Words) -> u32 = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { Plain::total(in_memory(x)) }
        };
        smallest(x: Words) -> u32 = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { Plain::smallest(in_memory(x)) }
        };
        largest(x: Words) -> u32 = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { Plain::largest(in_memory(x)) }
        };

        extents(of: &[[[f32; 16]; 2]; 16]) -> [Words; 2] = {
            let [least, most] = Plain::extents(of);
            [Avx2::load_words(&least), Avx2::load_words(&most)]
        };

        four_numbers() -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let first = _mm256_loadu_si256(TO_LANES.as_ptr().cast());
                [first, _mm256_add_epi32(first, _mm256_set1_epi32(8))]

            }
        };
        fours(from: &[f32; 64]) -> [Floats; 4] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let half = |half: usize| {
                    let run = |number: usize| _mm256_loadu_ps(from.as_ptr().add(32 * half + 8 * number));
                    transposed([run(0), run(1), run(2), run(3)])
                };
                let (low, high) = (half(0), half(1));
                [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]

            }
        };
        store_fours(fours: [Floats; 4], to: &mut [f32; 64]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                for half in 0..2 {
                    for (number, run) in transposed(fours.map(|four| four[half])).into_iter().enumerate() {
                        _mm256_storeu_ps(to.as_mut_ptr().add(32 * half + 8 * number), run);
                    }
                }

            }
        };
        four_words(from: &[u8; 64]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order([
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(32).cast()),
        ], TO_LANES) }
        };
        four_bytes(from: &[u8; 16]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order(Avx2::bytes(from), TO_LANES) }
        };
        four_halves(from: &[u16; 16]) -> Words = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ], TO_LANES) }
        };
        to_four_bytes(x: Words) -> [u8; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { Plain::to_four_bytes(in_memory(in_order(x, TO_FOURS))) }
        };
        to_four_halves(x: Words) -> [u16; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { Plain::to_four_halves(in_memory(in_order(x, TO_FOURS))) }
        };
        to_four_words(x: Words) -> [u32; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_memory(in_order(x, TO_FOURS)) }
        };
        tree_sum(x: Floats) -> f32 = {
            // Four j + 8 lies in the other register, j + 4 two lanes after j, j + 2 one, and j + 1 one run.
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm256_add_ps(x, _mm256_permute_ps::<0b01_00_11_10>(x));
            let x = _mm256_add_ps(x, _mm256_permute_ps::<0b10_11_00_01>(x));
            _mm256_cvtss_f32(_mm256_add_ps(x, _mm256_permute2f128_ps::<1>(x, x)))
        };

        tree_sums(of: &[[f32; 16]; 16]) -> Floats = {
            let mut sums = [0.0; 16];
            for (sum, of) in sums.iter_mut().zip(of) {
                *sum = Avx2::tree_sum(Avx2::load(of));
            }
            Avx2::load(&sums)
        };

        look_up_256(table: &Table, codes: &[u8; 64]) -> [Floats; 4] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let of = |run: usize| found(table, _mm256_cvtepu8_epi32(
                    _mm_loadl_epi64(codes.as_ptr().add(8 * run).cast())
                ));
                [[of(0), of(1)], [of(2), of(3)], [of(4), of(5)], [of(6), of(7)]]

            }
        };
        settle(table: &Table, guesses: [Words; 4], x: [Floats; 4], turn: bool, to: &mut [u8; 64]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let runs = to.as_chunks_mut::<16>().0;
                for (run, (mut guesses, x)) in runs.iter_mut().zip(guesses.into_iter().zip(x)) {
                    if turn {
                        guesses = turned_over(guesses, Avx2::sar::<31>(Avx2::bits(x)));
                    }
                    let thresholds = guesses.map(|guesses| found(table, guesses));
                    // Taking -1 away from those above theirs.
                    let above = Avx2::bits(Avx2::exceeds(x, thresholds));
                    *run = Plain::to_four_bytes(in_memory(Avx2::minus(guesses, above)));
                }
            }
        };
    }
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn in_memory(x: Words) -> [u32; 16] {
    let mut words = [0; 16];
    // SAFETY: 1. as here; the array is as long as both registers.
    unsafe {
        _mm256_storeu_si256(words.as_mut_ptr().cast(), x[0]);
        _mm256_storeu_si256(words.as_mut_ptr().add(8).cast(), x[1]);
    }
    words
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn in_order(x: Words, order: [i32; 8]) -> Words {
    // SAFETY: 1. as here; the array is as long as a register.
    let order = unsafe { _mm256_loadu_si256(order.as_ptr().cast()) };
    [_mm256_permutevar8x32_epi32(x[0], order), _mm256_permutevar8x32_epi32(x[1], order)]
}

/// Guesses of magnitudes, where a sign is all ones 253 less that or 0.
///
/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn turned_over(guesses: Words, sign: Words) -> Words {
    // Turned over, a guess is -1 - guess.
    let largest = Avx2::minus(Avx2::words(255), Avx2::and(sign, Avx2::words(2)));
    let turned = Avx2::xor(Avx2::smaller(guesses, largest), sign);
    Avx2::plus(turned, Avx2::and(sign, Avx2::words(254)))
}

/// Transposes each run of 128 bits.
///
/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn transposed([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    let low = |x, y| _mm256_castps_pd(_mm256_unpacklo_ps(x, y));
    let high = |x, y| _mm256_castps_pd(_mm256_unpackhi_ps(x, y));
    let (ab_low, ab_high, cd_low, cd_high) = (low(a, b), high(a, b), low(c, d), high(c, d));
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high)),
    ]
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn folded(x: __m256i, y: __m256i) -> __m256i {
    let even = _mm256_mul_epu32(x, y);
    let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(x), _mm256_srli_epi64::<32>(y));
    let low = _mm256_blend_epi32::<0xAA>(even, _mm256_slli_epi64::<32>(odd));
    let high = _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<32>(even), odd);
    _mm256_xor_si256(low, high)
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn is_below(x: __m256i, y: __m256i) -> __m256 {
    // Signed numbers are compared; turning the sign makes unsigned ones of them.
    let turned = |x| _mm256_xor_si256(x, _mm256_set1_epi32(i32::MIN));
    _mm256_castsi256_ps(_mm256_cmpgt_epi32(turned(y), turned(x)))
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn look_up(table: Floats, places: __m256i) -> __m256 {
    let low = _mm256_permutevar8x32_ps(table[0], places);
    let high = _mm256_permutevar8x32_ps(table[1], places);
    // Bit 3 of a place goes where a blend looks.
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places)))
}

/// # Safety
///
/// 1. The machine has AVX2.
#[target_feature(enable = "avx2,f16c,fma,popcnt")]
#[inline]
unsafe fn found(table: &Table, places: __m256i) -> __m256 {
    let places = _mm256_and_si256(places, _mm256_set1_epi32(255));
    // SAFETY: 1. as here; the table has 256 entries.
    unsafe { _mm256_i32gather_ps::<4>(table.entries.as_ptr(), places) }
}
