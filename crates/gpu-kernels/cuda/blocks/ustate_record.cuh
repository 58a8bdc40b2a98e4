// What a tensor in ustate1q keeps once: its scales, and what its first moments were written with.
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
    u64 sums[3];
    u64 live_and_done;
};
static constexpr u64 DONE = 1ull << 40;

// Numbers of a tensor that all its parts add up: the pieces of squares, and live elements.
static constexpr u32 SPREAD_NUMBERS = 4;

// The record after an update that found these sums over the tensor.
__device__ __forceinline__ UStateRecord next_record(const UStateRecord& before, const u64* sums, u64 live,
                                                    const Group& group, u64 update) {
    const float encode_scale = before.encode_scale;
    UStateRecord next = {};
    next.decode_scale = encode_scale;
    next.encode_scale = ustate_next_scale(sums, live, encode_scale);
    next.normalised_max = group.normalised_max;
    next.correction = group.correction;
    next.rms_scale = group.rms_scale;
    next.written = update;
    return next;
}
