// Activations as kernels see them: stored as bf16 or f32, computed with as f32, moved in vectors of
// up to 16 bytes.
//
// Defines: ACTIVATION_BYTES, 2 or 4.
#pragma once

#include "prelude.cuh"

#if ACTIVATION_BYTES == 2
typedef u16 Stored;
#else
typedef float Stored;
#endif

// Elements of one access of 16 bytes.
static constexpr u32 WIDE = 16 / ACTIVATION_BYTES;

// Numbers side by side, in registers.
template <u32 COUNT>
struct Numbers {
    float at[COUNT];
};

__device__ __forceinline__ float widen(float stored) { return stored; }
__device__ __forceinline__ float widen(u16 stored) { return as_float((u32)stored << 16); }

__device__ __forceinline__ void narrow_to(float& stored, float number) { stored = number; }
__device__ __forceinline__ void narrow_to(u16& stored, float number) {
    stored = (u16)narrow_two(number, 0.0f);
}

// The number that is left of one after storing it.
__device__ __forceinline__ float rounded(float number) {
    Stored stored;
    narrow_to(stored, number);
    return widen(stored);
}

// Loads COUNT numbers: 1, or as many as make up 16 bytes or a multiple; the address is then
// divisible by 16.
template <u32 COUNT>
__device__ __forceinline__ Numbers<COUNT> load_numbers(const float* from) {
    Numbers<COUNT> numbers;
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (u32 k = 0; k < COUNT; k += 4) {
            const uint4 raw = *reinterpret_cast<const uint4*>(from + k);
            numbers.at[k] = as_float(raw.x);
            numbers.at[k + 1] = as_float(raw.y);
            numbers.at[k + 2] = as_float(raw.z);
            numbers.at[k + 3] = as_float(raw.w);
        }
    } else {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) numbers.at[k] = from[k];
    }
    return numbers;
}

template <u32 COUNT>
__device__ __forceinline__ Numbers<COUNT> unpack(const uint4& raw) {
    static_assert(COUNT == 8, "16 bytes of bf16");
    Numbers<COUNT> numbers;
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        numbers.at[2 * k] = as_float(words[k] << 16);
        numbers.at[2 * k + 1] = as_float(words[k] & 0xFFFF0000u);
    }
    return numbers;
}

template <u32 COUNT>
__device__ __forceinline__ Numbers<COUNT> load_numbers(const u16* from) {
    if constexpr (COUNT == 8) {
        return unpack<COUNT>(*reinterpret_cast<const uint4*>(from));
    } else {
        Numbers<COUNT> numbers;
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) numbers.at[k] = widen(from[k]);
        return numbers;
    }
}

template <u32 COUNT>
__device__ __forceinline__ void store_numbers(float* to, const Numbers<COUNT>& numbers) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (u32 k = 0; k < COUNT; k += 4) {
            *reinterpret_cast<uint4*>(to + k) =
                make_uint4(as_bits(numbers.at[k]), as_bits(numbers.at[k + 1]),
                           as_bits(numbers.at[k + 2]), as_bits(numbers.at[k + 3]));
        }
    } else {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) to[k] = numbers.at[k];
    }
}

template <u32 COUNT>
__device__ __forceinline__ void store_numbers(u16* to, const Numbers<COUNT>& numbers) {
    if constexpr (COUNT == 8) {
        *reinterpret_cast<uint4*>(to) = make_uint4(narrow_two(numbers.at[0], numbers.at[1]),
                                                   narrow_two(numbers.at[2], numbers.at[3]),
                                                   narrow_two(numbers.at[4], numbers.at[5]),
                                                   narrow_two(numbers.at[6], numbers.at[7]));
    } else {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) narrow_to(to[k], numbers.at[k]);
    }
}
