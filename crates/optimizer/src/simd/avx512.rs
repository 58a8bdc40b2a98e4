//! Sixteen lanes in one register of AVX-512.
//!
//! Four neighbours lie in four registers, transposed within runs of 128 bits; so lane 4 L + k holds
//! the four 4 k + L.

use std::arch::x86_64::*;

use super::{Avx512, Table, Vectors};

/// Lanes in the order of fours, and fours in the order of lanes: it is its own inverse.
const ORDER: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// One function of vectors each, all of whose intrinsics are of AVX-512 F, BW, DQ, VL or VBMI.
macro_rules! functions {
    ($($name:ident$(::<$n:ident>)?($($x:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name$(<const $n: u32>)?($($x: $type),*) -> $result {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
            #[inline]
            fn on_this_machine$(<const $n: u32>)?($($x: $type),*) -> $result {
                $body
            }
            // SAFETY: 1. whoever has this type found the features.
            unsafe { on_this_machine$(::<$n>)?($($x),*) }
        }
    )* };
}

impl Vectors for Avx512 {
    const FUSES: bool = true;
    type Floats = __m512;
    type Words = __m512i;
    type Flags = __mmask16;

    functions! {
        load(from: &[f32; 16]) -> __m512 = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        };
        store(x: __m512, to: &mut [f32; 16]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
        };
        load_words(from: &[u32; 16]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
        };
        pairs(from: &[[u16; 2]; 16]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
        };
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        words(x: u32) -> __m512i = _mm512_set1_epi32(x as i32);
        bytes(from: &[u8; 16]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
        };

        add(x: __m512, y: __m512) -> __m512 = _mm512_add_ps(x, y);
        sub(x: __m512, y: __m512) -> __m512 = _mm512_sub_ps(x, y);
        mul(x: __m512, y: __m512) -> __m512 = _mm512_mul_ps(x, y);
        div(x: __m512, y: __m512) -> __m512 = _mm512_div_ps(x, y);
        sqrt(x: __m512) -> __m512 = _mm512_sqrt_ps(x);
        fused(x: __m512, y: __m512, z: __m512) -> __m512 = _mm512_fmadd_ps(x, y, z);
        min(x: __m512, y: __m512) -> __m512 = _mm512_min_ps(x, y);
        max(x: __m512, y: __m512) -> __m512 = _mm512_max_ps(x, y);
        reaches(x: __m512, y: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, y);
        exceeds(x: __m512, y: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, y);
        choose(which: __mmask16, x: __m512, y: __m512) -> __m512 = _mm512_mask_blend_ps(which, y, x);

        bits(x: __m512) -> __m512i = _mm512_castps_si512(x);
        float(x: __m512i) -> __m512 = _mm512_castsi512_ps(x);
        counted(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        exponents(x: __m512) -> __m512 = _mm512_getexp_ps(x);
        mantissas(x: __m512) -> __m512 = _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_SRC>(x);
        whole(x: __m512) -> __m512i = _mm512_cvttps_epi32(x);
        plus(x: __m512i, y: __m512i) -> __m512i = _mm512_add_epi32(x, y);
        minus(x: __m512i, y: __m512i) -> __m512i = _mm512_sub_epi32(x, y);
        and(x: __m512i, y: __m512i) -> __m512i = _mm512_and_si512(x, y);
        or(x: __m512i, y: __m512i) -> __m512i = _mm512_or_si512(x, y);
        xor(x: __m512i, y: __m512i) -> __m512i = _mm512_xor_si512(x, y);
        shl::<N>(x: __m512i) -> __m512i = _mm512_slli_epi32::<N>(x);
        shr::<N>(x: __m512i) -> __m512i = _mm512_srli_epi32::<N>(x);
        sar::<N>(x: __m512i) -> __m512i = _mm512_srai_epi32::<N>(x);
        halves_below(x: __m512) -> __m512i =
            _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEG_INF }>(x));
        halves_above(x: __m512) -> __m512i =
            _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<{ _MM_FROUND_TO_POS_INF }>(x));
        from_halves(x: __m512i) -> __m512 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
        turned(x: __m512i) -> __m512i = _mm512_rol_epi32::<16>(x);
        smaller(x: __m512i, y: __m512i) -> __m512i = _mm512_min_epu32(x, y);
        larger(x: __m512i, y: __m512i) -> __m512i = _mm512_max_epu32(x, y);
        times(x: __m512i, y: __m512i) -> __m512i = _mm512_mullo_epi32(x, y);
        folded(x: __m512i, y: __m512i) -> __m512i = {
            let even = _mm512_mul_epu32(x, y);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(x), _mm512_srli_epi64::<32>(y));
            let even = _mm512_xor_si512(even, _mm512_srli_epi64::<32>(even));
            // Upper halves alone, beside lower ones of the others.
            _mm512_mask_xor_epi32(even, 0xAAAA, odd, _mm512_slli_epi64::<32>(odd))
        };
        is_below(x: __m512i, y: __m512i) -> __mmask16 = _mm512_cmplt_epu32_mask(x, y);
        choose_words(which: __mmask16, x: __m512i, y: __m512i) -> __m512i = _mm512_mask_blend_epi32(which, y, x);
        look_up(table: __m512, places: __m512i) -> __m512 = _mm512_permutexvar_ps(places, table);

        add_squares(of: &[f32; 16], to: &mut [f64; 16]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                for half in [0, 8] {
                    let x = _mm512_cvtps_pd(_mm256_loadu_ps(of.as_ptr().add(half)));
                    let sum = to.as_mut_ptr().add(half);
                    // The product is exact, so that a fused one is no other.
                    _mm512_storeu_pd(sum, _mm512_fmadd_pd(x, x, _mm512_loadu_pd(sum)));
                }
            }
        };

        count(which: __mmask16) -> u32 = which.count_ones();
        total(x: __m512i) -> u32 = _mm512_reduce_add_epi32(x) as u32;
        smallest(x: __m512i) -> u32 = _mm512_reduce_min_epu32(x);
        largest(x: __m512i) -> u32 = _mm512_reduce_max_epu32(x);

        extents(of: &[[[f32; 16]; 2]; 16]) -> [__m512i; 2] = {
            let row = |row: usize, which: usize| Avx512::bits(Avx512::load(&of[row][which]));
            // SAFETY: 1. as here.
            unsafe {
                [
                    of_each(std::array::from_fn(|number| row(number, 0)), Avx512::smaller),
                    of_each(std::array::from_fn(|number| row(number, 1)), Avx512::larger),
                ]
            }
        };

        four_numbers() -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) }
        };
        fours(from: &[f32; 64]) -> [__m512; 4] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let run = |number: usize| _mm512_loadu_ps(from.as_ptr().add(16 * number));
                transposed([run(0), run(1), run(2), run(3)])

            }
        };
        store_fours(fours: [__m512; 4], to: &mut [f32; 64]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                for (number, run) in transposed(fours).into_iter().enumerate() {
                    _mm512_storeu_ps(to.as_mut_ptr().add(16 * number), run);
                }

            }
        };
        four_words(from: &[u8; 64]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order(_mm512_loadu_si512(from.as_ptr().cast())) }
        };
        four_bytes(from: &[u8; 16]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order(Avx512::bytes(from)) }
        };
        four_halves(from: &[u16; 16]) -> __m512i = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe { in_order(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()))) }
        };
        to_four_bytes(x: __m512i) -> [u8; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let mut bytes = [0; 16];
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(in_order(x)));
                bytes

            }
        };
        to_four_halves(x: __m512i) -> [u16; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let mut halves = [0; 16];
                _mm256_storeu_si256(halves.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(in_order(x)));
                halves

            }
        };
        to_four_words(x: __m512i) -> [u32; 16] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let mut words = [0; 16];
                _mm512_storeu_si512(words.as_mut_ptr().cast(), in_order(x));
                words

            }
        };
        tree_sum(x: __m512) -> f32 = {
            // Four j + 8 lies two lanes after j, j + 4 one, j + 2 two runs, and j + 1 one run.
            let x = _mm512_add_ps(x, _mm512_permute_ps::<0b01_00_11_10>(x));
            let x = _mm512_add_ps(x, _mm512_permute_ps::<0b10_11_00_01>(x));
            let x = _mm512_add_ps(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
            _mm512_cvtss_f32(_mm512_add_ps(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x)))
        };

        tree_sums(of: &[[f32; 16]; 16]) -> __m512 = {
            // SAFETY: 1. as here.
            unsafe { sums_of_each(of) }
        };

        look_up_256(table: &Table, codes: &[u8; 64]) -> [__m512; 4] = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                found(table, in_order(_mm512_loadu_si512(codes.as_ptr().cast())))

            }
        };
        settle(table: &Table, guesses: [__m512i; 4], x: [__m512; 4], turn: bool, to: &mut [u8; 64]) -> () = {
            // SAFETY: 1. as here; arrays are as long as what is read or written.
            unsafe {
                let mut guesses = guesses;
                if turn {
                    let all = _mm512_set1_epi32(253);
                    for (guess, x) in guesses.iter_mut().zip(x) {
                        let sign = _mm512_movepi32_mask(_mm512_castps_si512(x));
                        *guess = _mm512_mask_sub_epi32(*guess, sign, all, *guess);
                    }
                }
                // What is below zero becomes zero. Runs of four lie as unpacking wants them.
                let [a, b, c, d] = guesses;
                let (low, high) = (_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
                let guesses = _mm512_packus_epi16(low, high);
                let [t0, t1, t2, t3] = found(table, guesses);
                let guesses = in_order(guesses);
                let above = joined([
                    _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x[0], t0),
                    _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x[1], t1),
                    _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x[2], t2),
                    _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x[3], t3),
                ]);
                // Taking -1 away from those.
                let codes = _mm512_sub_epi8(guesses, _mm512_movm_epi8(above));
                _mm512_storeu_si512(to.as_mut_ptr().cast(), codes);
            }
        };
    }
}

