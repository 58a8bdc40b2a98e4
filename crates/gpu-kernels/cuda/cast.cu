// f32 numbers to bf16, to nearest, ties to even: the parameters as products read them. Launched by
// src/weights.rs.
//
// Grid: blocks of THREADS that stride over the elements. Overwrites `to`.
//
// Defines: THREADS, ACTIVATION_BYTES = 2.

#include "numbers.cuh"

struct Cast {
    Stored* to;
    const float* from;
    u64 length;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) cast(const __grid_constant__ Cast cast) {
    const u64 stride = (u64)gridDim.x * THREADS;
    const u64 thread = (u64)blockIdx.x * THREADS + threadIdx.x;
    // Where the arrays are not made of wide accesses all goes one by one.
    const bool is_wide = (u64)cast.to % 16 == 0 && (u64)cast.from % 16 == 0;
    const u64 pieces = is_wide ? cast.length / WIDE : 0;
#pragma unroll 2
    for (u64 piece = thread; piece < pieces; piece += stride) {
        store_numbers<WIDE>(cast.to + piece * WIDE, load_numbers<WIDE>(cast.from + piece * WIDE));
    }
    for (u64 i = pieces * WIDE + thread; i < cast.length; i += stride) {
        narrow_to(cast.to[i], cast.from[i]);
    }
}
