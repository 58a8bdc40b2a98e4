// The random numbers of the published ustate1q format; twin of formats/src/published_random.rs.
#pragma once

#include "codec/counter_hash.cuh"

// The words of one moment: `tensor` holds what group and parameter add, `stream` is 1 for the first
// moment and 2 for the second.
__device__ __forceinline__ u32 published_key(u32 seed, u32 update, u32 tensor, u32 stream) {
    return mix(seed ^ (update * PUBLISHED_MULTIPLIER_UPDATE) ^ tensor
               ^ (stream * PUBLISHED_MULTIPLIER_STREAM));
}

// The number of an element, from 0 to below 1.
__device__ __forceinline__ float published_uniform(u32 key, u32 index) {
    const float unit = power_of_two(-24);
    const float b = __fmul_rn(__int2float_rn((i32)(mix((index >> 1) ^ key) >> 8)), unit);
    const float mirrored = __fsub_rn(1.0f, b);
    const float below_one = __fsub_rn(1.0f, unit);
    if ((index & 1u) == 0) return b;
    return mirrored < below_one ? mirrored : below_one;
}

// What rounds a position down as the number of an element would: 1 less it, but below 1.
__device__ __forceinline__ float published_dither(u32 key, u32 index) {
    const float mirrored = __fsub_rn(1.0f, published_uniform(key, index));
    const float below_one = __fsub_rn(1.0f, power_of_two(-24));
    return mirrored < below_one ? mirrored : below_one;
}
