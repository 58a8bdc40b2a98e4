// The normalised update in 2 bits; twin of formats/src/ustate.rs.
#pragma once

#include "prelude.cuh"

// The code of a distance from the mean.
__device__ __forceinline__ u32 ustate_code(float distance, float inverse_scale, float dither) {
    float position = __fadd_rn(__fmul_rn(distance, inverse_scale), 1.5f);
    position = __fadd_rn(position, __fsub_rn(dither, 0.5f));
    position = fminf(fmaxf(position, 0.0f), 3.0f);
    return as_bits(__fadd_rn(position, 8388608.0f)) & 3u;
}

// The inverse of a scale; zero for zero.
__device__ __forceinline__ float ustate_inverse(float scale) {
    const float least = power_of_two(-126);
    return scale > 0.0f ? __fdiv_rn(1.0f, scale > least ? scale : least) : 0.0f;
}

// A square sum in three pieces of 22 bits, in units of 2^-6, 2^-28 and 2^-50.
struct SquarePieces {
    u32 pieces[3];

    __device__ explicit SquarePieces(float square_sum) {
        const float bounded = square_sum < 65535.0f ? square_sum : 65535.0f;
        float scaled = __fmul_rn(bounded > 0.0f ? bounded : 0.0f, 64.0f);
        for (u32 piece = 0; piece < 3; piece++) {
            const i32 whole = __float2int_rz(scaled);
            pieces[piece] = (u32)whole;
            scaled = __fmul_rn(__fsub_rn(scaled, __int2float_rn(whole)), 4194304.0f);
        }
    }
};

// The scale of the next encode, from sums of pieces.
__device__ __forceinline__ float ustate_next_scale(const u64* sums, u64 live, float scale) {
    if (live == 0) return scale;
    const double high = __dmul_rn((double)sums[0], 1.0 / 64.0);
    const double middle = __dmul_rn((double)sums[1], 1.0 / 268435456.0);
    const double low = __dmul_rn((double)sums[2], 1.0 / 1125899906842624.0);
    const double sum = __dadd_rn(__dadd_rn(high, middle), low);
    return __double2float_rn(__dmul_rn(USTATE_STEP_FACTOR, __dsqrt_rn(__ddiv_rn(sum, (double)live))));
}
