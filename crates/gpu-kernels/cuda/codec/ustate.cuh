// The normalised update in 2 bits; twin of formats/src/ustate.rs.
#pragma once

#include "prelude.cuh"

// The code of a distance from the mean, in the low bits of a word whose others are those of 2^23; given a quarter
// of the inverse scale.
__device__ __forceinline__ u32 ustate_code(float distance, float inverse_quarter, float dither) {
    const float quarter =
        saturated(distance, inverse_quarter, __fmaf_rn(dither, 0.25f, 0.375f));
    // The largest f32 below 4. The product rounded to nearest has the same whole part.
    return as_bits(fused_down(quarter, 3.9999997615814208984375f, 8388608.0f));
}

// What codes stand for begins here, see below.
__device__ __forceinline__ float ustate_offset(float scale, float code_mean, float mean) {
    return __fsub_rn(__fmaf_rn(-scale, code_mean, mean), __fmul_rn(4.0f, scale));
}
// Codes in two bits each, spread to four.
__device__ __forceinline__ u32 ustate_spread(u32 codes) {
    const u32 fours = (codes | codes << 8) & 0x00FF00FFu;
    const u32 pairs = (fours | fours << 4) & 0x0F0F0F0Fu;
    return (pairs | pairs << 2) & 0x33333333u;
}
// The sums of the lower and of the upper four of eight spread codes, in the halves of a word.
__device__ __forceinline__ u32 ustate_sums(u32 spread) {
    return spread * 0x1111u >> 12 & 0x000F000Fu;
}
// The third bytes of 4, 5, 6 and 7, as f32: those that the lower four of spread codes stand for.
__device__ __forceinline__ u32 ustate_bytes(u32 spread) {
    return __byte_perm(0xE0C0A080u, 0, spread);
}
// The normalised update of code k of these.
__device__ __forceinline__ float ustate_value(u32 bytes, u32 k, float scale, float offset) {
    return __fmaf_rn(as_float(__byte_perm(bytes, 0x40u, 0x4055u + (k << 8))), scale, offset);
}

// The inverse of a scale; zero for zero.
__device__ __forceinline__ float ustate_inverse(float scale) {
    const float least = power_of_two(-126);
    return scale > 0.0f ? __fdiv_rn(1.0f, scale > least ? scale : least) : 0.0f;
}

// The squares of four neighbours' distances as two counts, of units of 2^-8 and of 2^-29.
struct SquarePieces {
    u32 high;
    u32 low;

    __device__ explicit SquarePieces(const float* d) {
        float squares = __fmul_rn(d[0], d[0]);
        squares = __fmaf_rn(d[1], d[1], squares);
        squares = __fmaf_rn(d[2], d[2], squares);
        squares = __fmaf_rn(d[3], d[3], squares);
        const float bounded = fminf(squares, 16383.998046875f);
        const float counter = 32768.0f, low_counter = 1.0f / 64.0f;
        const float counted = __fadd_rz(bounded, counter);
        const float rest = __fsub_rn(bounded, __fsub_rn(counted, counter));
        high = as_bits(counted) - as_bits(counter);
        low = as_bits(__fadd_rn(rest, low_counter)) - as_bits(low_counter);
    }
};

// The scale of the next encode, from sums of pieces.
__device__ __forceinline__ float ustate_next_scale(const u64* sums, u64 live, float scale) {
    if (live == 0) return scale;
    const double high = __dmul_rn((double)sums[0], 1.0 / 256.0);
    const double low = __dmul_rn((double)sums[1], 1.0 / 536870912.0);
    const double mean = __ddiv_rn(__dadd_rn(high, low), (double)live);
    return __double2float_rn(__dmul_rn(USTATE_STEP_FACTOR, __dsqrt_rn(mean)));
}
