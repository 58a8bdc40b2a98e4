// Sums whose order is the caller's: of two arrays of f32, element by element, and of a few f64 numbers one after the
// other. Launched by src/plus.rs.
//
// Grid: for arrays, blocks of THREADS that stride over the elements; `sum` += `other`. For numbers, one thread, which
// overwrites `sum`.
//
// Defines: THREADS, ACTIVATION_BYTES = 4.

#include "numbers.cuh"

struct Plus {
    float* sum;
    const float* other;
    u64 length;
};

struct InOrder {
    double* sum;
    const double* numbers;
    u64 length;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) plus(const __grid_constant__ Plus args) {
    const u64 stride = (u64)gridDim.x * THREADS;
    const u64 thread = (u64)blockIdx.x * THREADS + threadIdx.x;
    // Where the arrays are not made of wide accesses all goes one by one.
    const bool is_wide = (u64)args.sum % 16 == 0 && (u64)args.other % 16 == 0;
    const u64 pieces = is_wide ? args.length / WIDE : 0;
#pragma unroll 2
    for (u64 piece = thread; piece < pieces; piece += stride) {
        Numbers<WIDE> sum = load_numbers<WIDE>(args.sum + piece * WIDE);
        const Numbers<WIDE> other = load_numbers<WIDE>(args.other + piece * WIDE);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) sum.at[k] = __fadd_rn(sum.at[k], other.at[k]);
        store_numbers<WIDE>(args.sum + piece * WIDE, sum);
    }
    for (u64 i = pieces * WIDE + thread; i < args.length; i += stride) {
        args.sum[i] = __fadd_rn(args.sum[i], args.other[i]);
    }
}

extern "C" __global__ void __launch_bounds__(1, 1) in_order(const __grid_constant__ InOrder args) {
    double sum = 0.0;
    for (u64 i = 0; i < args.length; i++) sum = __dadd_rn(sum, args.numbers[i]);
    *args.sum = sum;
}
