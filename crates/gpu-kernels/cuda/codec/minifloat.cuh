// Minifloats whose every code is finite; twin of formats/src/minifloat.rs.
//
//     value = f * 2^(1 - B - M)              if e == 0   (subnormal)
//     value = (1 + f / 2^M) * 2^(e - B)      otherwise   (normal)
//
// The same values and codes as there, by other operations where a GPU has better ones: it multiplies
// f32 subnormals at full speed, so one shift and one product decode every code; and an encode
// first takes the number to bias 0, times 2^B, so that all else is constant and few registers
// hold a codec. That product is exact: B is 0 to 40, and what overflows saturates anyway.
#pragma once

#include "prelude.cuh"

// The code that an encode chose, and whether it was clamped at the largest finite one.
struct Rounded {
    u32 code;
    bool saturated;
};

// M fraction bits, the code of the largest finite magnitude, at one bias.
template <u32 M, u32 CODE_MAX>
struct Minifloat {
    static constexpr u32 DROPPED_BITS = 23 - M;
    // What takes a normal code to the upper bits of its f32, at bias 0.
    static constexpr u32 REBASE = 127u << M;

    u32 bias;

    __device__ explicit Minifloat(u32 bias) : bias(bias) {}

    // The value of a code without sign: exact. Put where f32 has its exponent and fraction, a code
    // stands for its value times 2^(B - 127), subnormal codes included; the product undoes that.
    __device__ float decode(u32 code) const {
        return __fmul_rn(as_float(code << DROPPED_BITS), power_of_two(127 - (i32)bias));
    }

    // The nearest code to a magnitude without sign bit, ties to the even code.
    __device__ Rounded encode_nearest(float magnitude) const {
        const float unbiased = __fmul_rn(magnitude, power_of_two((i32)bias));
        const u32 bits = as_bits(unbiased);
        const u32 odd = bits >> DROPPED_BITS & 1;
        const u32 rounded = bits + ((1u << (DROPPED_BITS - 1)) - 1) + odd;
        const u32 normal = (rounded >> DROPPED_BITS) - REBASE;
        // Near 2^23 steps the spacing of f32 is one step, so this addition is the rounding, and
        // the low bits of the sum count the steps.
        const float anchor = power_of_two(24 - (i32)M);
        const u32 subnormal = as_bits(__fadd_rn(unbiased, anchor)) - as_bits(anchor);
        return saturate(unbiased < NORMAL_MIN ? subnormal : normal);
    }

    // One of the two codes around a magnitude, the upper one with a probability equal to the
    // distance from the lower one. The upper 23 bits of the random word count.
    __device__ Rounded encode_stochastic(float magnitude, u32 random) const {
        const float unbiased = __fmul_rn(magnitude, power_of_two((i32)bias));
        const u32 bits = as_bits(unbiased);
        const float steps = __fmul_rn(unbiased, power_of_two((i32)M - 1));
        const i32 lower_subnormal = __float2int_rz(steps);
        const u32 lower_normal = (bits >> DROPPED_BITS) - REBASE;
        const u32 dropped = bits & ((1u << DROPPED_BITS) - 1);
        const bool is_subnormal = unbiased < NORMAL_MIN;
        const u32 lower = is_subnormal ? (u32)lower_subnormal : lower_normal;
        const float fraction = is_subnormal
            ? __fsub_rn(steps, __int2float_rn(lower_subnormal))
            : unit_fraction(dropped << M);
        return saturate(lower + (unit_fraction(random >> 9) < fraction ? 1u : 0u));
    }

    // The same with the sign in bit 15. Zero keeps its sign.
    __device__ float decode_signed(u32 code) const {
        return as_float(as_bits(decode(code & 0x7FFFu)) | (code & 0x8000u) << 16);
    }

    __device__ Rounded encode_signed_nearest(float value) const {
        const u32 bits = as_bits(value);
        Rounded rounded = encode_nearest(as_float(bits & MAGNITUDE));
        rounded.code |= bits >> 16 & 0x8000u;
        return rounded;
    }

    __device__ Rounded encode_signed_stochastic(float value, u32 random) const {
        const u32 bits = as_bits(value);
        Rounded rounded = encode_stochastic(as_float(bits & MAGNITUDE), random);
        rounded.code |= bits >> 16 & 0x8000u;
        return rounded;
    }

  private:
    // Where the normal codes begin at bias 0.
    static constexpr float NORMAL_MIN = 2.0f;

    // bits / 2^23, exact: they become the fraction of a number from 1 to 2.
    __device__ static float unit_fraction(u32 bits) {
        return __fsub_rn(as_float(0x3F800000u | bits), 1.0f);
    }

    __device__ static Rounded saturate(u32 code) {
        Rounded rounded;
        rounded.saturated = code > CODE_MAX;
        rounded.code = min(code, CODE_MAX);
        return rounded;
    }
};

// A second moment that is alive never decodes to zero. The magnitude has no sign bit.
__device__ __forceinline__ Rounded never_zero_for(Rounded rounded, float magnitude) {
    const u32 smallest = min(as_bits(magnitude), 1u);
    rounded.code = max(rounded.code, smallest);
    return rounded;
}
