// A tile of a product (tile.cuh) and what is around it: where a thread stands, and rows of activations
// from and to memory. The output has COLUMNS columns, of which a block has 64.
//
// Shared memory: the ring, pairs and a barrier if EXCHANGES, and a place for each warp to turn its rows in.
//
// Defines: COLUMNS, EXCHANGES, SHARED_BYTES, and those of tile.cuh.
#pragma once

#include "pairs.cuh"
#include "tile.cuh"

static constexpr u32 TILES_OF_ROW = COLUMNS / TILE;
static_assert(COLUMNS % TILE == 0, "whole tiles");

// How far apart rows are left in shared memory: such that rows lie in different banks.
static constexpr u32 LEFT_PITCH = TILE * ACTIVATION_BYTES + 16;
static constexpr u32 WARP_LEFT_BYTES = 16 * LEFT_PITCH;
// Pairs that the blocks of a row tell each other, and their barrier.
static constexpr u32 EXCHANGE_BYTES = EXCHANGES ? TILES_OF_ROW * TILE * 8 + 16 : 0;
static_assert(SHARED_BYTES >= 1024 + RING_BYTES + BARRIER_BYTES + EXCHANGE_BYTES + TILE_WARPS * WARP_LEFT_BYTES,
              "room for everything");

// Where a thread stands, and its parts of shared memory.
struct Place {
    Ring ring;
    // A barrier, and [TILES_OF_ROW, 64] pairs: what the blocks found of each row.
    Shared exchange;
    // [16, LEFT_PITCH bytes] of its warp.
    Shared left;
    // Of the four of its group.
    u32 warp;
    u32 group;
    u32 g;
    u32 t;
    // The first of its two rows, 8 apart, and of the pairs of columns, in the block.
    u32 tile_row;
    // The first row and column of the block.
    u32 first_row;
    u32 first_column;
};

__device__ __forceinline__ Place place_of_thread(const u8* shared) {
    Place place;
    place.ring.pieces = (shared_address(shared) + 1023u) & ~1023u;
    place.ring.barriers = place.ring.pieces + RING_BYTES;
    place.exchange = place.ring.barriers + BARRIER_BYTES;
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    place.group = warp / TILE_WARPS;
    place.warp = warp % TILE_WARPS;
    place.left = place.exchange + EXCHANGE_BYTES + place.warp * WARP_LEFT_BYTES;
    place.g = threadIdx.x % 32 / 4;
    place.t = threadIdx.x % 4;
    place.tile_row = place.warp * 16 + place.g;
    place.first_row = blockIdx.x / TILES_OF_ROW * TILE;
    place.first_column = blockIdx.x % TILES_OF_ROW * TILE;
    return place;
}

// Sets the barriers up; all threads.
__device__ __forceinline__ void begin(const Place& place) {
    if (threadIdx.x == 0) {
        if (EXCHANGES) barrier_set(place.exchange, 1);
        set_barriers(place.ring);
    }
    __syncthreads();
}

// The part of the warp that fetches.
__device__ __forceinline__ void fetch_all(const Place& place, const TensorMap& left, const TensorMap& right) {
    if (threadIdx.x % 32 == 0) fetch(place.ring, {left, right, place.first_row, place.first_column});
}

// Writes the warp's 16 rows of the block's columns, `pair(i, half)` being that of columns 8 i + 2 t of row
// g + 8 half, in accesses of 16 bytes.
template <class Pairs>
__device__ __forceinline__ void store_rows(Stored* to, const Place& place, u32 rows, Pairs pair) {
    constexpr u32 PIECES_OF_ROW = TILE * ACTIVATION_BYTES / 16;
    __syncwarp();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            leave_pair(place.left + (place.g + 8 * half) * LEFT_PITCH + (8 * i + 2 * place.t) * ACTIVATION_BYTES,
                       pair(i, half));
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 index = threadIdx.x % 32; index < 16 * PIECES_OF_ROW; index += 32) {
        const u32 row = index / PIECES_OF_ROW, piece = index % PIECES_OF_ROW;
        const u32 at = place.first_row + place.warp * 16 + row;
        if (at < rows) {
            *reinterpret_cast<uint4*>(to + (u64)at * COLUMNS + place.first_column +
                                      piece * (16 / ACTIVATION_BYTES)) =
                load_shared_four(place.left + row * LEFT_PITCH + piece * 16);
        }
    }
}
