// exp2 and ln by one fixed sequence of sums and products; twin of formats/src/exp_log.rs, where the
// steps are explained.
#pragma once

#include "prelude.cuh"

__device__ __forceinline__ float exact_exp2(float x) {
    const float rounder = 12582912.0f;
    const float shifted = __fadd_rn(x, rounder);
    const float f = __fsub_rn(x, __fsub_rn(shifted, rounder));
    float p = as_float(EXP2_5_BITS);
    p = __fmaf_rn(p, f, as_float(EXP2_4_BITS));
    p = __fmaf_rn(p, f, as_float(EXP2_3_BITS));
    p = __fmaf_rn(p, f, as_float(EXP2_2_BITS));
    p = __fmaf_rn(p, f, as_float(EXP2_1_BITS));
    p = __fmaf_rn(p, f, 1.0f);
    return as_float(as_bits(p) + (as_bits(shifted) << 23));
}

// IS_NORMAL is whether x is known to be.
template <bool IS_NORMAL = false>
__device__ __forceinline__ float exact_ln(float x) {
    const bool is_subnormal = !IS_NORMAL && as_bits(x) < 0x00800000u;
    const float normal = is_subnormal ? __fmul_rn(x, power_of_two(24)) : x;
    const u32 offset = as_bits(normal) - SQRT_HALF_BITS;
    const i32 exponent = ((i32)offset >> 23) - (is_subnormal ? 24 : 0);
    const float e = __int2float_rn(exponent);
    const float f = __fsub_rn(as_float((offset & 0x007FFFFFu) + SQRT_HALF_BITS), 1.0f);
    float q = as_float(LN_7_BITS);
    q = __fmaf_rn(q, f, as_float(LN_6_BITS));
    q = __fmaf_rn(q, f, as_float(LN_5_BITS));
    q = __fmaf_rn(q, f, as_float(LN_4_BITS));
    q = __fmaf_rn(q, f, as_float(LN_3_BITS));
    q = __fmaf_rn(q, f, as_float(LN_2_BITS));
    q = __fmaf_rn(q, f, as_float(LN_1_BITS));
    q = __fmaf_rn(q, f, as_float(LN_0_BITS));
    const float tail = __fmul_rn(__fmul_rn(f, f), __fmaf_rn(q, f, -0.5f));
    const float rest = __fmaf_rn(e, as_float(LN_2_LOW_BITS), tail);
    return __fmaf_rn(e, as_float(LN_2_HIGH_BITS), __fadd_rn(f, rest));
}
