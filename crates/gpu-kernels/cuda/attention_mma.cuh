// What both passes of attention on the tensor cores share: how rows lie in shared memory, how they
// come there, and the two kinds of products.
//
// A block owns ROWS rows of a head (queries, or keys) and visits others in rounds of ROUND. Its
// warps are ROW_WARPS x WARP_GROUPS: a warp has 16 ROW_TILES of the rows, and of each round the
// VISITED rows of its group. What the groups found is put together in their order at the end. While
// a round is worked on, the next one is on its way into the other half of shared memory.
//
// A row in shared memory is an odd number of pieces of 16 bytes, so that the same piece of eight rows
// in a row lies in different banks. Channels are padded with zeros to whole steps of a product.
//
// A product of depth D takes both operands as they lie, 32 bytes a step: 16 bf16 or 8 tf32. A
// product whose depth runs over visited rows takes scores from registers, whose fragments as sums
// are fragments of a left operand: for bf16 after packing, for tf32 if depth 2t counts as t and 2t
// + 1 as t + 4.
//
// Defines beyond attention.cuh: ROW_WARPS, ROW_TILES, WARP_GROUPS, VISITED, SHARED_BYTES
// and LEFT_KEPT_MAX.
#pragma once

#include "attention.cuh"

static constexpr u32 ROWS = ROW_WARPS * ROW_TILES * 16;
static constexpr u32 ROUND = WARP_GROUPS * VISITED;
static_assert(THREADS == ROW_WARPS * WARP_GROUPS * 32, "a warp for every group of every 16 ROW_TILES rows");

// Bytes of a row that are there, and with what steps of 32 bytes add; pieces of 16 bytes.
static constexpr u32 ROW_BYTES = HEAD_SIZE * ELEMENT_BYTES;
static constexpr u32 STEPS = (ROW_BYTES + 31) / 32;
static constexpr u32 PIECES = 2 * STEPS;
static constexpr u32 PITCH = (PIECES | 1) * 16;
static_assert(ROW_BYTES % 16 == 0, "rows are whole pieces");

// Columns of sums, eight channels each.
static constexpr u32 TILES_OF_ROW = STEPS * 32 / ELEMENT_BYTES / 8;
// Tiles of eight scores that a product with visited rows takes at once.
static constexpr u32 DEPTH_TILES = ELEMENT_BYTES == 2 ? 2 : 1;

// Where a lane of a warp stands.
struct Lane {
    u32 lane;
    // Row and pair of columns of a fragment.
    u32 g;
    u32 t;
    // The first of the warp's rows, counted from the block's; its group.
    u32 rows;
    u32 group;
    // What a lane adds to an address for a load of four matrices: the left operand, which is also how
    // a transposed right operand lies, and the right operand.
    u32 left;
    u32 right;
};

__device__ __forceinline__ Lane lane_of_thread() {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 matrix = lane / 8, row = lane % 8;
    Lane result;
    result.lane = lane;
    result.g = lane / 4;
    result.t = lane % 4;
    result.rows = warp % ROW_WARPS * ROW_TILES * 16;
    // So that the compiler knows it to be the same for the whole warp.
    result.group = __shfl_sync(0xFFFFFFFFu, warp, 0) / ROW_WARPS;
    result.left = (matrix % 2 * 8 + row) * PITCH + matrix / 2 * 16;
    result.right = (matrix / 2 * 8 + row) * PITCH + matrix % 2 * 16;
    return result;
}

