// The update of tensors whose moments are stored in blocks: block8, ustate1q, n4l4. Included by
// adamw.cu; twin of the block formats in optimizer/src/cpu.
//
// A CUDA block works on a few tiles one after the other, so that what it does once is worth it. In a
// tile every thread takes two quads of neighbouring elements, and a block of a format is the work of a run
// of lanes, or of a few warps: decode, update, agree on the scales of the block, encode. Each byte is
// read and written once. All threads run through all exchanges, also those beyond the end of the
// tensor.
//
// Nearly all tiles are whole and their numbers plain: far from the ends of f32, none of them zero but first moments and gradients, and
// within all bounds. For these there are quick steps, which ask at their end whether they were right, once for a warp;
// where they were not, nothing is stored yet, and the warp does its part of the tile again, with care. So no step of
// the quick ones keeps what only careful ones need, which is worth a quarter of a thread's registers.
//
// Defines: BLOCK8_BLOCK, BLOCK8_REPAIRED, USTATE_BLOCK, USTATE_MEAN_BLOCK, USTATE_V_BITS, USTATE_FIRST,
// USTATE_SECOND, USTATE_REPAIRED, N4L4_M_BLOCK, N4L4_V_BLOCK, N4L4_NEAREST.
#pragma once

#include "blocks/block8.cuh"
#include "blocks/n4l4.cuh"
#include "blocks/update.cuh"
#include "blocks/ustate1q.cuh"

// Where the arrays of a chunk's state begin. For one thread of the block.
__device__ __forceinline__ void place_arrays(Chunk& chunk) {
    const u32 format = chunk.kind / 4;
    if constexpr ((KINDS & BLOCK8_KINDS) != 0) {
        if (format == FORMAT_BLOCK8) Block8State::place(chunk);
    }
    if constexpr ((KINDS & USTATE_KINDS) != 0) {
        if (format == FORMAT_USTATE1Q) UStateState::place(chunk);
    }
    if constexpr ((KINDS & N4L4_KINDS) != 0) {
        if (format == FORMAT_N4L4) N4l4State::place(chunk);
    }
}

// Updates the elements of a whole tile by quick steps, if all of a warp are plain numbers: returns whether they are, and
// else changes nothing.
template <bool UPDATES, class Kind, class State>
__device__ __forceinline__ bool visit_quickly(const Step& step, const Chunk& chunk, const Common& common,
                                              State& state, u32 first) {
    const Seat<true, true> seat(chunk, common.group, shared_room(), first);
    Four<u32> parameters[QUADS];
    Four<float> gradients[QUADS];
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) load_quad<Kind>(seat, j, parameters[j], gradients[j]);
    const typename State::Stored stored(seat);
    // The compiler moves nothing over this, neither loads behind it, which are all on their way then, nor a quad's steps
    // before those of another, so that few numbers are alive.
    __syncwarp();
    const typename State::Decoding decoding = State::begin_decode(stored, seat);
    Quad moments[QUADS];
    bool is_quick = decoding.is_plain;
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        if (j > 0) __syncwarp();
        state.decode(decoding, stored, seat, j, moments[j]);
        is_quick &= update_quickly<State>(common, gradients[j], moments[j], parameters[j]);
    }
    if (!all_agree<State::BLOCK>(seat.room, is_quick)) return false;
    if constexpr (!UPDATES) return true;
    return state.encode(step, seat, moments, [&] {
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) store_quad<Kind>(seat, j, parameters[j]);
    });
}

// Updates the elements of a tile whatever they are, or only counts those that would not be finite; returns what it counts.
template <bool UPDATES, class Kind, bool FULL, class State>
__device__ __forceinline__ u32 visit_with_care(const Step& step, const Chunk& chunk, const Common& common,
                                               State& state, u32 first) {
    const Seat<FULL, false> seat(chunk, common.group, shared_room(), first);
    const typename State::Stored stored(seat);
    const typename State::Decoding decoding = State::begin_decode(stored, seat);
    Quad moments[QUADS];
    u32 events = 0;
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        Four<u32> parameters;
        Four<float> gradients;
        load_quad<Kind>(seat, j, parameters, gradients);
        Quad before;
        state.decode(decoding, stored, seat, j, before);
        events += updated_with_care<State>(step, seat, j, common, before, gradients, moments[j], parameters);
        if constexpr (UPDATES) store_quad<Kind>(seat, j, parameters);
    }
    if constexpr (UPDATES) state.encode(step, seat, moments, [] {});
    return events;
}

// Updates the elements of a block, tile by tile, or only counts those that would not be finite.
template <bool UPDATES, class Kind>
__device__ __forceinline__ void visit_in_blocks(const Step& step, const Chunk& chunk) {
    typedef typename Kind::State State;
    launch_wait();
    Common common = load_common<UPDATES, State>(step, chunk);
    if (common.is_dropped) return;
    common.quick_parameter_max = quick_parameter_max(common.group);
    State state(step, chunk, common.group, shared_room());
    u32 events = 0;
#pragma unroll 1
    for (u32 first = 0; (i32)first < chunk.end; first += TILE_ELEMENTS) {
        // Warps that run apart from each other fetch instructions apart: blocks of 2048, which meet for
        // their scales, were faster than those of 256 without this.
        __syncthreads();
        if (!chunk.is_wide || (i32)(first + TILE_ELEMENTS) > chunk.end) {
            events += visit_with_care<UPDATES, Kind, false>(step, chunk, common, state, first);
        } else if (!visit_quickly<UPDATES, Kind>(step, chunk, common, state, first)) {
            events += visit_with_care<UPDATES, Kind, true>(step, chunk, common, state, first);
        }
    }
    if constexpr (UPDATES) state.finish(step, chunk, common.group, shared_room());
    count_events(step.control, events);
}
