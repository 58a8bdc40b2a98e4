// Products of tf32 whose factors both lie across their depth, as gradients of weights do: out[i, j] = sum_l a[l, i] b[l, j]
// with a [depth, M], b [depth, N] and out [M, N], or out += that; several of one shape at once. Launched by
// src/product/across.rs.
//
// A block has BLOCK_ROWS x BLOCK_COLUMNS of an output. One thread fetches pieces of both factors, 32 of depth by 32 rows
// or columns, by the copy engine into a ring; eight warps compute: each has 16 ROW_TILES x 8 COLUMN_TILES of the block's
// outputs and one of DEPTH_WARPS shares of every piece's depth. What the shares found is put together in their order.
//
// A row of 128 bytes lies as wgmma.cuh describes. A step of a product takes eight of depth: 2t + e and 2t + e + 8 for
// t < 4, e being 0 or 1. So lanes find their numbers in different banks, those of the second four 1024 bytes behind
// those of the first; both factors have the same order, so it does not matter to the sum.
//
// Grid: a block for every tile of every output. Shared memory: SHARED_BYTES, from a multiple of 1024 on: the ring, and
// at the end what shares leave; barriers. Threads: those of the eight warps, and a group of four that fetches and gives
// its registers to them.
//
// Defines: REGISTERS (of a computing thread), ROW_TILES, COLUMN_TILES, ROW_WARPS, COLUMN_WARPS, DEPTH_WARPS, STAGES,
// SHARED_BYTES; FOUR_WARPS, for the device.

#include "engine.cuh"

static constexpr u32 PIECE = 32;
static constexpr u32 PIECE_BYTES = PIECE * 128;
static constexpr u32 WARPS = ROW_WARPS * COLUMN_WARPS * DEPTH_WARPS;
static constexpr u32 BLOCK_ROWS = 16 * ROW_TILES * ROW_WARPS;
static constexpr u32 BLOCK_COLUMNS = 8 * COLUMN_TILES * COLUMN_WARPS;
// The last piece of a block may reach into the next one's.
static constexpr u32 A_PIECES = (BLOCK_ROWS + PIECE - 1) / PIECE;
static constexpr u32 B_PIECES = (BLOCK_COLUMNS + PIECE - 1) / PIECE;
static constexpr u32 STAGE_BYTES = (A_PIECES + B_PIECES) * PIECE_BYTES;
static constexpr u32 SUMS = ROW_TILES * COLUMN_TILES * 4;
static_assert(WARPS == 8, "two for each part of a multiprocessor");
static_assert(SHARED_BYTES >= STAGES * STAGE_BYTES + STAGES * 16, "room for the ring");
static_assert(STAGES * STAGE_BYTES >= (DEPTH_WARPS - 1) * ROW_WARPS * COLUMN_WARPS * SUMS * 128, "room for what is left");

struct Across {
    TensorMap a;
    TensorMap b;
    float* out;
    // Elements from an output to the next, and from a row to the next.
    u64 out_step;
    u32 out_row;
    u32 rows;
    u32 columns;
    u32 depth;
    u32 adds;
};

// A block's tile.
struct Tile {
    u32 row;
    u32 column;
    u32 product;
};

__device__ __forceinline__ Tile tile_of_block(const Across& across) {
    const u32 row_tiles = (across.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const u32 column_tiles = (across.columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    const u32 in_product = blockIdx.x % (row_tiles * column_tiles);
    return {in_product % row_tiles * BLOCK_ROWS, in_product / row_tiles * BLOCK_COLUMNS,
            blockIdx.x / (row_tiles * column_tiles)};
}

struct Ring {
    Shared pieces;
    Shared barriers;

    __device__ __forceinline__ Shared piece(u32 stage, u32 piece) const {
        return pieces + stage * STAGE_BYTES + piece * PIECE_BYTES;
    }
    __device__ __forceinline__ Shared there(u32 stage) const { return barriers + stage * 16; }
    __device__ __forceinline__ Shared done(u32 stage) const { return barriers + stage * 16 + 8; }
};

// All pieces, by one thread.
__device__ __forceinline__ void fetch(const Across& across, const Ring& ring, const Tile& tile, u32 turns) {
#pragma unroll 1
    for (u32 turn = 0; turn < turns; turn++) {
        const u32 stage = turn % STAGES, depth = turn * PIECE;
        const Shared there = ring.there(stage);
        if (turn >= STAGES) barrier_wait(ring.done(stage), (turn / STAGES - 1) & 1);
        barrier_expect(there, STAGE_BYTES);
#pragma unroll
        for (u32 i = 0; i < A_PIECES; i++) {
            piece_begin(ring.piece(stage, i), across.a, tile.row + i * PIECE, depth, tile.product, there);
        }
#pragma unroll
        for (u32 i = 0; i < B_PIECES; i++) {
            piece_begin(ring.piece(stage, A_PIECES + i), across.b, tile.column + i * PIECE, depth, tile.product, there);
        }
    }
}

// Where a lane finds its numbers of a factor: of four tiles of eight rows or columns; the next four tiles' are a piece
// further, those of the second half of a step 1024 bytes, and those of the second half of a piece 2048.
struct Places {
    Shared at[4];

    __device__ __forceinline__ Places(u32 first_tile, u32 e) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, depth = lane % 4 * 2 + e;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 tile = first_tile + i;
            at[i] = tile / 4 * PIECE_BYTES + depth * 128 + ((tile % 4 * 2 + g / 4) ^ depth) * 16 + g % 4 * 4;
        }
    }
    __device__ __forceinline__ u32 get(Shared from, u32 tile, u32 half, u32 second) const {
        return load_shared(from + at[tile % 4] + tile / 4 * PIECE_BYTES + half * 2048 + second * 1024);
    }
};

