// GELU and its gradient, the formulas of gelu.cuh. Launched by src/gelu.rs.
//
// Grid: blocks of THREADS that stride over the elements. `gelu_forward` overwrites y;
// `gelu_backward` multiplies `y`, the gradient, in place.
//
// Defines: THREADS, ACTIVATION_BYTES, GELU_SCALE, GELU_CUBIC.

#include "gelu.cuh"
#include "numbers.cuh"

struct Gelu {
    Stored* y;
    const Stored* x;
    u64 length;
};

template <class Operation, bool READS>
__device__ __forceinline__ void visit(const Gelu& gelu) {
    const u64 stride = (u64)gridDim.x * THREADS;
    const u64 thread = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 pieces = gelu.length / WIDE;
    for (u64 piece = thread; piece < pieces; piece += stride) {
        const auto x = load_numbers<WIDE>(gelu.x + piece * WIDE);
        Numbers<WIDE> y = {};
        if constexpr (READS) y = load_numbers<WIDE>(gelu.y + piece * WIDE);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) y.at[k] = Operation::of(y.at[k], x.at[k]);
        store_numbers<WIDE>(gelu.y + piece * WIDE, y);
    }
    for (u64 i = pieces * WIDE + thread; i < gelu.length; i += stride) {
        const float before = READS ? widen(gelu.y[i]) : 0.0f;
        narrow_to(gelu.y[i], Operation::of(before, widen(gelu.x[i])));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gelu_forward(const __grid_constant__ Gelu gelu) {
    visit<Value, false>(gelu);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gelu_backward(const __grid_constant__ Gelu gelu) {
    visit<Gradient, true>(gelu);
}
