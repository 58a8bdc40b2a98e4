// The update of tensors whose moments are stored in blocks: block8, ustate1q, n4l4. Included by
// adamw.cu; twin of the block formats in optimizer/src/cpu.
//
// Every thread takes four neighbouring elements, as in the other formats, and a block of a format is
// the work of a run of threads that lies within one CUDA block: decode, update, agree on the scales
// of the block by exchanging numbers, encode. Each byte is read and written once. All threads run
// through all exchanges, also those beyond the end of the tensor.
//
// Defines: BLOCK8_BLOCK, BLOCK8_REPAIRED, USTATE_BLOCK, USTATE_MEAN_BLOCK, USTATE_V_BITS, USTATE_FIRST,
// USTATE_SECOND, USTATE_REPAIRED, N4L4_M_BLOCK, N4L4_V_BLOCK, N4L4_NEAREST.
#pragma once

#include "blocks/block8.cuh"
#include "blocks/n4l4.cuh"
#include "blocks/ustate1q.cuh"

// Updates the elements of a block, or only counts those that would not be finite.
template <bool UPDATES, class Kind>
__device__ __forceinline__ void visit_in_blocks(const Step& step, const Chunk& chunk) {
    typedef typename Kind::State State;
    SharedRoom& room = shared_room();
    const Common common = load_common<UPDATES, State>(step, chunk);
    if (common.is_dropped) return;
    const u32 at = threadIdx.x * LANES;
    const u32 seed = step.control->seed_low, update = (u32)step.control->update;
    const Seat seat = {chunk,
                       common.group,
                       room,
                       (u64)chunk.index + at,
                       min(max(chunk.end - (i32)at, 0), (i32)LANES),
                       published_key(seed, update, chunk.published, 1),
                       published_key(seed, update, chunk.published, 2)};
    Four<u32> parameters = {};
    Four<float> gradients = {};
    if (chunk.is_wide && seat.count == (i32)LANES) {
        parameters = load_parameters<Kind>(chunk, at);
        gradients = load_gradients<Kind>(chunk, at);
    } else {
        for (u32 k = 0; k < LANES; k++) {
            if (!seat.has(k)) continue;
            parameters.at[k] = load_parameter<Kind>(chunk, at + k);
            gradients.at[k] = load_gradient<Kind>(chunk, at + k);
        }
    }
    const State state(step, seat);
    const Moments4 decoded = state.decode(seat);
    Moments4 after;
    u32 events = 0;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float g = __fmul_rn(gradients.at[k], common.clip_scale);
        Pair moments = new_moments(common.group, Pair{decoded.m[k], decoded.v[k]}, g);
        const float p0 = as_float(parameters.at[k]);
        Updated one = updated<State::DECAYS_LAST>(common.group, p0, moments);
        if (largest_of(one, moments) >= INFINITE && seat.has(k)) {
            events += NONFINITE;
            const u64 before = step.tensors[chunk.tensor].first_element;
            atomicMin(&step.control->first_nonfinite, before + seat.index + k);
            one.p = p0;
            moments = Pair{decoded.m[k], decoded.v[k]};
        }
        parameters.at[k] = as_bits(one.p);
        after.m[k] = moments.m;
        after.v[k] = moments.v;
    }
    if constexpr (UPDATES) {
        if (chunk.is_wide && seat.count == (i32)LANES) {
            store_parameters<Kind>(chunk, at, parameters);
        } else {
            for (u32 k = 0; k < LANES; k++) {
                if (seat.has(k)) store_parameter<Kind>(chunk, at + k, parameters.at[k]);
            }
        }
        state.encode(seat, after);
        state.finish(step, seat);
    }
    count_events(step.control, events);
}
