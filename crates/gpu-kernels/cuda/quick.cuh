// Approximate functions, in hardware where there is some.
#pragma once

#include "prelude.cuh"

// 2^x within about two units of the last place; 0 below -126.
__device__ __forceinline__ float quick_exp2(float x) {
#if defined(__CUDACC__)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return x < -126.0f ? 0.0f : exp2f(x);
#endif
}

static constexpr float LOG2_E = 1.44269504089f;
