// Sums and maxima over the lanes of a warp and the threads of a block, in a fixed order.
#pragma once

#include "prelude.cuh"

struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
    static constexpr float NEUTRAL = 0.0f;
};
struct Maximum {
    // NaN wins, so that it is seen in the end.
    static __device__ __forceinline__ float of(float a, float b) {
        return a > b || a != a ? a : b;
    }
    static constexpr float NEUTRAL = -3.402823466e38f;
};

// By halves; every lane has the result.
template <class Operation>
__device__ __forceinline__ float over_warp(float number) {
#pragma unroll
    for (u32 half = WARP_LANES / 2; half > 0; half /= 2) {
        number = Operation::of(number, __shfl_xor_sync(0xFFFFFFFFu, number, half));
    }
    return number;
}

// Every thread has the result. `lanes` has room for a float of each warp, and a barrier lies between
// one use and the next.
template <class Operation, u32 BLOCK>
__device__ __forceinline__ float over_block(float number, float* lanes) {
    constexpr u32 WARPS = BLOCK / WARP_LANES;
    number = over_warp<Operation>(number);
    if constexpr (WARPS > 1) {
        const u32 lane = threadIdx.x % WARP_LANES;
        if (lane == 0) lanes[threadIdx.x / WARP_LANES] = number;
        __syncthreads();
        number = Operation::NEUTRAL;
        for (u32 warp = lane; warp < WARPS; warp += WARP_LANES) {
            number = Operation::of(number, lanes[warp]);
        }
        number = over_warp<Operation>(number);
    }
    return number;
}
