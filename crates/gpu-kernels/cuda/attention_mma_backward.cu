// Causal attention, backward, on the tensor cores: bf16 or tf32 products with sums in f32. Formula and
// planes: attention.cuh; how rows lie and products are made: attention_mma.cuh. Launched by
// src/attention.rs.
//
// A block owns keys and values and visits the queries that see them (writes d_k and d_v), or owns
// queries and visits the keys that they see (writes d_q). Either way scores have a row for every
// own row and a column for every visited one, and turn into probabilities and their gradients in
// registers, from where they enter the products with visited rows. So probabilities are computed
// twice, and nothing is added up across blocks. The first group of warps adds up what the groups
// found, in their order.
//
// Grid: two blocks for every tile of rows of every head. Overwrites all of d_qkv. Shared memory:
// SHARED_BYTES at launch: the own rows of two arrays, then two halves of ROUND visited rows of two
// arrays and of their pairs; at the end what groups leave behind.
//
// Defines beyond attention_mma.cuh: CHUNK_TILES, tiles of eight visited rows that a warp takes at once.

#define FOLDS_SUM true
#include "attention_mma.cuh"
#include "attention_planes.cuh"

static constexpr u32 CHUNK = CHUNK_TILES * 8;
static constexpr u32 OWN_BYTES = ROWS * PITCH;
static constexpr u32 VISITED_BYTES = ROUND * PITCH;
static constexpr u32 HALF_BYTES = 2 * VISITED_BYTES;
static constexpr u32 PAIRS_BYTES = ROUND * 8;
static_assert(VISITED % CHUNK == 0, "whole chunks");
static_assert(SHARED_BYTES >= 2 * OWN_BYTES + 2 * HALF_BYTES + 2 * PAIRS_BYTES, "room for what is visited");
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

// The pairs of visited queries, begun to be copied.
__device__ __forceinline__ void copy_pairs(Shared to, const float* from, u32 limit) {
#pragma unroll
    for (u32 i = 0; i < ROUND / 2; i += THREADS) {
        const u32 two = threadIdx.x + i;
        if ((ROUND / 2) % THREADS != 0 && two >= ROUND / 2) break;
        copy_begin(to + two * 16, (u64)from + two * 16, two * 2 < limit);
    }
}

// Those of a lane's two columns.
__device__ __forceinline__ void load_columns(Row (&columns)[2], Shared pairs) {
    const uint4 two = load_shared_four(pairs);
    columns[0] = {as_float(two.x), as_float(two.y)};
    columns[1] = {as_float(two.z), as_float(two.w)};
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

// Scores that are not seen have the probability 0. `ahead` is how far the warp's first row is ahead of
// the first visited one.
template <bool OWNS_KEYS>
__device__ __forceinline__ void hide(float (&scores)[ROW_TILES][CHUNK_TILES][4], i32 ahead,
                                     const Lane& lane) {
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 n = 0; n < CHUNK_TILES; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const i32 row = ahead + (i32)(m * 16 + i / 2 * 8 + lane.g);
                const i32 column = (i32)(n * 8 + lane.t * 2 + i % 2);
                if (OWNS_KEYS ? row > column : column > row) scores[m][n][i] = -infinity();
            }
        }
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
        const u32 turn = (row - begin) / ROUND % 2;
        const Shared half = halves + turn * HALF_BYTES;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u64 from = visited.at[i] + (u64)row * visited.stride_bytes[i];
            copy_rows<ROUND>(half + i * VISITED_BYTES, from, visited.stride_bytes[i], end - row);
        }
        if constexpr (OWNS_KEYS) {
            const Shared pairs = halves + 2 * HALF_BYTES + turn * PAIRS_BYTES;
            copy_pairs(pairs, pairs_of(call, task) + row * 2, call.padded_time - row);
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
                const float* pair = pairs_of(call, task) + row * 2;
                rows[m][half] = {pair[0], pair[1]};
            }
        }
    }
    RowSums d_first, d_second;
    set_zero(d_first);
    if constexpr (OWNS_KEYS) set_zero(d_second);

    Left left[2] = {Left(own_rows, lane), Left(own_rows + OWN_BYTES, lane)};
    for (u32 round = begin; round < end; round += ROUND) {
        copy_wait<0>();
        __syncthreads();
        if (round + ROUND < end) begin_round(round + ROUND);
        if (round == begin) {
            left[0].keep();
            left[1].keep();
        }
        const u32 turn = (round - begin) / ROUND % 2;
        const Shared half = halves + turn * HALF_BYTES;
        const Shared pairs_of_half = halves + 2 * HALF_BYTES + turn * PAIRS_BYTES;
#pragma unroll 1
        for (u32 chunk = lane.group * VISITED; chunk < (lane.group + 1) * VISITED; chunk += CHUNK) {
            // How far the warp's first row is ahead of the first visited one.
            const i32 ahead = (i32)(first + lane.rows) - (i32)(round + chunk);
            // Nothing here is seen, or a part, or all.
            const bool is_none = OWNS_KEYS ? ahead >= (i32)CHUNK : ahead + (i32)(ROW_TILES * 16) <= 0;
            const bool is_part = OWNS_KEYS ? ahead + (i32)(ROW_TILES * 16 - 1) > 0 : ahead < (i32)CHUNK - 1;
            if (is_none || round + chunk >= end) continue;
            const Shared at = half + chunk * PITCH;
            const Shared pairs = pairs_of_half + (chunk + lane.t * 2) * 8;
            float scores[ROW_TILES][CHUNK_TILES][4], d_scores[ROW_TILES][CHUNK_TILES][4];
            make_scores<false>(scores, left[0], at, lane);
            // The gradients of probabilities begin at -o, which is to be taken off.
#pragma unroll
            for (u32 n = 0; n < CHUNK_TILES; n++) {
                Row columns[2];
                if constexpr (OWNS_KEYS) load_columns(columns, pairs + n * 64);
#pragma unroll
                for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        d_scores[m][n][i] = -(OWNS_KEYS ? columns[i % 2] : rows[m][i / 2]).o;
                    }
                }
            }
            make_scores<true>(d_scores, left[1], at + VISITED_BYTES, lane);
            if (is_part) hide<OWNS_KEYS>(scores, ahead, lane);
#pragma unroll
            for (u32 n = 0; n < CHUNK_TILES; n++) {
                Row columns[2];
                if constexpr (OWNS_KEYS) load_columns(columns, pairs + n * 64);
#pragma unroll
                for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const float shift = (OWNS_KEYS ? columns[i % 2] : rows[m][i / 2]).shift;
                        float& score = scores[m][n][i];
                        score = exp2_fast(__fmaf_rn(score, call.scale_log2, -shift));
                        d_scores[m][n][i] *= score;
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
