// The normalised update in 2 bits; twin of formats/src/ustate.rs.
#pragma once

#include "prelude.cuh"

// The code of a distance from the mean.
__device__ __forceinline__ u32 ustate_code(float distance, float inverse_scale, float uniform) {
    float position = __fadd_rn(__fmul_rn(distance, inverse_scale), 1.5f);
    position = position > 0.0f ? position : 0.0f;
    position = position < 3.0f ? position : 3.0f;
    const i32 lower = __float2int_rz(position);
    return (u32)lower + (uniform < __fsub_rn(position, __int2float_rn(lower)) ? 1u : 0u);
}

// The inverse of a scale; zero for zero.
__device__ __forceinline__ float ustate_inverse(float scale) {
    const float least = power_of_two(-126);
    return scale > 0.0f ? __fdiv_rn(1.0f, scale > least ? scale : least) : 0.0f;
}

// A square sum in whole units of 2^-20, and the rest in units of 2^-52.
struct SquareUnits {
    u64 units;
    u64 fractions;

    __device__ explicit SquareUnits(float square_sum) {
        const float bounded = square_sum < 65535.0f ? square_sum : 65535.0f;
        const float scaled = __fmul_rn(bounded > 0.0f ? bounded : 0.0f, 1048576.0f);
        units = (u64)scaled;
        const float rest = __fsub_rn(scaled, (float)units);
        fractions = (u64)__fmul_rn(rest, 4294967296.0f);
    }
};

// The scale of the next encode.
__device__ __forceinline__ float ustate_next_scale(u64 units, u64 fractions, u64 live, float scale) {
    if (live == 0) return scale;
    const double sum = __dadd_rn(__dmul_rn((double)units, 1.0 / 1048576.0),
                                 __dmul_rn((double)fractions, 1.0 / 4503599627370496.0));
    const double root = __dsqrt_rn(__ddiv_rn(sum, (double)live));
    return __double2float_rn(__dmul_rn(USTATE_STEP_FACTOR, root));
}
