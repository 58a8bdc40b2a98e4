// Causal attention, forward, on the tensor cores: bf16 or tf32 products with sums in f32. Formula and
// statistics: attention.cuh; how rows lie and products are made: attention_mma.cuh. Launched by
// src/attention.rs.
//
// A block owns queries and visits keys and values. Each group of warps keeps its own largest score,
// sum of exponentials and weighted values; the first group puts them together, and whoever is last
// those of the parts.
//
// Grid: a block for every part of every tile of queries of every head. Overwrites all of out and statistics.
// Shared memory: SHARED_BYTES at launch: the queries, then two halves of ROUND keys and ROUND
// values; at the end what groups leave behind.
//
// Defines: those of attention_parts.cuh.

#include "attention_parts.cuh"

static constexpr u32 TILES = VISITED / 8;
static constexpr u32 HALF_BYTES = 2 * ROUND * PITCH;
static constexpr u32 NUMBERS_OF_LANE = SUMS_OF_LANE + ROW_TILES * 4;
static_assert(SHARED_BYTES >= ROWS * PITCH + 2 * HALF_BYTES, "room for what is visited");
static_assert(SHARED_BYTES >= (WARP_GROUPS - 1) * ROW_WARPS * NUMBERS_OF_LANE * 128, "room for what is left behind");

// What a warp knows of its rows: g and g + 8 of each tile.
struct Found {
    RowSums sums;
    // c times the largest score.
    float shifts[ROW_TILES][2];
    // Sums of exponentials, once in every column of a tile.
    float totals[ROW_TILES][4];
};

// Turns scores into exponentials, and makes what was found before fit the new largest score.
// `ahead` is how far the warp's first row is ahead of the first visited key.
__device__ __forceinline__ void exponentials(Found& found, float (&scores)[ROW_TILES][TILES][4],
                                             float scale_log2, i32 ahead, const Lane& lane) {
    if (ahead < (i32)VISITED - 1) {
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const i32 row = ahead + (i32)(m * 16 + i / 2 * 8 + lane.g);
                    const i32 key = (i32)(n * 8 + lane.t * 2 + i % 2);
                    if (key > row) scores[m][n][i] = -infinity();
                }
            }
        }
    }
    float factors[ROW_TILES][2];
    bool is_larger = false;
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float largest = -infinity();
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                largest = fmaxf(largest, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
            }
            largest = max_over_lanes<4>(largest);
            const float before = found.shifts[m][half];
            const float shift = fmaxf(before, largest * scale_log2);
            // A row that sees no key of this group yet has no largest score.
            const float base = shift == -infinity() ? 0.0f : shift;
            found.shifts[m][half] = shift;
            factors[m][half] = exp2_fast(before - base);
            is_larger |= shift != before;
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
#pragma unroll
                for (u32 i = half * 2; i < half * 2 + 2; i++) {
                    scores[m][n][i] = exp2_fast(__fmaf_rn(scores[m][n][i], scale_log2, -base));
                }
            }
        }
    }
    // Seldom after the first few rounds.
    if (__any_sync(0xFFFFFFFFu, is_larger)) {
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                found.totals[m][i] *= factors[m][i / 2];
#pragma unroll
                for (u32 n = 0; n < TILES_OF_ROW; n++) found.sums[m][n][i] *= factors[m][i / 2];
            }
        }
    }
}

// Leaves what a warp found.
__device__ __forceinline__ void leave(float* at, const Found& found) {
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            at[(m * 4 + half * 2) * 32] = found.shifts[m][half];
            at[(m * 4 + half * 2 + 1) * 32] = found.totals[m][half * 2];
        }
#pragma unroll
        for (u32 i = 0; i < TILES_OF_ROW * 4; i++) {
            at[(ROW_TILES * 4 + m * TILES_OF_ROW * 4 + i) * 32] = found.sums[m][i / 4][i % 4];
        }
    }
}

// Puts what another warp left together with what was found before.
template <bool IS_FAR>
__device__ __forceinline__ void gather(const float* at, Found& found) {
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float mine = found.shifts[m][half];
            const float theirs = left_number<IS_FAR>(at + (m * 4 + half * 2) * 32);
            // Whoever comes first has seen a key, so this is a number.
            const float shift = fmaxf(mine, theirs);
            const float factor = exp2_fast(mine - shift), their_factor = exp2_fast(theirs - shift);
            found.shifts[m][half] = shift;
            found.totals[m][half * 2] *= factor;
            found.totals[m][half * 2] +=
                left_number<IS_FAR>(at + (m * 4 + half * 2 + 1) * 32) * their_factor;
#pragma unroll
            for (u32 n = 0; n < TILES_OF_ROW; n++) {
#pragma unroll
                for (u32 i = half * 2; i < half * 2 + 2; i++) {
                    const u32 number = ROW_TILES * 4 + (m * TILES_OF_ROW + n) * 4 + i;
                    found.sums[m][n][i] *= factor;
                    found.sums[m][n][i] = __fmaf_rn(left_number<IS_FAR>(at + number * 32),
                                                    their_factor, found.sums[m][n][i]);
                }
            }
        }
    }
}

