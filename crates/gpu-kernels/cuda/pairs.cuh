// Two numbers of a row side by side, as a thread has them in sums (fragments of mma.cuh).
#pragma once

#include "mma.cuh"
#include "numbers.cuh"

struct Pair {
    float low;
    float high;
};

__device__ __forceinline__ Pair load_pair_f32(const float* from) {
    const float2 both = *reinterpret_cast<const float2*>(from);
    return {both.x, both.y};
}

// What is left of two numbers after storing them.
__device__ __forceinline__ Pair rounded(Pair pair) {
#if ACTIVATION_BYTES == 2
    const u32 both = narrow_two(pair.low, pair.high);
    return {as_float(both << 16), as_float(both & 0xFFFF0000u)};
#else
    return pair;
#endif
}

__device__ __forceinline__ void leave_pair(Shared at, Pair pair) {
#if ACTIVATION_BYTES == 2
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(at), "r"(narrow_two(pair.low, pair.high)) : "memory");
#else
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" : : "r"(at), "f"(pair.low), "f"(pair.high) : "memory");
#endif
}

// Two numbers as they lie in memory, for a while.
#if ACTIVATION_BYTES == 2
typedef u32 StoredPair;
__device__ __forceinline__ Pair widen_pair(StoredPair both) {
    return {as_float(both << 16), as_float(both & 0xFFFF0000u)};
}
#else
typedef float2 StoredPair;
__device__ __forceinline__ Pair widen_pair(StoredPair both) { return {both.x, both.y}; }
#endif

__device__ __forceinline__ StoredPair load_stored(const Stored* from) {
    return *reinterpret_cast<const StoredPair*>(from);
}

__device__ __forceinline__ Pair load_pair(const Stored* from) { return widen_pair(load_stored(from)); }

// Over the four lanes that share a row.
__device__ __forceinline__ float over_row(float number) {
    number += __shfl_xor_sync(0xFFFFFFFFu, number, 1);
    return number + __shfl_xor_sync(0xFFFFFFFFu, number, 2);
}
