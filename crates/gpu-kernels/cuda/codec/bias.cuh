// The automatic exponent bias; twin of formats/src/bias.rs.
#pragma once

#include "prelude.cuh"

// A tensor whose bias is not chosen yet. All its stored moments are zero then, which they are
// at any bias.
static constexpr i32 BIAS_UNSET = -1;

// BIAS_AUTO_OFFSET - ceil(log2(gradient_max)), clamped; BIAS_UNSET where there is nothing to
// choose from: zero, infinity, NaN. The sign is ignored.
__device__ __forceinline__ i32 bias_for_max_gradient(float gradient_max) {
    const u32 magnitude = as_bits(gradient_max) & MAGNITUDE;
    if (magnitude == 0 || magnitude >= INFINITE) return BIAS_UNSET;
    // An f32 subnormal has field 0 and a logarithm below -126; both that and the -127 read here
    // are far beyond the clamp.
    const i32 log2_floor = (i32)(magnitude >> 23) - 127;
    const bool is_power_of_two = (magnitude & 0x7FFFFFu) == 0;
    const i32 bias = BIAS_AUTO_OFFSET - (is_power_of_two ? log2_floor : log2_floor + 1);
    return bias < BIAS_MIN ? BIAS_MIN : bias > BIAS_MAX ? BIAS_MAX : bias;
}