typedef float Sums[ROW_TILES][COLUMN_TILES][4];

// sums += a step's depth, of a half of a piece.
__device__ __forceinline__ void add_step(Sums& sums, const Places& a, const Places& b, Shared a_from, Shared b_from,
                                         u32 half) {
    u32 left[ROW_TILES][4];
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) left[m][i] = a.get(a_from, 2 * m + i % 2, half, i / 2);
    }
#pragma unroll
    for (u32 n = 0; n < COLUMN_TILES; n++) {
        const u32 first = b.get(b_from, n, half, 0), second = b.get(b_from, n, half, 1);
#pragma unroll
        for (u32 m = 0; m < ROW_TILES; m++) mma_tf32(sums[m][n], left[m], first, second);
    }
}

struct Member {
    u32 row_warp;
    u32 column_warp;
    u32 share;
};

// A warp's share of all pieces.
__device__ __forceinline__ void compute(Sums& sums, const Ring& ring, const Member& member, u32 turns) {
    const u32 e = DEPTH_WARPS > 1 ? member.share % 2 : 0;
    const Places a(member.row_warp * 2 * ROW_TILES, e), b(member.column_warp * COLUMN_TILES, e);
#pragma unroll 1
    for (u32 turn = 0; turn < turns; turn++) {
        const u32 stage = turn % STAGES;
        barrier_wait(ring.there(stage), turn / STAGES & 1);
        const Shared a_from = ring.piece(stage, 0), b_from = ring.piece(stage, A_PIECES);
        if (DEPTH_WARPS < 4 || member.share < 2) add_step(sums, a, b, a_from, b_from, 0);
        if (DEPTH_WARPS < 4 || member.share >= 2) add_step(sums, a, b, a_from, b_from, 1);
        if constexpr (DEPTH_WARPS == 1) {
            const Places other_a(member.row_warp * 2 * ROW_TILES, 1), other_b(member.column_warp * COLUMN_TILES, 1);
#pragma unroll
            for (u32 half = 0; half < 2; half++) add_step(sums, other_a, other_b, a_from, b_from, half);
        }
        // What was loaded of the piece before has been multiplied: it is done with.
        if (turn > 0 && threadIdx.x % 32 == 0) barrier_arrive(ring.done((turn - 1) % STAGES));
    }
}

__device__ __forceinline__ void store_tile(const Across& across, const Tile& tile, const Sums& sums,
                                           const Member& member) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float* out = across.out + tile.product * across.out_step;
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = tile.row + (member.row_warp * ROW_TILES + m) * 16 + half * 8 + g;
            if (row >= across.rows) continue;
#pragma unroll
            for (u32 n = 0; n < COLUMN_TILES; n++) {
                const u32 column = tile.column + (member.column_warp * COLUMN_TILES + n) * 8 + t * 2;
                if (column >= across.columns) continue;
                float2* to = reinterpret_cast<float2*>(out + (u64)row * across.out_row + column);
                float2 two = make_float2(sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
                if (across.adds) {
                    const float2 before = *to;
                    two = make_float2(before.x + two.x, before.y + two.y);
                }
                *to = two;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32 + 128, 1) across(const __grid_constant__ Across across) {
    DYNAMIC_SHARED(shared);
    // From a multiple of 1024 on, since there is no other shared memory.
    const Ring ring = {shared_address(shared), shared_address(shared) + STAGES * STAGE_BYTES};
    if (threadIdx.x < STAGES) {
        barrier_set(ring.there(threadIdx.x), 1);
        barrier_set(ring.done(threadIdx.x), WARPS);
    }
    if (threadIdx.x < 32) barriers_publish();
    __syncthreads();
    const Tile tile = tile_of_block(across);
    const u32 turns = (across.depth + PIECE - 1) / PIECE, warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    if (warp >= WARPS) {
        registers_give();
        if (threadIdx.x == WARPS * 32) fetch(across, ring, tile, turns);
        return;
    }
    registers_take<REGISTERS>();
    const u32 place = warp % (ROW_WARPS * COLUMN_WARPS);
    const Member member = {place % ROW_WARPS, place / ROW_WARPS, warp / (ROW_WARPS * COLUMN_WARPS)};
    Sums sums;
#pragma unroll
    for (u32 i = 0; i < SUMS; i++) sums[i / 4 / COLUMN_TILES][i / 4 % COLUMN_TILES][i % 4] = 0.0f;
    compute(sums, ring, member, turns);
    if constexpr (DEPTH_WARPS > 1) {
        float* left = reinterpret_cast<float*>(shared) + threadIdx.x % 32;
        const auto at = [&](u32 share, u32 i) {
            return left + (((share - 1) * ROW_WARPS * COLUMN_WARPS + place) * SUMS + i) * 32;
        };
        // Nobody reads pieces any more.
        named_barrier(1, WARPS * 32);
        if (member.share > 0) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) *at(member.share, i) = sums[i / 4 / COLUMN_TILES][i / 4 % COLUMN_TILES][i % 4];
        }
        named_barrier(1, WARPS * 32);
        if (member.share > 0) return;
#pragma unroll
        for (u32 share = 1; share < DEPTH_WARPS; share++) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) sums[i / 4 / COLUMN_TILES][i / 4 % COLUMN_TILES][i % 4] += *at(share, i);
        }
    }
    store_tile(across, tile, sums, member);
}