// Begins to copy COUNT rows, of which those from `limit` on become zeros and are not read, into shared
// memory.
template <u32 COUNT>
__device__ __forceinline__ void copy_rows(Shared to, u64 from, u32 stride_bytes, u32 limit) {
    constexpr u32 ALL = COUNT * PIECES;
    const u32 row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    if constexpr (THREADS % PIECES == 0 && ROW_BYTES % 32 == 0) {
        // A thread has the same piece of every so many rows.
        constexpr u32 ROWS_AT_ONCE = THREADS / PIECES;
        const u64 first = from + (u64)row * stride_bytes + piece * 16;
        const Shared first_to = to + row * PITCH + piece * 16;
#pragma unroll
        for (u32 i = 0; i < COUNT; i += ROWS_AT_ONCE) {
            if (COUNT % ROWS_AT_ONCE != 0 && row + i >= COUNT) break;
            copy_begin(first_to + i * PITCH, first + (u64)i * stride_bytes, row + i < limit);
        }
    } else {
#pragma unroll
            for (u32 i = 0; i < ALL; i += THREADS) {
                const u32 index = threadIdx.x + i;
                if (ALL % THREADS != 0 && index >= ALL) break;
                const u32 row = index / PIECES, piece = index % PIECES;
                const bool is_there = row < limit && piece * 16 < ROW_BYTES;
                copy_begin(to + row * PITCH + piece * 16, from + (u64)row * stride_bytes + piece * 16, is_there);
            }
    }
}

// sum += left right, of one step's depth.
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&left)[4], u32 b0, u32 b1) {
    if constexpr (ELEMENT_BYTES == 2) {
        mma_bf16(sum, left, b0, b1);
    } else {
            mma_tf32(sum, left, b0, b1);
    }
}

// The left operand of all steps, 16 ROW_TILES own rows: fragments in registers if they are few, else in
// shared memory.
struct Left {
    static constexpr bool IS_KEPT = ROW_TILES * STEPS <= LEFT_KEPT_MAX;
    u32 words[IS_KEPT ? STEPS : 1][ROW_TILES][4];
    // The lane's part of the address of the warp's rows.
    Shared rows;

    __device__ __forceinline__ Left(Shared own, const Lane& lane) : rows(own + lane.rows * PITCH + lane.left) {}

    __device__ __forceinline__ void load(u32 step, u32 (&fragments)[ROW_TILES][4]) const {
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) {
            load_matrices(fragments[m], rows + m * 16 * PITCH + step * 32);
        }
    }
    // Once the rows are there.
    __device__ __forceinline__ void keep() {
        if constexpr (IS_KEPT) {
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) load(step, words[step]);
        }
    }
    __device__ __forceinline__ void get(u32 step, u32 (&fragments)[ROW_TILES][4]) const {
        if constexpr (IS_KEPT) {
#pragma unroll
            for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) fragments[m][i] = words[step][m][i];
            }
        } else {
            load(step, fragments);
        }
    }
};

template <u32 TILES>
__device__ __forceinline__ void set_zero(float (&tiles)[ROW_TILES][TILES][4]) {
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) tiles[m][n][i] = 0.0f;
        }
    }
}

