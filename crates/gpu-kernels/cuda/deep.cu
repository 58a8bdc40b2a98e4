// Products of tf32 of few outputs and much depth, whose right factor lies across it, as the gradient of the head's input:
// out[i, j] = sum_l a[i, l] b[l, j] with a [rows, depth], b [depth, columns] and out [rows, columns]. Launched by
// src/product/deep.rs. How the right factor is turned: turned.cuh.
//
// `deep` leaves the sums of SPLITS parts of the depth, and `deep_sum` adds those up in their order.
//
// deep:      grid: for every part of the depth a block of WIDE_THREADS for every LEFT_TILE x RIGHT_TILE of the outputs,
//            those of the same rows side by side. Overwrites partials [SPLITS, rows, columns]. Shared memory: turned.cuh.
// deep_sum:  grid: a thread of SUM_THREADS a block for every four outputs. Overwrites out.
//
// Defines: SPLITS, SUM_THREADS, and those of turned.cuh; FOUR_WARPS, for the device.

#include "turned.cuh"

struct Deep {
    TensorMap a;
    TensorMap b;
    float* partials;
    float* out;
    u32 rows;
    u32 columns;
    u32 depth;
    // Elements from a row of out to the next.
    u32 out_row;
};

// The pieces of a block's part of the depth, one after the other.
struct Walk {
    const Deep& deep;
    u32 row;
    u32 column;
    u32 piece;
    u32 end;

    __device__ __forceinline__ Walk(const Deep& deep) : deep(deep) {
        const u32 column_tiles = (deep.columns + RIGHT_TILE - 1) / RIGHT_TILE;
        const u32 tiles = (deep.rows + LEFT_TILE - 1) / LEFT_TILE * column_tiles, tile = blockIdx.x % tiles;
        const u32 pieces = (deep.depth + PIECE_DEPTH - 1) / PIECE_DEPTH;
        row = tile / column_tiles * LEFT_TILE;
        column = tile % column_tiles * RIGHT_TILE;
        piece = split_of(tiles) * pieces / SPLITS;
        end = (split_of(tiles) + 1) * pieces / SPLITS;
    }
    __device__ __forceinline__ u32 split_of(u32 tiles) const { return blockIdx.x / tiles; }
    __device__ __forceinline__ bool is_left() const { return piece < end; }
    __device__ __forceinline__ void advance() { piece++; }
    __device__ __forceinline__ void fetch_left(const Rings& rings, u32 stage) const {
        const Shared there = rings.left_there(stage);
        barrier_expect(there, LEFT_BYTES);
#pragma unroll
        for (u32 i = 0; i < GROUPS; i++) {
            piece_begin(rings.left(stage) + i * 64 * 128, deep.a, piece * PIECE_DEPTH, row + i * 64, 0, there);
        }
    }
    __device__ __forceinline__ void fetch_right(const Rings& rings, u32 stage) const {
        const Shared there = rings.raw_there(stage);
        barrier_expect(there, RIGHT_BYTES);
#pragma unroll
        for (u32 i = 0; i < RIGHT_PANELS; i++) {
            piece_begin(rings.raw(stage) + i * PANEL_OF_PIECE, deep.b, column + i * 32, piece * PIECE_DEPTH, 0, there);
        }
    }
};

// The products of a group, which has 64 of the block's rows.
__device__ __forceinline__ void compute(Sums& sums, const Rings& rings, u32 pieces) {
    const u32 group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
    Turn<STAGES> turn;
    u32 before = 0;
    set_zero(sums);
#pragma unroll 1
    for (u32 piece = 0; piece < pieces; piece++) {
        const Shared left = rings.left(turn.stage) + group * 64 * 128, right = rings.turned(turn.stage);
        barrier_wait(rings.left_there(turn.stage), turn.parity);
        barrier_wait(rings.turned_there(turn.stage), turn.parity);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < STEPS_OF_PIECE; step++) group_add_tf32(sums, left, right, step);
        group_commit();
        group_wait_but<1>();
        // The piece before is done with.
        if (piece > 0 && threadIdx.x % 32 == 0) barrier_arrive(rings.done(before));
        before = turn.stage;
        turn.advance();
    }
    group_wait_but<0>();
    pin(sums);
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) deep(const __grid_constant__ Deep deep) {
    DYNAMIC_SHARED(shared);
    // From a multiple of 1024 on, since there is no other shared memory.
    const Rings rings{shared_address(shared)};
    if (threadIdx.x == COMPUTE_THREADS) set_barriers(rings);
    __syncthreads();
    const Walk walk(deep);
    if (__shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0) == GROUPS) return turn_all<false>(rings, walk);
    Sums sums;
    compute(sums, rings, walk.end - walk.piece);
    const u32 tiles = (deep.rows + LEFT_TILE - 1) / LEFT_TILE * ((deep.columns + RIGHT_TILE - 1) / RIGHT_TILE);
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float* const partials = deep.partials + (u64)walk.split_of(tiles) * deep.rows * deep.columns;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = walk.row + threadIdx.x / 32 * 16 + g + 8 * half;
        if (row >= deep.rows) continue;
        float* const to = partials + (u64)row * deep.columns + walk.column + 2 * t;
#pragma unroll
        for (u32 i = 0; i < COLUMN_STEPS; i++) {
            if (walk.column + 8 * i >= deep.columns) break;
            *reinterpret_cast<float2*>(to + 8 * i) = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS) deep_sum(const __grid_constant__ Deep deep) {
    const u32 fours = deep.columns / 4, index = blockIdx.x * SUM_THREADS + threadIdx.x;
    if (index >= deep.rows * fours) return;
    const float4* const from = reinterpret_cast<const float4*>(deep.partials) + index;
    float4 parts[SPLITS];
#pragma unroll
    for (u32 split = 0; split < SPLITS; split++) parts[split] = from[(u64)split * deep.rows * fours];
    float4 sum = parts[0];
#pragma unroll
    for (u32 split = 1; split < SPLITS; split++) {
        const float4 part = parts[split];
        sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    *reinterpret_cast<float4*>(deep.out + (u64)(index / fours) * deep.out_row + index % fours * 4) = sum;
}
