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

// Sigmoids of two numbers' 2 u by one reciprocal, and their exponentials. These stop where a product of two is finite:
// far to the left, where s vanishes.
__device__ __forceinline__ void two_sigmoids(float (&s)[2], float (&power)[2], float a, float b) {
    constexpr float CUBIC = -LOG2_E * GELU_SCALE * GELU_CUBIC, SCALE = -LOG2_E * GELU_SCALE;
    power[0] = quick_exp2(fminf(a * fmaf(CUBIC, a * a, SCALE), 60.0f));
    power[1] = quick_exp2(fminf(b * fmaf(CUBIC, b * b, SCALE), 60.0f));
    const float one = 1.0f + power[0], two = 1.0f + power[1], both = rough_inverse(one * two);
    s[0] = two * both;
    s[1] = one * both;
}

// GELU of two numbers.
__device__ __forceinline__ void gelus(float (&out)[2], float a, float b) {
    float s[2], power[2];
    two_sigmoids(s, power, a, b);
    out[0] = a * s[0];
    out[1] = b * s[1];
}

// Its gradients.
__device__ __forceinline__ void gelu_gradients(float (&out)[2], float a, float b) {
    float s[2], power[2];
    two_sigmoids(s, power, a, b);
    const float x[2] = {a, b};
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const float slope = fmaf(3.0f * GELU_SCALE * GELU_CUBIC, x[i] * x[i], GELU_SCALE);
        out[i] = fmaf(x[i] * s[i] * (power[i] * s[i]), slope, s[i]);
    }
}