/// What is left of all numbers of each vector by taking one of two, a lane for each.
///
/// # Safety
///
/// 1. The machine has AVX-512 F.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn of_each(rows: [__m512i; 16], one_of: impl Fn(__m512i, __m512i) -> __m512i) -> __m512i {
    // Runs of 128 bits of two, the even ones and the odd ones.
    let runs = |x, y| {
        one_of(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(x, y),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(x, y),
        )
    };
    // Four vectors become one that has a run of each.
    let four = |first: usize| {
        runs(runs(rows[first], rows[first + 1]), runs(rows[first + 2], rows[first + 3]))
    };
    let pairs = |x, y| one_of(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    let (low, high) = (pairs(four(0), four(4)), pairs(four(8), four(12)));
    let each = one_of(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    // SAFETY: 1. as here.
    unsafe { in_order(each) }
}

/// The sums of vectors by halves, of all of them side by side.
///
/// # Safety
///
/// 1. The machine has AVX-512 F.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn sums_of_each(of: &[[f32; 16]; 16]) -> __m512 {
    // What lies two lanes after each other, of two.
    let two = |first: usize| {
        let x = _mm512_castps_pd(Avx512::load(&of[first]));
        let y = _mm512_castps_pd(Avx512::load(&of[first + 1]));
        let (low, high) = (_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    // One lane.
    let four = |first: usize| {
        let (x, y) = (two(first), two(first + 2));
        _mm512_add_ps(
            _mm512_shuffle_ps::<0b10_00_10_00>(x, y),
            _mm512_shuffle_ps::<0b11_01_11_01>(x, y),
        )
    };
    // Two runs.
    let eight = |first: usize| {
        let (x, y) = (four(first), four(first + 4));
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y),
        )
    };
    // One run.
    let (x, y) = (eight(0), eight(8));
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y),
    )
}

