// The sum of f32 numbers in f64, by halves: the numbers, with zeros up to a power of two, are the
// leaves of a binary tree. The same tree as the CPU's. Launched by src/sum.rs.
//
// Grid: one block of THREADS, each of which takes a run of the numbers as long as every other's.
// Overwrites `sum`, or adds to it.
//
// Defines: THREADS, a power of two; RUN_LEVELS: a run has at most 2^RUN_LEVELS numbers.

#include "prelude.cuh"

struct TreeSum {
    double* sum;
    const float* numbers;
    u32 length;
    // A power of two.
    u32 run;
    u32 adds;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tree_sum(const __grid_constant__ TreeSum args) {
    __shared__ double lanes[THREADS];
    // levels[l] holds the sum of a finished subtree of 2^l numbers that waits for its sibling.
    double levels[RUN_LEVELS + 1] = {};
    const u32 first = threadIdx.x * args.run;
    for (u32 i = 0; i < args.run; i++) {
        double sum = first + i < args.length ? (double)args.numbers[first + i] : 0.0;
        bool is_carried = true;
#pragma unroll
        for (u32 level = 0; level <= RUN_LEVELS; level++) {
            if (!is_carried) continue;
            if (i >> level & 1) {
                sum = __dadd_rn(levels[level], sum);
            } else {
                levels[level] = sum;
                is_carried = false;
            }
        }
    }
    double sum = 0.0;
#pragma unroll
    for (u32 level = 0; level <= RUN_LEVELS; level++) {
        if (args.run == 1u << level) sum = levels[level];
    }
    lanes[threadIdx.x] = sum;
    for (u32 step = 1; step < THREADS; step *= 2) {
        __syncthreads();
        if (threadIdx.x % (2 * step) == 0) {
            lanes[threadIdx.x] = __dadd_rn(lanes[threadIdx.x], lanes[threadIdx.x + step]);
        }
    }
    if (threadIdx.x == 0) *args.sum = args.adds ? __dadd_rn(*args.sum, lanes[0]) : lanes[0];
}
