// A product whose output is cut into tiles of 64 x 64, one for a block, on devices of compute capability
// 9.0: `tile = left right` over a depth of DEPTH, left [rows, DEPTH] and right [DEPTH, columns], or with
// its transpose [columns, DEPTH] in memory.
//
// One warp fetches, TILE_GROUPS times four compute. Pieces of both operands, 64 x 64 of bf16 or 64 x 32 of
// f32, rows of 128 bytes, come by the copy engine into a ring of STAGES places; a barrier of each place
// tells when both are there, another one when the piece before them is done with. The groups take turns
// with the pieces, so that one waits for its products while the other begins some, and the second's sums
// are added to the first's in the end. Sums: fragments of mma.cuh, a warp having 16 of the 64 rows. A group
// adds up in ascending depth.
//
// Shared memory: RING_BYTES from a multiple of 1024 on, then BARRIER_BYTES.
//
// Defines: DEPTH, STAGES, TILE_GROUPS (1 or 2), RIGHT_TRANSPOSED (1 for [columns, DEPTH]), ACTIVATION_BYTES.
#pragma once

#include "tile_steps.cuh"

static constexpr u32 PIECES = DEPTH / PIECE_DEPTH;
static constexpr u32 RING_BYTES = STAGES * 2 * PIECE_BYTES;
static constexpr u32 BARRIER_BYTES = STAGES * 16;
static constexpr u32 TILE_THREADS = (TILE_GROUPS * TILE_WARPS + 1) * 32;
static_assert(DEPTH % PIECE_DEPTH == 0, "whole pieces");

// The ring.
struct Ring {
    Shared pieces;
    Shared barriers;

    __device__ __forceinline__ Shared left(u32 stage) const { return pieces + stage * 2 * PIECE_BYTES; }
    __device__ __forceinline__ Shared right(u32 stage) const { return left(stage) + PIECE_BYTES; }
    __device__ __forceinline__ Shared there(u32 stage) const { return barriers + stage * 16; }
    __device__ __forceinline__ Shared done(u32 stage) const { return barriers + stage * 16 + 8; }
};

// By one thread, before all others may know of it.
__device__ __forceinline__ void set_barriers(const Ring& ring) {
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage++) {
        barrier_set(ring.there(stage), 1);
        barrier_set(ring.done(stage), TILE_WARPS);
    }
    barriers_publish();
}

struct Operands {
    const TensorMap& left;
    const TensorMap& right;
    u32 row;
    u32 column;
};

// Fetches all pieces, by one thread.
__device__ __forceinline__ void fetch(const Ring& ring, const Operands& operands) {
#pragma unroll 1
    for (u32 piece = 0; piece < PIECES; piece++) {
        const u32 stage = piece % STAGES, depth = piece * PIECE_DEPTH;
        const Shared there = ring.there(stage);
        if (piece >= STAGES) barrier_wait(ring.done(stage), (piece / STAGES - 1) & 1);
        barrier_expect(there, 2 * PIECE_BYTES);
        piece_begin(ring.left(stage), operands.left, depth, operands.row, there);
        if (RIGHT_TRANSPOSED) {
            piece_begin(ring.right(stage), operands.right, depth, operands.column, there);
        } else {
            piece_begin(ring.right(stage), operands.right, operands.column, depth, there);
        }
    }
}

// The part of a group of four warps of the product: every TILE_GROUPS-th piece.
__device__ __forceinline__ void compute_part(float (&sums)[8][4], const Ring& ring, u32 group) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    pin(sums);
#pragma unroll 1
    for (u32 piece = group; piece < PIECES; piece += TILE_GROUPS) {
        const u32 stage = piece % STAGES;
        barrier_wait(ring.there(stage), (piece / STAGES) & 1);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            tile_step(sums, ring.left(stage), ring.right(stage), step, piece / TILE_GROUPS + step);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 1;" ::: "memory");
        // The piece before is done with.
        if (piece >= TILE_GROUPS && piece - TILE_GROUPS + STAGES < PIECES && threadIdx.x % 32 == 0) {
            barrier_arrive(ring.done((piece - TILE_GROUPS) % STAGES));
        }
    }
    group_wait();
    pin(sums);
}

// The product, by all groups; the first has the sums in the end, and goes on.
__device__ __forceinline__ bool compute(float (&sums)[8][4], const Ring& ring, u32 group) {
    compute_part(sums, ring, group);
    if constexpr (TILE_GROUPS == 2) {
        // The place of the second group's last piece, which nothing comes to any more.
        constexpr u32 LAST = PIECES - 1 - (PIECES % 2);
        const Shared at = ring.left(LAST % STAGES) + threadIdx.x % 128 * 4;
        if (group == 1) {
            named_barrier(2, 128);
#pragma unroll
            for (u32 i = 0; i < 32; i++) {
                asm volatile("st.shared.f32 [%0], %1;" : : "r"(at + i * 512), "f"(sums[i / 4][i % 4]) : "memory");
            }
        }
        named_barrier(3, 256);
        if (group == 1) return false;
#pragma unroll
        for (u32 i = 0; i < 32; i++) sums[i / 4][i % 4] += as_float(load_shared(at + i * 512));
    }
    return true;
}