/// Flags of four vectors, one after the other.
///
/// # Safety
///
/// 1. The machine has AVX-512 BW.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn joined([a, b, c, d]: [__mmask16; 4]) -> __mmask64 {
    let (low, high) = (u32::from(a), u32::from(c));
    let low = _mm512_kunpackw(u32::from(b), low);
    let high = _mm512_kunpackw(u32::from(d), high);
    _mm512_kunpackd(u64::from(high), u64::from(low))
}

/// Moves numbers from lanes to fours, or back.
///
/// # Safety
///
/// 1. The machine has AVX-512 F.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn in_order(x: __m512i) -> __m512i {
    // SAFETY: 1. as here; the array is as long as a register.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    _mm512_permutexvar_epi32(order, x)
}

/// Transposes each run of 128 bits.
///
/// # Safety
///
/// 1. The machine has AVX-512 F.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn transposed([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let low = |x, y| _mm512_castps_pd(_mm512_unpacklo_ps(x, y));
    let high = |x, y| _mm512_castps_pd(_mm512_unpackhi_ps(x, y));
    let (ab_low, ab_high, cd_low, cd_high) = (low(a, b), high(a, b), low(c, d), high(c, d));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high)),
    ]
}

/// The entries of 64 codes, each four of which lie [`in_order`]: each of their four bytes is looked up by itself.
///
/// # Safety
///
/// 1. The machine has AVX-512 F, BW and VBMI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,popcnt")]
#[inline]
unsafe fn found(table: &Table, codes: __m512i) -> [__m512; 4] {
    let is_upper = _mm512_movepi8_mask(codes);
    let byte = |number: usize| {
        let plane = table.planes[number].as_ptr();
        // SAFETY: 1. as here; a plane has four registers.
        let part = |part: usize| unsafe { _mm512_loadu_si512(plane.add(64 * part).cast()) };
        let lower = _mm512_permutex2var_epi8(part(0), codes, part(1));
        let upper = _mm512_permutex2var_epi8(part(2), codes, part(3));
        _mm512_mask_blend_epi8(is_upper, lower, upper)
    };
    let (b0, b1, b2, b3) = (byte(0), byte(1), byte(2), byte(3));
    let (low, high) = (_mm512_unpacklo_epi8(b0, b1), _mm512_unpackhi_epi8(b0, b1));
    let (low_above, high_above) = (_mm512_unpacklo_epi8(b2, b3), _mm512_unpackhi_epi8(b2, b3));
    [
        _mm512_castsi512_ps(_mm512_unpacklo_epi16(low, low_above)),
        _mm512_castsi512_ps(_mm512_unpackhi_epi16(low, low_above)),
        _mm512_castsi512_ps(_mm512_unpacklo_epi16(high, high_above)),
        _mm512_castsi512_ps(_mm512_unpackhi_epi16(high, high_above)),
    ]
}
