// Quotients by the largest magnitude of a block of an 8-bit map.
#pragma once

#include "prelude.cuh"

// A moment over an absmax, many times.
//
// `over` is the quotient rounded to nearest, without a division: y + y_low is the inverse of the absmax
// to 48 bits, so q is one of the two f32 around the quotient, and its remainder, which is exact, decides. An absmax
// from 2^-64 to 1 leaves room for that, but for quotients below 2^-39, which may be off by one in
// their last place, and have no threshold but zero among them.
struct Inverse {
    float absmax;
    float y;
    float y_low;

    __device__ explicit Inverse(u32 absmax_bits) : absmax(as_float(absmax_bits)) {
        y = quick_inverse(absmax);
        y_low = __fmul_rn(__fmaf_rn(-absmax, y, 1.0f), y);
    }

    __device__ bool is_quick() const { return absmax >= power_of_two(-64) && absmax <= 1.0f; }

    __device__ float over(float x) const {
        const float q = __fmaf_rn(x, y, __fmul_rn(x, y_low));
        return __fmaf_rn(__fmaf_rn(-absmax, q, x), y, q);
    }
};
