// The second moment on a grid of logarithms; twin of formats/src/one_q.rs.
#pragma once

#include "codec/exp_log.cuh"
#include "codec/half_floats.cuh"

static constexpr float ZERO_MAX = 1.262177448353618888658765704752456e-29f;
static_assert(ZERO_MAX == 1.0f / 79228162514264337593543950336.0f, "2^-96");

__device__ __forceinline__ float smaller(float x, float y) { return x < y ? x : y; }

// Whether a second moment is kept as zero.
template <bool REPAIRED>
__device__ __forceinline__ bool is_kept_as_zero(float v) {
    return REPAIRED && v <= ZERO_MAX;
}

// What the codes of a block stand for: the binary logarithms of roots. HAS_ZERO is whether one of them may be
// that of none.
template <bool HAS_ZERO = true>
struct Grid {
    float lowest;
    float step;
    u32 has_zero;

    // With endpoints in the halves of a word.
    __device__ Grid(u32 endpoints, u32 bits) {
        const float first = binary16_to_f32(endpoints & 0xFFFF);
        const float second = binary16_to_f32(endpoints >> 16);
        has_zero = HAS_ZERO && first > second ? 1 : 0;
        const float lo = has_zero ? second : first;
        const float hi = has_zero ? first : second;
        const float intervals = (float)((1u << bits) - 1);
        const float unit =
            has_zero ? HALF_LOG2_E / (intervals - 1.0f) : HALF_LOG2_E / intervals;
        lowest = __fmul_rn(lo, HALF_LOG2_E);
        step = __fmul_rn(__fsub_rn(hi, lo), unit);
    }

    // Whether levels do not descend, for certain: arguments of exp2 differ by more than its error, or
    // not at all, since steps are long or since numbers of that size do.
    __device__ bool is_ascending() const {
        return step >= 1.5e-6f || (as_bits(lowest) & MAGNITUDE) >= as_bits(9.0f);
    }

    // The root that lies so many steps above the lowest.
    __device__ float root_at(i32 position) const {
        return exact_exp2(__fmaf_rn(__int2float_rn(position), step, lowest));
    }

    // The root of what a code stands for.
    template <bool REPAIRED>
    __device__ float root(u32 code) const {
        const i32 position = (i32)(code - has_zero);
        const float root = root_at(position);
        return is_kept_as_zero<REPAIRED>(__fmul_rn(root, root)) || position < 0 ? 0.0f : root;
    }
};

// The sign bit where v has the upper code of two levels, given how far it lies above the lower one and how
// far they are apart.
__device__ __forceinline__ u32 upper_sign(float distance, float width, float uniform) {
    return as_bits(__fmaf_rn(uniform, width, -distance));
}

// The logarithm of the largest f32 that an endpoint may stand for.
static constexpr float LOG_MAX = 88.6875f;

// The logarithm of a second moment as an endpoint, rounded down; or up, if the sign bit of a binary16
// is given.
template <bool IS_NORMAL = false>
__device__ __forceinline__ u32 outward_endpoint(u32 bits, u32 sign) {
    const float log = smaller(exact_ln<IS_NORMAL>(as_float(bits)), LOG_MAX);
    return binary16_below(sign ? -log : log) ^ sign;
}

// The endpoints of a published block, the first in the lower half of a word: those of the smallest
// and of the largest second moment, given by their bits.
__device__ __forceinline__ u32 published_endpoints(u32 min_bits, u32 max_bits) {
    const float least = 1e-38f;
    const float min = as_float(min_bits), max = as_float(max_bits);
    const float lo = smaller(exact_ln(min > least ? min : least), LOG_MAX);
    const float hi = smaller(exact_ln(max > least ? max : least), LOG_MAX);
    if (!(hi > lo)) return binary16_nearest(lo) | binary16_nearest(hi) << 16;
    const float above = binary16_to_f32(binary16_above(hi));
    return binary16_below(lo) | binary16_nearest(smaller(above, LOG_MAX)) << 16;
}