// Sets TILES tiles of scores to a warp's rows times rows from `visited` on, or adds that.
template <bool ADDS, u32 TILES>
__device__ __forceinline__ void make_scores(float (&scores)[ROW_TILES][TILES][4], const Left& own,
                                           Shared visited, const Lane& lane) {
    if constexpr (!ADDS) set_zero(scores);
    visited += lane.right;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 left[ROW_TILES][4];
        own.get(step, left);
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2) {
            u32 right[4];
            load_matrices(right, visited + n * 8 * PITCH + step * 32);
#pragma unroll
            for (u32 m = 0; m < ROW_TILES; m++) {
                multiply(scores[m][n], left[m], right[0], right[1]);
                multiply(scores[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// The left operand of a step from its tiles of scores.
__device__ __forceinline__ void pack_left(u32 (&left)[4], const float (*tiles)[4]) {
    if constexpr (ELEMENT_BYTES == 2) {
        left[0] = pack_bf16(tiles[0][0], tiles[0][1]);
        left[1] = pack_bf16(tiles[0][2], tiles[0][3]);
        left[2] = pack_bf16(tiles[1][0], tiles[1][1]);
        left[3] = pack_bf16(tiles[1][2], tiles[1][3]);
    } else {
            left[0] = round_tf32(tiles[0][0]);
            left[1] = round_tf32(tiles[0][2]);
            left[2] = round_tf32(tiles[0][1]);
            left[3] = round_tf32(tiles[0][3]);
    }
}

// Adds scores times visited rows to sums, and the scores of each row to totals, as the product with
// a column of ones; `visited` is the address of the first row.
template <u32 TILES, bool HAS_TOTALS = false>
__device__ __forceinline__ void add_product(float (&sums)[ROW_TILES][TILES_OF_ROW][4],
                                            const float (&scores)[ROW_TILES][TILES][4], Shared visited,
                                            const Lane& lane, float (*totals)[4] = nullptr) {
    constexpr u32 ONES = ELEMENT_BYTES == 2 ? 0x3F803F80u : 0x3F800000u;
    u32 left[TILES / DEPTH_TILES][ROW_TILES][4];
#pragma unroll
    for (u32 k = 0; k < TILES / DEPTH_TILES; k++) {
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) {
            pack_left(left[k][m], &scores[m][k * DEPTH_TILES]);
        }
    }
    if constexpr (HAS_TOTALS) {
#pragma unroll
        for (u32 k = 0; k < TILES / DEPTH_TILES; k++) {
#pragma unroll
            for (u32 m = 0; m < ROW_TILES; m++) multiply(totals[m], left[k][m], ONES, ONES);
        }
    }
#pragma unroll
    for (u32 k = 0; k < TILES / DEPTH_TILES; k++) {
        const Shared rows = visited + k * DEPTH_TILES * 8 * PITCH;
        if constexpr (ELEMENT_BYTES == 2) {
#pragma unroll
            for (u32 n = 0; n < TILES_OF_ROW; n += 2) {
                u32 right[4];
                load_matrices_transposed(right, rows + lane.left + n * 16);
#pragma unroll
                for (u32 m = 0; m < ROW_TILES; m++) {
                    multiply(sums[m][n], left[k][m], right[0], right[1]);
                    multiply(sums[m][n + 1], left[k][m], right[2], right[3]);
                }
            }
        } else {
#pragma unroll
            for (u32 n = 0; n < TILES_OF_ROW; n++) {
                const Shared at = rows + 2 * lane.t * PITCH + (n * 8 + lane.g) * 4;
                const u32 b0 = load_shared(at), b1 = load_shared(at + PITCH);
#pragma unroll
                for (u32 m = 0; m < ROW_TILES; m++) multiply(sums[m][n], left[k][m], b0, b1);
            }
        }
    }
}

typedef float RowSums[ROW_TILES][TILES_OF_ROW][4];

// Floats that a group leaves of its sums for the others, each lane's side by side.
static constexpr u32 SUMS_OF_LANE = ROW_TILES * TILES_OF_ROW * 4;

// Where a lane leaves its first number: place number `place` of the warps of later groups.
__device__ __forceinline__ float* left_behind(u8* shared, u32 group, u32 numbers, const Lane& lane) {
    const u32 place = (group - 1) * ROW_WARPS + lane.rows / (ROW_TILES * 16);
    return reinterpret_cast<float*>(shared) + place * numbers * 32 + lane.lane;
}

// Writes a warp's sums times a factor for each row, to rows below `limit`; `to` is the address of the
// warp's first row.
__device__ __forceinline__ void store_sums(u64 to, u32 stride_bytes, u32 limit, const RowSums& sums,
                                           const float (&factors)[ROW_TILES][2], const Lane& lane) {
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = m * 16 + half * 8 + lane.g;
            if (row >= limit) continue;
            const u64 address = to + (u64)row * stride_bytes + lane.t * 2 * ELEMENT_BYTES;
            const float factor = factors[m][half];
#pragma unroll
            for (u32 n = 0; n < TILES_OF_ROW; n++) {
                if (n * 8 * ELEMENT_BYTES >= ROW_BYTES) break;
                // The last tile may reach beyond the head.
                if (HEAD_SIZE % 8 != 0 && n * 8 + lane.t * 2 >= HEAD_SIZE) break;
                const float low = sums[m][n][half * 2] * factor;
                const float high = sums[m][n][half * 2 + 1] * factor;
                if constexpr (ELEMENT_BYTES == 2) {
                    store(address + n * 16, pack_bf16(low, high));
                } else {
                    store(address + n * 32, make_uint2(as_bits(low), as_bits(high)));
                }
            }
        }
    }
}