// As if nothing had been seen.
__device__ __forceinline__ void set_none(Found& found) {
    set_zero(found.sums);
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
        found.shifts[m][0] = found.shifts[m][1] = -infinity();
#pragma unroll
        for (u32 i = 0; i < 4; i++) found.totals[m][i] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_forward(const __grid_constant__ Attention call) {
    DYNAMIC_SHARED(shared);
    const Lane lane = lane_of_thread();
    Part part;
    const Task task = task_and_part(call, part);
    const u32 first = (call.tiles - 1 - task.rank) * ROWS;
    const u32 stride_bytes = 3 * channels(call) * ELEMENT_BYTES;
    const u64 queries = head_of_qkv(call, call.qkv, task, 0);
    const u64 keys = head_of_qkv(call, call.qkv, task, 1), values = head_of_qkv(call, call.qkv, task, 2);
    const Shared own = shared_address(shared), halves = own + ROWS * PITCH;
    const u32 begin = part.index * PART_ROWS, all = min(first + ROWS, call.time);
    const u32 end = PART_ROWS == 0 ? all : min(begin + PART_ROWS, all);

    const auto begin_round = [&](u32 key) {
        const Shared half = halves + key / ROUND % 2 * HALF_BYTES;
        const u64 skipped = (u64)key * stride_bytes;
        copy_rows<ROUND>(half, keys + skipped, stride_bytes, end - key);
        copy_rows<ROUND>(half + ROUND * PITCH, values + skipped, stride_bytes, end - key);
        copy_commit();
    };
    copy_rows<ROWS>(own, queries + (u64)first * stride_bytes, stride_bytes, call.time - first);
    begin_round(begin);

    Found found;
    set_none(found);
    Left left(own, lane);
    for (u32 key = begin; key < end; key += ROUND) {
        copy_wait<0>();
        __syncthreads();
        if (key + ROUND < end) begin_round(key + ROUND);
        if (key == begin) left.keep();
        const i32 ahead = (i32)(first + lane.rows) - (i32)(key + lane.group * VISITED);
        // Keys after the last row are seen by none.
        if (ahead + (i32)(ROW_TILES * 16) <= 0) continue;
        const Shared half = halves + key / ROUND % 2 * HALF_BYTES + lane.group * VISITED * PITCH;
        float scores[ROW_TILES][TILES][4];
        make_scores<false>(scores, left, half, lane);
        exponentials(found, scores, call.scale_log2, ahead, lane);
        add_product<TILES, true>(found.sums, scores, half + ROUND * PITCH, lane, found.totals);
    }
    if constexpr (WARP_GROUPS > 1) {
        __syncthreads();
        if (lane.group > 0) leave(left_behind(shared, lane.group, NUMBERS_OF_LANE, lane), found);
        __syncthreads();
        if (lane.group > 0) return;
        for (u32 group = 1; group < WARP_GROUPS; group++) {
            gather<false>(left_behind(shared, group, NUMBERS_OF_LANE, lane), found);
        }
    }
    if (PART_ROWS > 0 && part.count > 1) {
        leave(part_left(call, part, part.index, NUMBERS_OF_LANE, lane), found);
        if (!is_last_part(call, part, lane)) return;
        set_none(found);
        for (u32 index = 0; index < part.count; index++) {
            gather<true>(part_left(call, part, index, NUMBERS_OF_LANE, lane), found);
        }
    }

    float factors[ROW_TILES][2];
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            factors[m][half] = 1.0f / found.totals[m][half * 2];
            const u32 row = first + lane.rows + m * 16 + half * 8 + lane.g;
            if (lane.t == 0 && row < call.time) {
                float* statistics = statistics_of(call, task, row);
                statistics[0] = found.shifts[m][half];
                statistics[1] = factors[m][half];
            }
        }
    }
    const u32 out_stride_bytes = channels(call) * ELEMENT_BYTES;
    const u32 warp_first = first + lane.rows;
    const u64 out = head_of_out(call, call.out, task) + (u64)warp_first * out_stride_bytes;
    const u32 limit = warp_first < call.time ? call.time - warp_first : 0;
    store_sums(out, out_stride_bytes, limit, found.sums, factors, lane);
}
