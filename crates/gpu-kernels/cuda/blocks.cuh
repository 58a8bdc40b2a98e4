// The update of tensors whose moments are stored in blocks: block8, ustate1q, n4l4. Included by
// adamw.cu; twin of the block formats in optimizer/src/cpu.
//
// A CUDA block works on a few tiles one after the other, so that what it does once is worth it. In a
// tile every thread takes two quads of neighbouring elements, and a block of a format is the work of a run
// of lanes, or of a few warps: decode, update, agree on the scales of the block, encode. Each byte is
// read and written once. All threads run through all exchanges, also those beyond the end of the
// tensor.
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

// Updates the elements of a tile, or only counts those that would not be finite; returns what it counts.
template <bool UPDATES, class Kind, bool FULL, class State>
__device__ __forceinline__ u32 visit_tile(const Step& step, const Chunk& chunk, const Common& common,
                                          State& state, u32 first) {
    const Seat<FULL> seat(chunk, common.group, shared_room(), first);
    Four<u32> parameters[QUADS] = {};
    Four<float> gradients[QUADS] = {};
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        const u64 at = seat.quad(j);
        if constexpr (FULL) {
            parameters[j] = load_parameters<Kind>(chunk, at);
            gradients[j] = load_gradients<Kind>(chunk, at);
        } else {
            for (u32 k = 0; k < LANES; k++) {
                if (!seat.has(j, k)) continue;
                parameters[j].at[k] = load_parameter<Kind>(chunk, (u32)at + k);
                gradients[j].at[k] = load_gradient<Kind>(chunk, (u32)at + k);
            }
        }
    }
    const typename State::Stored stored(seat);
    Quad moments[QUADS];
    state.decode(stored, seat, moments);
    u32 events = 0;
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        events += update_quad<State>(step, seat, j, common, gradients[j], moments[j], parameters[j]);
        if constexpr (UPDATES) {
            const u64 at = seat.quad(j);
            if constexpr (FULL) {
                store_parameters<Kind>(chunk, at, parameters[j]);
            } else {
                for (u32 k = 0; k < LANES; k++) {
                    if (seat.has(j, k)) store_parameter<Kind>(chunk, (u32)at + k, parameters[j].at[k]);
                }
            }
        }
    }
    if constexpr (UPDATES) state.encode(step, seat, moments);
    return events;
}

// Updates the elements of a block, tile by tile, or only counts those that would not be finite.
template <bool UPDATES, class Kind>
__device__ __forceinline__ void visit_in_blocks(const Step& step, const Chunk& chunk) {
    typedef typename Kind::State State;
    const Common common = load_common<UPDATES, State>(step, chunk);
    if (common.is_dropped) return;
    State state(step, chunk, common.group, shared_room());
    u32 events = 0;
#pragma unroll 1
    for (u32 first = 0; (i32)first < chunk.end; first += TILE_ELEMENTS) {
        // Warps that run apart from each other fetch instructions apart: blocks of 2048, which meet for
        // their scales, were faster than those of 256 without this.
        __syncthreads();
        if (chunk.is_wide && (i32)(first + TILE_ELEMENTS) <= chunk.end) {
            events += visit_tile<UPDATES, Kind, true>(step, chunk, common, state, first);
        } else {
            events += visit_tile<UPDATES, Kind, false>(step, chunk, common, state, first);
        }
    }
    if constexpr (UPDATES) state.finish(step, chunk, common.group, shared_room());
    count_events(step.control, events);
}
