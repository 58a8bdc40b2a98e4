// Parts of what a tile of queries visits. With few tiles the one that visits most rows would decide how
// long all takes. So a tile is worked on in parts, PART_ROWS visited rows each, by a block for each
// part. Every warp of such a block leaves what it found in memory, and the one that is last puts all
// parts of its rows together, in their order, whoever it is.
//
// Defines beyond attention_mma.cuh: PART_ROWS (0 for tiles that are not cut).
#pragma once

#include "attention_mma.cuh"

static_assert(PART_ROWS % ROUND == 0 && PART_ROWS % ROWS == 0, "parts are whole rounds and tiles");

// A part of what a tile visits.
struct Part {
    u32 index;
    u32 count;
    // The block of part 0, and how many blocks further that of the next part is.
    u32 first_block;
    u32 stride;
};

// The task of a block, and its part.
__device__ __forceinline__ Task task_and_part(const Attention& call, Part& part) {
    part = {0, 1, blockIdx.x, 0};
    if constexpr (PART_ROWS == 0) {
        return task_of_block(call, blockIdx.x, call.tiles);
    } else {
        part.stride = call.batch * call.heads;
        u32 rank = 0, block = blockIdx.x;
        for (;; rank++) {
            const u32 visited = min((call.tiles - rank) * ROWS, call.time);
            part.count = (visited + PART_ROWS - 1) / PART_ROWS;
            if (block < part.count * part.stride) break;
            block -= part.count * part.stride;
        }
        part.index = block / part.stride;
        const u32 pair = block - part.index * part.stride;
        part.first_block = blockIdx.x - block + pair;
        const u32 window = pair / call.heads;
        return {window, pair - window * call.heads, rank};
    }
}

// Where a lane leaves the first of `numbers` numbers that it found in part `index`.
__device__ __forceinline__ float* part_left(const Attention& call, const Part& part, u32 index,
                                            u32 numbers, const Lane& lane) {
    const u64 block = part.first_block + index * part.stride;
    const u64 warp = block * ROW_WARPS + lane.rows / (ROW_TILES * 16);
    return call.parts + warp * numbers * 32 + lane.lane;
}

// Whether all other parts of the warp's rows are there too, after it left its own.
__device__ __forceinline__ bool is_last_part(const Attention& call, const Part& part,
                                             const Lane& lane) {
    __threadfence();
    __syncwarp();
    u32 before = 0;
    if (lane.lane == 0) {
        u32* done = call.parts_done + part.first_block * ROW_WARPS + lane.rows / (ROW_TILES * 16);
        before = atomicAdd(done, 1u);
        // Nobody else comes before the next launch.
        if (before == part.count - 1) *done = 0;
    }
    before = __shfl_sync(0xFFFFFFFFu, before, 0);
    __threadfence();
    return before == part.count - 1;
}

// A number that a warp of this block left in shared memory, or of another one in memory.
template <bool IS_FAR>
__device__ __forceinline__ float left_number(const float* at) {
    if constexpr (IS_FAR) return __ldcg(at);
    return *at;
}
