// The 16-bit numbers in which block formats keep their scales; twin of formats/src/half_floats.rs.
#pragma once

#include "codec/minifloat.cuh"

typedef Minifloat<BINARY16_FRACTION_BITS, BINARY16_CODE_MAX> Binary16Scale;

__device__ __forceinline__ float binary16_to_f32(u32 bits) {
#if defined(__CUDACC__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
#else
    return Binary16Scale(BINARY16_BIAS).decode_signed(bits);
#endif
}

// The nearest binary16, ties to even.
__device__ __forceinline__ u32 binary16_nearest(float value) {
    return Binary16Scale(BINARY16_BIAS).encode_signed_nearest(value).code;
}

// The next binary16 below one; both zeros count as one number.
__device__ __forceinline__ u32 binary16_next_below(u32 bits) {
    if ((bits & 0x7FFFu) == 0) return 0x8001u;
    return bits & 0x8000u ? bits + 1 : bits - 1;
}

// The largest binary16 that is not above a number, and the smallest that is not below it.
__device__ __forceinline__ u32 binary16_below(float value) {
#if defined(__CUDACC__)
    u16 below;
    asm("cvt.rm.f16.f32 %0, %1;" : "=h"(below) : "f"(value));
    return below;
#endif
    const u32 magnitude = as_bits(value) & MAGNITUDE, sign = as_bits(value) >> 31;
    // Of a normal number the lower bits fall away, those of a negative one after all of them were added.
    const u32 least = as_bits(power_of_two(-14));
    if (magnitude - least < as_bits(32768.0f) - least) {
        return ((magnitude - (112u << 23) + sign * 0x1FFFu) >> 13) | sign << 15;
    }
    const u32 nearest = binary16_nearest(value);
    return binary16_to_f32(nearest) > value ? binary16_next_below(nearest) : nearest;
}
__device__ __forceinline__ u32 binary16_above(float value) {
    const u32 nearest = binary16_nearest(value);
    return binary16_to_f32(nearest) < value
        ? binary16_next_below(nearest ^ 0x8000u) ^ 0x8000u : nearest;
}

__device__ __forceinline__ float bf16_to_f32(u32 bits) { return as_float(bits << 16); }

// The nearest bf16, ties to even, of a number that is not NaN.
__device__ __forceinline__ u32 bf16_nearest(float value) {
    const u32 bits = as_bits(value);
    return (bits + (0x7FFFu + (bits >> 16 & 1u))) >> 16;
}
