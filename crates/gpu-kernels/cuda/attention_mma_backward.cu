// Causal attention, backward, on the tensor cores: bf16 or tf32 products with sums in f32. Formula and
// planes: attention.cuh; how rows lie and products are made: attention_mma.cuh. Launched by
// src/attention.rs.
//
// A block owns keys and values and visits the queries that see them (writes d_k and d_v), or owns queries
// and visits the keys that they see (writes d_q). Either way scores have a row for every own row and a
// column for every visited one, and turn into probabilities and their gradients in registers, from where they
// enter the products with visited rows. So probabilities are computed twice, and nothing is added up
// across blocks. The first group of warps adds up what the groups found, in their order.
//
// Grid: two blocks for every tile of rows of every head. Overwrites all of d_qkv. Shared memory: SHARED_BYTES at
// launch: the own rows of two arrays, then two halves of ROUND visited rows of two arrays and of
// two planes; at the end what groups leave behind.
//
// Defines beyond attention_mma.cuh: CHUNK_TILES, tiles of eight visited rows that a warp takes at once.

#define FOLDS_SUM true
#include "attention_mma.cuh"
#include "attention_planes.cuh"

static constexpr u32 CHUNK = CHUNK_TILES * 8;
static constexpr u32 OWN_BYTES = ROWS * PITCH;
static constexpr u32 VISITED_BYTES = ROUND * PITCH;
static constexpr u32 HALF_BYTES = 2 * VISITED_BYTES + 2 * ROUND * 4;
static_assert(VISITED % CHUNK == 0, "whole chunks");
static_assert(SHARED_BYTES >= 2 * OWN_BYTES + 2 * HALF_BYTES, "room for what is visited");
static_assert(SHARED_BYTES >= (WARP_GROUPS - 1) * ROW_WARPS * 2 * SUMS_OF_LANE * 128, "room for what is left behind");

// The two arrays that a block owns rows of or visits.
struct Pair {
    u64 at[2];
    u32 stride_bytes[2];
};

// What belongs to a column of scores, or to a row.
struct Row {
    float shift;
    float o;
};

// A probability, and the gradient of its score short of the factor 1 / sqrt(D).
__device__ __forceinline__ void to_gradient(float& score, float& d_score, float scale_log2,
                                            const Row& row) {
    score = exp2_fast(__fmaf_rn(score, scale_log2, -row.shift));
    d_score = score * (d_score - row.o);
}

// A plane's numbers of visited rows, begun to be copied.
__device__ __forceinline__ void copy_plane(Shared to, const float* from, u32 limit) {
    for (u32 i = threadIdx.x; i < ROUND / 4; i += THREADS) {
        const bool is_there = i * 4 < limit;
        copy_begin(to + i * 16, (u64)(from + (is_there ? i * 4 : 0)), is_there);
    }
}

// Leaves sums behind, or adds those that a later group left.
__device__ __forceinline__ void leave(float* at, const RowSums& sums) {
#pragma unroll
    for (u32 i = 0; i < SUMS_OF_LANE; i++) {
        at[i * 32] = sums[i / (TILES_OF_ROW * 4)][i / 4 % TILES_OF_ROW][i % 4];
    }
}
__device__ __forceinline__ void gather(const float* at, RowSums& sums) {
#pragma unroll
    for (u32 i = 0; i < SUMS_OF_LANE; i++) {
        sums[i / (TILES_OF_ROW * 4)][i / 4 % TILES_OF_ROW][i % 4] += at[i * 32];
    }
}

