// Both moments in 4 bits; twin of formats/src/n4l4.rs.
#pragma once

#include "codec/half_floats.cuh"

static constexpr float ROOT_ZERO_MAX = 3.552713678800501e-15f;
static_assert(ROOT_ZERO_MAX == 1.0f / 281474976710656.0f, "2^-48");
static constexpr u32 V_CODE_MAX = 15;

// The endpoints of a block, the first in the lower half of a word, from the bits of its smallest root that is
// not zero, all ones if there is none, and of its largest.
__device__ __forceinline__ u32 n4l4_endpoints(u32 min_bits, u32 max_bits, bool has_zero) {
    const u32 lo = min_bits >> 16, hi = (max_bits + 0xFFFFu) >> 16;
    const u32 above = lo == hi ? hi + 1 : hi;
    const u32 endpoints = has_zero ? above | lo << 16 : lo | hi << 16;
    return min_bits == ~0u ? 0 : endpoints;
}

// What the codes of a block of second moments stand for; HAS_ZERO is whether one of them may be zero.
template <bool HAS_ZERO = true>
struct RootGrid {
    u32 base;
    u32 step;
    u32 has_zero = 0;

    __device__ explicit RootGrid(u32 endpoints) {
        const u32 first = endpoints << 16, second = endpoints & 0xFFFF0000u;
        if constexpr (HAS_ZERO) {
            has_zero = first > second ? 1 : 0;
            const u32 lo = min(first, second), width = max(first, second) - lo;
            const u32 of_all = (width + (V_CODE_MAX - 1)) / V_CODE_MAX;
            const u32 of_rest = (width + (V_CODE_MAX - 2)) / (V_CODE_MAX - 1);
            step = has_zero ? of_rest : of_all;
            base = has_zero ? lo - step : lo;
        } else {
            base = first;
            step = (second - first + (V_CODE_MAX - 1)) / V_CODE_MAX;
        }
    }

    __device__ float inverse_step() const {
        return step == 0 ? 0.0f : quick_inverse(__int2float_rn((i32)step));
    }

    __device__ float root(u32 code) const {
        const float root = as_float(base + code * step);
        return HAS_ZERO && code < has_zero ? 0.0f : root;
    }

    // The code of a root.
    __device__ u32 code(float root, float uniform, float inverse_step) const {
        const i32 distance = (i32)(as_bits(root) - base);
        const float place = __fmul_rn(__int2float_rn(distance), inverse_step);
        // The next lower integer; or, which changes nothing, the one below an integer.
        const float rounder = 12582912.0f;
        const u32 lower = as_bits(__fadd_rn(__fsub_rn(place, 0.5f), rounder)) - as_bits(rounder);
        const u32 bits = base + lower * step;
        const float a = HAS_ZERO && lower < has_zero ? 0.0f : as_float(bits);
        const float b = as_float(bits + step);
        const float a_square = __fmul_rn(a, a);
        const float width = __fsub_rn(__fmul_rn(b, b), a_square);
        const float way = __fsub_rn(__fmul_rn(root, root), a_square);
        const u32 code = lower + (__fmul_rn(uniform, width) < way ? 1 : 0);
        return HAS_ZERO && root <= ROOT_ZERO_MAX ? 0 : code;
    }
};

// The unit of a block as it is stored, and its inverse.
__device__ __forceinline__ u32 n4l4_stored_unit(float absmax, float ratio_max) {
    const u32 above = (as_bits(__fmul_rn(absmax, 1.0f / 7.0f)) + 0xFFFFu) >> 16;
    const u32 largest = as_bits(__fmul_rn(ratio_max, 1.0f / 7.0f)) >> 16;
    return absmax < power_of_two(-100) ? 0 : min(above, largest);
}
__device__ __forceinline__ float n4l4_inverse_unit(u32 unit) {
    return unit == 0 ? 0.0f : quick_inverse(bf16_to_f32(unit));
}

// The code of q in the low four bits; those above them are of no use.
__device__ __forceinline__ u32 n4l4_code(float q, float inverse_unit, float dither) {
    const float position = __fadd_rn(__fmul_rn(q, inverse_unit), __fadd_rn(dither, 7.5f));
    return as_bits(__fadd_rn(fminf(fmaxf(position, 1.0f), 15.0f), 8388608.0f));
}

// The multiple of the unit that a code stands for, which is byte `k` of a word.
__device__ __forceinline__ float n4l4_multiple(u32 codes, u32 k) {
    const u32 bits = __byte_perm(codes, 0x4B000000u, 0x7650 + k);
    return __fsub_rn(as_float(bits), 8388608.0f + 8.0f);
}
