// f32 parameters to and from a bf16 and 16 remainder bits, whole arrays at a time. Launched by
// src/split.rs; the codec is codec/split.cuh.
//
// Grid: blocks of THREADS that stride over the elements. Overwrites its outputs.
//
// Defines: THREADS.

#include "codec/split.cuh"
#include "prelude.cuh"

// Everything a launch is given. `split` overwrites the halves, `recombine` the numbers.
struct Halves {
    u32* numbers;
    u16* upper;
    u16* remainders;
    u64 length;
};

extern "C" __global__ void __launch_bounds__(THREADS) split(const __grid_constant__ Halves halves) {
    const u64 stride = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < halves.length; i += stride) {
        const u32 bits = halves.numbers[i];
        halves.upper[i] = (u16)upper_of(bits);
        halves.remainders[i] = (u16)remainder_of(bits);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    recombine(const __grid_constant__ Halves halves) {
    const u64 stride = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < halves.length; i += stride) {
        halves.numbers[i] = recombined(halves.upper[i], halves.remainders[i]);
    }
}
