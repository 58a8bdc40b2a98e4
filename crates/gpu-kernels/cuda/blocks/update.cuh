// The update of a quad, between a decode and an encode.
//
// Square roots and quotients rounded to nearest are a few steps from the hardware's approximations, but
// for numbers near the ends of f32. The compiler asks for each of them whether it is such a case; here all
// steps of a quad are done, and one question is asked at their end.
#pragma once

#include "blocks/seat.cuh"

// What tells whether a quad is in the range of quick roots and quotients. `largest` exceeds what is
// allowed too where something is not finite.
struct QuickRange {
    u32 largest = 0;
    u32 least_v = ~0u;
    u32 least_m = ~0u;

    // With one more element and what its parameter became; a first moment of zero is as good as a large one.
    __device__ void add(Pair moments, float p) {
        largest = max(largest, max(as_bits(p) & MAGNITUDE, as_bits(moments.v)));
        least_v = min(least_v, as_bits(moments.v));
        least_m = min(least_m, 2 * as_bits(moments.m) - 1);
    }

    __device__ bool has_all(const Group& group) const {
        const bool is_plain = group.eps >= power_of_two(-60) && group.eps <= power_of_two(50)
            && group.rms_scale <= power_of_two(26);
        return is_plain && largest <= as_bits(power_of_two(60))
            && least_v >= as_bits(power_of_two(-100)) && least_m >= 2 * as_bits(power_of_two(-60)) - 1;
    }
};

// Updates a quad whatever its numbers are; counts those that would not be finite, and leaves them.
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
        if (largest_of(one, moments) >= INFINITE && seat.has(j, k)) {
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
    return events;
}

// Updates a quad: its parameters, and its moments, those before it given; absent elements have none.
// Returns what is counted.
template <class State, class Seat>
__device__ __forceinline__ u32 update_quad(const Step& step, const Seat& seat, u32 j,
                                           const Common& common, const Four<float>& gradients,
                                           Quad& moments, Four<u32>& parameters) {
    const Group& group = common.group;
    Quad after;
    Four<u32> p;
    QuickRange range;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float g = __fmul_rn(gradients.at[k], common.clip_scale);
        const Pair own = new_moments(group, Pair{moments.m[k], moments.v[k]}, g);
        const float r = quick_root(own.v);
        const float direction = quick_quotient(own.m, __fmaf_rn(r, group.rms_scale, group.eps));
        const float one = moved<State::DECAYS_LAST>(group, as_float(parameters.at[k]), direction);
        range.add(own, one);
        p.at[k] = as_bits(one);
        after.m[k] = own.m;
        after.v[k] = own.v;
        after.r[k] = r;
    }
    u32 events = 0;
    if (range.has_all(group)) {
        parameters = p;
    } else {
        events = updated_with_care<State>(step, seat, j, common, moments, gradients, after, parameters);
    }
    moments = after;
    if constexpr (!Seat::FULL) {
        for (u32 k = 0; k < LANES; k++) {
            if (!seat.has(j, k)) moments.m[k] = moments.v[k] = moments.r[k] = 0.0f;
        }
    }
    return events;
}
