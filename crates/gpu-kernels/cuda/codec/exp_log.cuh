// exp and ln by one fixed sequence of sums and products; twin of formats/src/exp_log.rs, where the
// steps are explained. No step is fused.
#pragma once

#include "prelude.cuh"

// x * y + z, rounded twice.
__device__ __forceinline__ float then_add(float x, float y, float z) {
    return __fadd_rn(__fmul_rn(x, y), z);
}

__device__ __forceinline__ float exact_exp(float x) {
    const float rounder = 12582912.0f;
    const float shifted = then_add(x, as_float(LOG2_E_BITS), rounder);
    const float n = __fsub_rn(shifted, rounder);
    const i32 exponent = (i32)(as_bits(shifted) - as_bits(rounder));
    const float high = __fsub_rn(x, __fmul_rn(n, as_float(LN_2_HIGH_BITS)));
    const float r = __fsub_rn(high, __fmul_rn(n, as_float(LN_2_LOW_BITS)));
    float p = as_float(EXP_4_BITS);
    p = then_add(p, r, as_float(EXP_3_BITS));
    p = then_add(p, r, as_float(EXP_2_BITS));
    p = then_add(p, r, as_float(EXP_1_BITS));
    p = then_add(p, r, as_float(EXP_0_BITS));
    const float fraction = __fadd_rn(1.0f, __fadd_rn(r, __fmul_rn(__fmul_rn(r, r), p)));
    const i32 half = exponent >> 1;
    return __fmul_rn(__fmul_rn(fraction, power_of_two(half)), power_of_two(exponent - half));
}

__device__ __forceinline__ float exact_ln(float x) {
    const bool is_subnormal = as_bits(x) < 0x00800000u;
    const float normal = is_subnormal ? __fmul_rn(x, power_of_two(24)) : x;
    const u32 offset = as_bits(normal) - SQRT_HALF_BITS;
    const i32 exponent = ((i32)offset >> 23) - (is_subnormal ? 24 : 0);
    const float e = __int2float_rn(exponent);
    const float f = __fsub_rn(as_float((offset & 0x007FFFFFu) + SQRT_HALF_BITS), 1.0f);
    float q = as_float(LN_7_BITS);
    q = then_add(q, f, as_float(LN_6_BITS));
    q = then_add(q, f, as_float(LN_5_BITS));
    q = then_add(q, f, as_float(LN_4_BITS));
    q = then_add(q, f, as_float(LN_3_BITS));
    q = then_add(q, f, as_float(LN_2_BITS));
    q = then_add(q, f, as_float(LN_1_BITS));
    q = then_add(q, f, as_float(LN_0_BITS));
    const float square = __fmul_rn(f, f);
    const float cube = __fmul_rn(__fmul_rn(f, square), q);
    const float tail = __fsub_rn(cube, __fmul_rn(0.5f, square));
    const float rest = __fadd_rn(tail, __fmul_rn(e, as_float(LN_2_LOW_BITS)));
    return __fadd_rn(__fmul_rn(e, as_float(LN_2_HIGH_BITS)), __fadd_rn(f, rest));
}
