// The update of a quad, between a decode and an encode.
//
// Square roots and quotients rounded to nearest are a few steps from the hardware's approximations, but
// for numbers near the ends of f32. The compiler asks for each of them whether it is such a case; here all
// steps of a quad are done, and one question is asked at their end.
#pragma once

#include "blocks/seat.cuh"

// Whether the scalars of an update leave room for quick roots and quotients; so as the largest magnitude of a
// parameter that does.
__device__ __forceinline__ float quick_parameter_max(const Group& group) {
    const bool is_plain = group.eps >= power_of_two(-60) && group.eps <= power_of_two(50)
        && group.rms_scale <= power_of_two(26);
    return is_plain ? power_of_two(60) : -1.0f;
}

// Whether a quad is in the range of quick steps, given what its parameters became by them: also not where something is
// not finite, or its format has other steps for so small a second moment. A first moment of zero is as good as a large
// one. Roots tell the range of second moments as well as these do: of one that is out of range they are so too, or no
// numbers.
template <class State>
__device__ __forceinline__ bool is_in_quick_range(const Quad& quad, const Four<u32>& parameters, float parameter_max) {
    constexpr float MOST = State::BY_ROOT ? 536870912.0f : 1152921504606846976.0f;
    static_assert(536870912.0f == 1 << 29 && 1152921504606846976.0f == 1ull << 60, "2^29 and 2^60");
    float p[LANES];
    u32 m[LANES];
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        p[k] = as_float(parameters.at[k]);
        m[k] = 2 * as_bits(quad.m[k]) - 1;
    }
    const float p_largest = larger_magnitude(larger_magnitude(p[0], p[1]), larger_magnitude(p[2], p[3]));
    const u32 m_least = min(min(min(m[0], m[1]), m[2]), m[3]);
    return p_largest <= parameter_max && quad.most <= as_bits(MOST) && quad.least > as_bits(State::TOO_SMALL)
        && m_least >= 2 * as_bits(power_of_two(-60)) - 1;
}

// Updates a quad whatever its numbers are; counts those that would not be finite, and leaves them. Absent elements get
// moments of zero.
template <class State, class Seat>
__device__ __forceinline__ u32 updated_with_care(const Step& step, const Seat& seat, u32 j,
                                                 const Common& common, const Quad& before,
                                                 const Four<float>& gradients, Quad& after,
                                                 Four<u32>& parameters) {
    u32 events = 0;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float g = __fmul_rn(gradients.at[k], common.clip_scale);
        Pair moments = new_moments(common.group, Pair{before.m[k], before.v[k]}, g);
        const float p0 = as_float(parameters.at[k]);
        Updated one = updated<State::DECAYS_LAST>(common.group, p0, moments);
        if (!seat.has(j, k)) {
            moments = Pair{0.0f, 0.0f};
            one = Updated{0.0f, 0.0f};
        } else if (largest_of(one, moments) >= INFINITE) {
            events += NONFINITE;
            const u64 first = step.tensors[seat.chunk.tensor].first_element + seat.chunk.index;
            atomicMin(&step.control->first_nonfinite, (u64)(first + seat.quad(j) + k));
            moments = Pair{before.m[k], before.v[k]};
            one = Updated{p0, __fsqrt_rn(moments.v)};
        }
        parameters.at[k] = as_bits(one.p);
        after.m[k] = moments.m;
        after.v[k] = moments.v;
        after.r[k] = one.r;
    }
    after.find_extremes<State::BY_ROOT>();
    return events;
}

// Reads the parameters and the gradients of a quad; those of absent elements are zero.
template <class Kind, class Seat>
__device__ __forceinline__ void load_quad(const Seat& seat, u32 j, Four<u32>& parameters, Four<float>& gradients) {
    const u64 at = seat.quad(j);
    if constexpr (Seat::FULL) {
        parameters = load_parameters<Kind>(seat.chunk, at);
        gradients = load_gradients<Kind>(seat.chunk, at);
        return;
    }
    for (u32 k = 0; k < LANES; k++) {
        parameters.at[k] = seat.has(j, k) ? load_parameter<Kind>(seat.chunk, (u32)at + k) : 0;
        gradients.at[k] = seat.has(j, k) ? load_gradient<Kind>(seat.chunk, (u32)at + k) : 0.0f;
    }
}

// Overwrites the parameters of a quad.
template <class Kind, class Seat>
__device__ __forceinline__ void store_quad(const Seat& seat, u32 j, const Four<u32>& parameters) {
    const u64 at = seat.quad(j);
    if constexpr (Seat::FULL) {
        store_parameters<Kind>(seat.chunk, at, parameters);
        return;
    }
    for (u32 k = 0; k < LANES; k++) {
        if (seat.has(j, k)) store_parameter<Kind>(seat.chunk, (u32)at + k, parameters.at[k]);
    }
}

// Updates a quad by quick steps, its parameters and its moments, those before it given. Returns whether it is in their
// range; else what is left is of no use.
template <class State>
__device__ __forceinline__ bool update_quickly(const Common& common, const Four<float>& gradients, Quad& moments,
                                               Four<u32>& parameters) {
    const Group& group = common.group;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float g = __fmul_rn(gradients.at[k], common.clip_scale);
        const Pair own = new_moments(group, Pair{moments.m[k], moments.v[k]}, g);
        const float r = quick_root(own.v);
        const float direction = quick_quotient(own.m, __fmaf_rn(r, group.rms_scale, group.eps));
        const float p0 = as_float(parameters.at[k]);
        parameters.at[k] = as_bits(moved<State::DECAYS_LAST>(group, p0, direction));
        moments.m[k] = own.m;
        moments.v[k] = own.v;
        moments.r[k] = r;
    }
    moments.find_extremes<State::BY_ROOT>();
    return is_in_quick_range<State>(moments, parameters, common.quick_parameter_max);
}
