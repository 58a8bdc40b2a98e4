// What a tensor in ustate1q keeps once: its scales, and what its first moments were written with; and what a block finds
// out from that.
#pragma once

#include "codec/ustate.cuh"
#include "table.cuh"

// What a tensor's first moments have besides codes and means; src/table.rs lays out the same.
struct UStateRecord {
    float decode_scale;
    float encode_scale;
    float zero;
    // The update that wrote the state, and the units and the bound that it wrote with.
    float normalised_max;
    float correction;
    float rms_scale;
    u64 written;
    // Sums of the blocks that are done: pieces of squares; live elements below DONE, and those blocks.
    u64 sums[2];
    u64 unused;
    u64 live_and_done;
};
static constexpr u64 DONE = 1ull << 40;

// Numbers of a tensor that all its parts add up: the pieces of squares, and live elements.
static constexpr u32 SPREAD_NUMBERS = 3;

// The record after an update that encoded with a scale and found these sums over the tensor.
__device__ __forceinline__ UStateRecord next_record(float encode_scale, const u64* sums, u64 live,
                                                    const Group& group, u64 update) {
    UStateRecord next = {};
    next.decode_scale = encode_scale;
    next.encode_scale = ustate_next_scale(sums, live, encode_scale);
    next.normalised_max = group.normalised_max;
    next.correction = group.correction;
    next.rms_scale = group.rms_scale;
    next.written = update;
    return next;
}

// What a block finds out once, in the room that threads share. In the mended format the unit of all elements but
// for the root is taken into scale, mean and bound.
struct UStateUnits {
    float common;
    float scale;
    float bound;
    // What a first moment, but for the root, is multiplied by to become a normalised update.
    float inverse_unit;
    // A quarter of the inverse of the scale to encode with.
    float inverse_quarter;
    float encode_scale;
    // Of the published format.
    float correction;
    float rms_scale;
    // Of the mended format: where the middle of what the codes of a block may stand for is at most so large, nothing lies
    // beyond the bound.
    float middle_max;
};
