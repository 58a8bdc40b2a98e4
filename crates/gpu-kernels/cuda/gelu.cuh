// GELU in its tanh form, and its gradient, of one number.
//
//   2 u = SCALE (x + CUBIC x^3)      gelu(x) = x sigmoid(2 u)
//   gelu'(x) = s + x s (1 - s) d(2 u)/dx,  s = sigmoid(2 u)
//
// One exponential and one reciprocal an element, both approximate to about two units of f32's last
// place.
//
// Defines: GELU_SCALE, GELU_CUBIC.
#pragma once

#include "quick.cuh"

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
    const float s = rough_inverse(1.0f + power);
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
