// f32 parameters as a bf16 and 16 remainder bits; twin of formats/src/split.rs.
//
//     upper     = (bits >> 16) + (bits >> 15 & 1)      modulo 2^16
//     remainder = bits & 0xFFFF
//
// The upper half is the bf16 nearest to the parameter, ties away from zero. The top bit of the
// remainder says whether it was rounded up, so both together are the f32 again, whatever its bits.
#pragma once

#include "prelude.cuh"

__device__ __forceinline__ u32 upper_of(u32 bits) {
    return ((bits >> 16) + (bits >> 15 & 1u)) & 0xFFFFu;
}

__device__ __forceinline__ u32 remainder_of(u32 bits) { return bits & 0xFFFFu; }

__device__ __forceinline__ u32 recombined(u32 upper, u32 remainder) {
    return (upper - (remainder >> 15)) << 16 | remainder;
}
