// What a group of the forward pass finds of its rows where four warps make products as one, and how what several found
// is put together: shares in their order, then the two blocks of a cluster. Who does what: attention_ring.cuh.
#pragma once

#include "attention_ring.cuh"

// Of a thread that leaves what it found.
static constexpr u32 NUMBERS = 32 + 4;
// What blocks of a cluster send each other of a unit.
static constexpr u32 SENT_BYTES = CLUSTER > 1 ? 2 * 5 * 128 * 16 : 0;

// What a group knows of its rows.
struct Found {
    Tile sums;
    // c times the largest score.
    float shifts[2];
    // A lane's part of the sums of exponentials.
    float totals[2];
};

struct Visits {
    Task task;
    u32 first;
    // Tiles of keys.
    u32 count;
};

__device__ __forceinline__ Visits visits_of(const Attention& call, u32 number) {
    Visits visits;
    visits.task = task_of_block(call, number, call.tiles);
    visits.first = (call.tiles - 1 - visits.task.rank) * ROWS;
    visits.count = (min(visits.first + ROWS, call.time) + TILE - 1) / TILE;
    return visits;
}

// Turns scores into exponentials; says by what factors sums that were found before fit the new largest scores, and
// whether any is not 1.
__device__ __forceinline__ bool exponentials(float (&factors)[2], Found& found, Tile& scores, float scale_log2,
                                             bool is_diagonal, const Member& member) {
    if (is_diagonal) hide<false>(scores, member);
    bool is_larger = false;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float largest = -infinity();
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            largest = fmaxf(largest, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
        }
        largest = max_over_lanes<4>(largest);
        const float before = found.shifts[half];
        // Every tile that is visited has a key that each row of the group sees.
        const float shift = fmaxf(before, largest * scale_log2);
        found.shifts[half] = shift;
        factors[half] = exp2_fast(before - shift);
        is_larger |= shift != before;
        float total[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float& score = scores[n][half * 2 + i];
                score = exp2_fast(__fmaf_rn(score, scale_log2, -shift));
                total[i] += score;
            }
        }
        found.totals[half] = __fmaf_rn(found.totals[half], factors[half], total[0] + total[1]);
    }
    return is_larger;
}

// Leaves what a group found.
__device__ __forceinline__ void leave(float* at, const Found& found) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        at[half * 256] = found.shifts[half];
        at[half * 256 + 128] = found.totals[half];
    }
#pragma unroll
    for (u32 i = 0; i < 32; i++) at[(4 + i) * 128] = found.sums[i / 4][i % 4];
}

// What makes sums with a largest score and those with another fit the larger one, which `shift` becomes. None may have
// seen a key.
__device__ __forceinline__ void fit(float& factor, float& their_factor, float& shift, float theirs) {
    const float larger = fmaxf(shift, theirs), base = larger == -infinity() ? 0.0f : larger;
    factor = exp2_fast(shift - base);
    their_factor = exp2_fast(theirs - base);
    shift = larger;
}

// Puts what another share left together with what was found before.
__device__ __forceinline__ void gather(const float* at, Found& found) {
    float factors[2], their_factors[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const float theirs = at[half * 256];
        fit(factors[half], their_factors[half], found.shifts[half], theirs);
        found.totals[half] = __fmaf_rn(at[half * 256 + 128], their_factors[half], found.totals[half] * factors[half]);
    }
#pragma unroll
    for (u32 i = 0; i < 32; i++) {
        float& sum = found.sums[i / 4][i % 4];
        sum = __fmaf_rn(at[(4 + i) * 128], their_factors[i % 4 / 2], sum * factors[i % 4 / 2]);
    }
}

#if CLUSTER > 1
// Sends what was found of the other half of the channels than that from FIRST on to the other block, which finishes
// it, and puts what comes together with what was found of this half: that of the first block first.
template <u32 FIRST>
__device__ __forceinline__ void finish_half(Found& found, const Halves<4, 1>& halves, u32 rank) {
    halves.tell<4 - FIRST>(found.sums, rank);
    halves.tell_more({found.shifts[0], found.shifts[1], found.totals[0], found.totals[1]}, rank);
    halves.wait();
    float four[4], factors[2], their_factors[2];
    halves.get(four, 4);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        fit(factors[half], their_factors[half], found.shifts[half], four[half]);
        found.totals[half] = __fadd_rn(found.totals[half] * factors[half], four[2 + half] * their_factors[half]);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        halves.get(four, i);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            float& sum = found.sums[FIRST + i][k];
            sum = __fadd_rn(sum * factors[k / 2], four[k] * their_factors[k / 2]);
        }
    }
}

// Finishes this block's half.
__device__ __forceinline__ void finish_own_half(Found& found, const Halves<4, 1>& halves, u32 rank) {
    if (rank == 0) {
        finish_half<0>(found, halves, rank);
    } else {
        finish_half<4>(found, halves, rank);
    }
}
#endif

// By what sums are divided in the end, and the statistics of the unit's rows, whose first is `first`; the first block of a
// cluster writes those.
__device__ __forceinline__ void finish_rows(float (&factors)[2], const Found& found, const Attention& call,
                                            const Task& task, u32 first, u32 rank, const Member& member) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        factors[half] = 1.0f / sum_over_lanes<4>(found.totals[half]);
        const u32 row = first + member.row + 8 * half;
        if (rank == 0 && member.t == 0 && row < call.time) {
            float* statistics = statistics_of(call, task, row);
            statistics[0] = found.shifts[half];
            statistics[1] = factors[half];
        }
    }
}
