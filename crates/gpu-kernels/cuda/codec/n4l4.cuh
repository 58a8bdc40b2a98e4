// The normalised first moment in 4 bits; twin of formats/src/n4l4.rs.
#pragma once

#include "codec/half_floats.cuh"

// The absmax of a block as it is stored.
__device__ __forceinline__ u32 n4l4_stored_absmax(float absmax) {
    return absmax < power_of_two(-100) ? 0 : bf16_nearest(absmax);
}

// The distance of neighbouring codes, and its inverse.
__device__ __forceinline__ float n4l4_unit(u32 absmax) {
    return __fdiv_rn(bf16_to_f32(absmax), 7.0f);
}
__device__ __forceinline__ float n4l4_inverse_unit(u32 absmax) {
    const float number = bf16_to_f32(absmax);
    return number > 0.0f ? __fdiv_rn(7.0f, number) : 0.0f;
}

__device__ __forceinline__ u32 n4l4_code(float q, float inverse_unit, float uniform) {
    float position = __fadd_rn(__fmul_rn(q, inverse_unit), 7.0f);
    position = position > 0.0f ? position : 0.0f;
    position = position < 14.0f ? position : 14.0f;
    const i32 lower = __float2int_rz(position);
    const bool is_upper = uniform < __fsub_rn(position, __int2float_rn(lower));
    return (u32)(lower + (is_upper ? 1 : 0) - 7) & 0xFu;
}

// The integer that the low four bits stand for.
__device__ __forceinline__ i32 n4l4_integer(u32 code) { return (i32)(code << 28) >> 28; }
