// What both backward passes of attention share where four warps make products as one: which tiles a task visits, how scores
// turn into gradients, and the way through all tasks. Who does what: attention_ring.cuh.
#pragma once

#include "attention_ring.cuh"

// Of a tile of visited queries.
static constexpr u32 PAIRS_BYTES = TILE * 8;

struct Visits {
    Task task;
    bool owns_keys;
    u32 tile;
    // The first visited tile, and how many.
    u32 first;
    u32 count;
};

// How many tiles a task visits, of which all else is known; said by each pass.
__device__ __forceinline__ u32 count_of(const Attention& call, const Visits& visits);

__device__ __forceinline__ Visits visits_of(const Attention& call, u32 number) {
    Visits visits;
    // Keys and queries by turns, so that long tasks of both begin first.
    visits.task = task_of_block(call, number, 2 * call.tiles);
    visits.owns_keys = visits.task.rank % 2 == 0;
    visits.task.rank /= 2;
    visits.tile = visits.owns_keys ? visits.task.rank : call.tiles - 1 - visits.task.rank;
    visits.first = visits.owns_keys ? visits.tile * UNITS : 0;
    visits.count = count_of(call, visits);
    return visits;
}

struct Row {
    float shift;
    float o;
};

// Turns scores into probabilities, and their gradients into those of scores.
template <bool OWNS_KEYS>
__device__ __forceinline__ void gradients(Tile& scores, Tile& d_scores, const Row (&rows)[2], Shared pairs,
                                          float scale_log2, bool is_diagonal, const Member& member) {
    if (is_diagonal) hide<OWNS_KEYS>(scores, member);
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
        Row columns[2] = {};
        if constexpr (OWNS_KEYS) {
            const uint4 two = load_shared_four(pairs + n * 64 + member.t * 16);
            columns[0] = {as_float(two.x), as_float(two.y)};
            columns[1] = {as_float(two.z), as_float(two.w)};
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const Row& of = OWNS_KEYS ? columns[i % 2] : rows[i / 2];
            scores[n][i] = exp2_fast(__fmaf_rn(scores[n][i], scale_log2, -of.shift));
            d_scores[n][i] = (d_scores[n][i] - of.o) * scores[n][i];
        }
    }
}

// Leaves sums for the other share from FIRST on, and adds what that one left: the first share's sums are the first.
template <u32 FIRST, u32 COUNT>
__device__ __forceinline__ void leave(float* at, const Tile& sums) {
#pragma unroll
    for (u32 i = 0; i < COUNT * 4; i++) at[i * 128] = sums[FIRST + i / 4][i % 4];
}
template <u32 FIRST, u32 COUNT>
__device__ __forceinline__ void gather(Tile& sums, const float* at) {
#pragma unroll
    for (u32 i = 0; i < COUNT * 4; i++) sums[FIRST + i / 4][i % 4] += at[i * 128];
}

// What a pass has in shared memory, and the computing threads' part in a task, before which so many tiles were visited;
// said by each pass.
struct Place;
template <bool OWNS_KEYS>
__device__ __forceinline__ void compute(const Place& place, const RingAttention& all, const Visits& visits, u32 turn,
                                        u32 before, const Member& member);

// The computing threads' part in all tasks of this block.
__device__ __forceinline__ void compute_all(const Place& place, const Turns& turns, const RingAttention& all,
                                            const Member& member) {
    const Attention& call = all.call;
    u32 number, before = 0;
#pragma unroll 1
    for (u32 turn = 0; follow_turn(number, turns, call, turn); turn++) {
        const Visits visits = visits_of(call, number);
        if (visits.owns_keys) {
            compute<true>(place, all, visits, turn, before, member);
        } else {
            compute<false>(place, all, visits, turn, before, member);
        }
        before += visits.count;
    }
}