template <bool OWNS_KEYS>
__device__ __forceinline__ void backward(const Attention& call, u8* shared, Task task) {
    const Lane lane = lane_of_thread();
    const u32 tile = OWNS_KEYS ? task.rank : call.tiles - 1 - task.rank;
    const u32 first = tile * ROWS;
    const u32 begin = OWNS_KEYS ? first : 0;
    const u32 end = OWNS_KEYS ? call.time : min(first + ROWS, call.time);

    const u32 stride_bytes = 3 * channels(call) * ELEMENT_BYTES;
    const Pair of_queries = {{head_of_qkv(call, call.qkv, task, 0), head_of_out(call, call.d_out, task)},
                             {stride_bytes, channels(call) * ELEMENT_BYTES}};
    const Pair of_keys = {{head_of_qkv(call, call.qkv, task, 1), head_of_qkv(call, call.qkv, task, 2)},
                          {stride_bytes, stride_bytes}};
    const Pair own = OWNS_KEYS ? of_keys : of_queries;
    const Pair visited = OWNS_KEYS ? of_queries : of_keys;

    const Shared own_rows = shared_address(shared), halves = own_rows + 2 * OWN_BYTES;
    const auto begin_round = [&](u32 row) {
        const Shared half = halves + (row - begin) / ROUND % 2 * HALF_BYTES;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u64 from = visited.at[i] + (u64)row * visited.stride_bytes[i];
            copy_rows<ROUND>(half + i * VISITED_BYTES, from, visited.stride_bytes[i], end - row);
            if constexpr (OWNS_KEYS) {
                const Shared plane = half + 2 * VISITED_BYTES + i * ROUND * 4;
                copy_plane(plane, plane_of(call, task, i) + row, call.padded_time - row);
            }
        }
        copy_commit();
    };
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u64 from = own.at[i] + (u64)first * own.stride_bytes[i];
        copy_rows<ROWS>(own_rows + i * OWN_BYTES, from, own.stride_bytes[i], call.time - first);
    }
    begin_round(begin);

    // Of queries that are owned: rows g and g + 8 of each tile.
    Row rows[ROW_TILES][2];
    if constexpr (!OWNS_KEYS) {
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 row = first + lane.rows + m * 16 + half * 8 + lane.g;
                rows[m][half] = {plane_of(call, task, 0)[row], plane_of(call, task, 1)[row]};
            }
        }
    }
    RowSums d_first, d_second;
    set_zero(d_first);
    if constexpr (OWNS_KEYS) set_zero(d_second);

    const Shared left = own_rows + lane.rows * PITCH + lane.left;
    for (u32 round = begin; round < end; round += ROUND) {
        copy_wait<0>();
        __syncthreads();
        if (round + ROUND < end) begin_round(round + ROUND);
        const Shared half = halves + (round - begin) / ROUND % 2 * HALF_BYTES;
#pragma unroll 1
        for (u32 chunk = lane.group * VISITED; chunk < (lane.group + 1) * VISITED; chunk += CHUNK) {
            // How far the warp's first row is ahead of the first visited one.
            const i32 ahead = (i32)(first + lane.rows) - (i32)(round + chunk);
            // Nothing here is seen, or a part, or all.
            const bool is_none = OWNS_KEYS ? ahead >= (i32)CHUNK : ahead + (i32)(ROW_TILES * 16) <= 0;
            const bool is_part = OWNS_KEYS ? ahead + (i32)(ROW_TILES * 16 - 1) > 0 : ahead < (i32)CHUNK - 1;
            if (is_none || round + chunk >= end) continue;
            const Shared at = half + chunk * PITCH;
            float scores[ROW_TILES][CHUNK_TILES][4], d_scores[ROW_TILES][CHUNK_TILES][4];
            scores_of(scores, left, at + lane.right);
            scores_of(d_scores, left + OWN_BYTES, at + VISITED_BYTES + lane.right);
            const Shared planes = half + 2 * VISITED_BYTES + (chunk + lane.t * 2) * 4;
#pragma unroll
            for (u32 n = 0; n < CHUNK_TILES; n++) {
                Row columns[2];
                if constexpr (OWNS_KEYS) {
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        const Shared plane = planes + (n * 8 + i) * 4;
                        columns[i].shift = as_float(load_shared(plane));
                        columns[i].o = as_float(load_shared(plane + ROUND * 4));
                    }
                }
#pragma unroll
                for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const Row& row = OWNS_KEYS ? columns[i % 2] : rows[m][i / 2];
                        to_gradient(scores[m][n][i], d_scores[m][n][i], call.scale_log2, row);
                        if (is_part) {
                            const i32 own_row = ahead + (i32)(m * 16 + i / 2 * 8 + lane.g);
                            const i32 column = (i32)(n * 8 + lane.t * 2 + i % 2);
                            const bool is_seen = OWNS_KEYS ? own_row <= column : column <= own_row;
                            if (!is_seen) scores[m][n][i] = d_scores[m][n][i] = 0.0f;
                        }
                    }
                }
            }
            if constexpr (OWNS_KEYS) add_product(d_second, scores, at + VISITED_BYTES, lane);
            add_product(d_first, d_scores, at, lane);
        }
    }
    if constexpr (WARP_GROUPS > 1) {
        constexpr u32 NUMBERS = (OWNS_KEYS ? 2 : 1) * SUMS_OF_LANE;
        __syncthreads();
        if (lane.group > 0) {
            float* at = left_behind(shared, lane.group, NUMBERS, lane);
            leave(at, d_first);
            if constexpr (OWNS_KEYS) leave(at + SUMS_OF_LANE * 32, d_second);
        }
        __syncthreads();
        if (lane.group > 0) return;
        for (u32 group = 1; group < WARP_GROUPS; group++) {
            const float* at = left_behind(shared, group, NUMBERS, lane);
            gather(at, d_first);
            if constexpr (OWNS_KEYS) gather(at + SUMS_OF_LANE * 32, d_second);
        }
    }
    float scales[ROW_TILES][2], ones[ROW_TILES][2];
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
        scales[m][0] = scales[m][1] = call.scale;
        ones[m][0] = ones[m][1] = 1.0f;
    }
    const u32 warp_first = first + lane.rows;
    const u32 limit = warp_first < call.time ? call.time - warp_first : 0;
    const u64 skipped = (u64)warp_first * stride_bytes;
    const u64 to = head_of_qkv(call, call.d_qkv, task, OWNS_KEYS ? 1 : 0) + skipped;
    store_sums(to, stride_bytes, limit, d_first, scales, lane);
    if constexpr (OWNS_KEYS) {
        const u64 to_values = head_of_qkv(call, call.d_qkv, task, 2) + skipped;
        store_sums(to_values, stride_bytes, limit, d_second, ones, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_backward(const __grid_constant__ Attention call) {
    DYNAMIC_SHARED(shared);
    // Keys and queries by turns, so that long tasks of both begin first.
    Task task = task_of_block(call, blockIdx.x, 2 * call.tiles);
    const bool owns_keys = task.rank % 2 == 0;
    task.rank /= 2;
    if (owns_keys) {
        backward<true>(call, shared, task);
    } else {
        backward<false>(call, shared, task);
    }
}
