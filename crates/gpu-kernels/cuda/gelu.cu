// GELU in its tanh form, and its gradient. Launched by src/gelu.rs.
//
//   2 u = SCALE (x + CUBIC x^3)      gelu(x) = x sigmoid(2 u)
//   gelu'(x) = s + x s (1 - s) d(2 u)/dx,  s = sigmoid(2 u)
//
// One exponential and one reciprocal an element, both approximate to about two units of f32's last
// place. Grid: blocks of THREADS that stride over the elements. `gelu_forward` overwrites y;
// `gelu_backward` multiplies `y`, the gradient, in place.
//
// Defines: THREADS, ACTIVATION_BYTES, GELU_SCALE, GELU_CUBIC.

#include "numbers.cuh"
#include "quick.cuh"

struct Gelu {
    Stored* y;
    const Stored* x;
    u64 length;
};

struct Sigmoid {
    float s;
    // 1 - s, without cancellation.
    float rest;
    float slope;
};

__device__ __forceinline__ Sigmoid sigmoid(float x) {
    const float square = x * x;
    const float twice_u = x * fmaf(GELU_SCALE * GELU_CUBIC, square, GELU_SCALE);
    // Far to the left x s vanishes; the exponential must not become infinite first.
    const float power = quick_exp2(fminf(-twice_u * LOG2_E, 126.0f));
    const float s = quick_reciprocal(1.0f + power);
    return {s, power * s, fmaf(3.0f * GELU_SCALE * GELU_CUBIC, square, GELU_SCALE)};
}

struct Value {
    static __device__ __forceinline__ float of(float, float x) { return x * sigmoid(x).s; }
};
struct Gradient {
    static __device__ __forceinline__ float of(float gradient, float x) {
        const Sigmoid g = sigmoid(x);
        return gradient * fmaf(x * g.s * g.rest, g.slope, g.s);
    }
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
