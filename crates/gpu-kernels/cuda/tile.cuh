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
// f32 is multiplied as tf32, and the instruction takes right operands along their depth only. So a right factor of f32 that is
// not transposed, whose piece is two of 32 x 32 side by side, is read across its rows into registers, as a left operand: the
// transpose of the tile is computed, and turned in the end by way of the ring.
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
        } else if (RIGHT_ACROSS) {
            piece_begin(ring.right(stage), operands.right, operands.column, depth, there);
            piece_begin(ring.right(stage) + PIECE_BYTES / 2, operands.right, operands.column + 32, depth, there);
        } else {
            piece_begin(ring.right(stage), operands.right, operands.column, depth, there);
        }
    }
}

// Ends the products of a piece, of which those of the group's piece before are done with then.
__device__ __forceinline__ void end_piece(const Ring& ring, u32 piece) {
    group_commit();
    group_wait_but<1>();
    if (piece >= TILE_GROUPS && piece - TILE_GROUPS + STAGES < PIECES && threadIdx.x % 32 == 0) {
        barrier_arrive(ring.done((piece - TILE_GROUPS) % STAGES));
    }
}

#if ACTIVATION_BYTES == 4 && !RIGHT_TRANSPOSED

// Where a lane finds its numbers of a right piece, in different banks of those of others: two of the columns that its
// warp has, and the first and the second half of a step's depth.
struct Across {
    u32 at[4];

    __device__ __forceinline__ Across() {
        const u32 warp = threadIdx.x / 32 % TILE_WARPS, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 depth = t + i / 2 * 4, chunk = warp % 2 * 2 + i % 2 + g / 4 * 4;
            at[i] = warp / 2 * (PIECE_BYTES / 2) + depth * 128 + (chunk ^ depth) * 16 + g % 4 * 4;
        }
    }
};

// The column in the tile of the first of a lane's sums, those of its other row being 4 further.
__device__ __forceinline__ u32 across_column() {
    const u32 warp = threadIdx.x / 32 % TILE_WARPS, g = threadIdx.x % 32 / 4;
    return warp / 2 * 32 + warp % 2 * 8 + g / 4 * 16 + g % 4;
}

// Reads a piece while the products of the piece before are made, and begins its own. What is read goes into `seen` too: the
// assembler of CUDA 13.0 makes one product after the other unless something else reads their registers before they do.
__device__ __forceinline__ void across_piece(float (&sums)[8][4], u32 (&numbers)[4][4], u32& seen, const Ring& ring,
                                             const Across& across, u32 piece) {
    const u32 stage = piece % STAGES;
    barrier_wait(ring.there(stage), (piece / STAGES) & 1);
    const Shared left = ring.left(stage), right = ring.right(stage);
#pragma unroll
    for (u32 step = 0; step < 4; step++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) numbers[step][i] = load_shared(right + across.at[i] + step * 1024);
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) seen ^= numbers[i / 4][i % 4];
    group_fence();
#pragma unroll
    for (u32 step = 0; step < 4; step++) group_rows_tf32<true>(sums, numbers[step], left, step);
    end_piece(ring, piece);
}

// The pieces of a group, by two sets of registers, since products read one while the other is loaded.
__device__ __forceinline__ void add_pieces(float (&sums)[8][4], const Ring& ring, u32 group) {
    const Across across;
    u32 first[4][4], second[4][4], seen = 0;
#pragma unroll 1
    for (u32 piece = group; piece < PIECES; piece += 2 * TILE_GROUPS) {
        across_piece(sums, first, seen, ring, across, piece);
        if (piece + TILE_GROUPS < PIECES) across_piece(sums, second, seen, ring, across, piece + TILE_GROUPS);
    }
    // Never.
    if (ring.pieces == 0) store_shared_four(ring.pieces, seen, seen, seen, seen);
}

// Turns the sums of the transpose into those of the tile by way of 16 KB of shared memory, by a group.
__device__ __forceinline__ void turn_sums(float (&sums)[8][4], Shared place) {
    const u32 warp = threadIdx.x / 32 % TILE_WARPS, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Rows of the place are columns of the tile. Eights of numbers are exchanged such that neither way meets in banks.
    const auto at = [&](u32 column, u32 row) {
        return place + column * 256 + (row ^ (column % 4 ^ column / 4 % 2) * 8) * 4;
    };
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 column = across_column() + 4 * half;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                         : : "r"(at(column, 8 * i + 2 * t)), "f"(sums[i][2 * half]), "f"(sums[i][2 * half + 1])
                         : "memory");
        }
    }
    named_barrier(2, 128);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            sums[i][e] = as_float(load_shared(at(8 * i + 2 * t + e % 2, warp * 16 + g + e / 2 * 8)));
        }
    }
}

#else

// The pieces of a group.
__device__ __forceinline__ void add_pieces(float (&sums)[8][4], const Ring& ring, u32 group) {
#pragma unroll 1
    for (u32 piece = group; piece < PIECES; piece += TILE_GROUPS) {
        const u32 stage = piece % STAGES;
        barrier_wait(ring.there(stage), (piece / STAGES) & 1);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            tile_step(sums, ring.left(stage), ring.right(stage), step, piece / TILE_GROUPS + step);
        }
        end_piece(ring, piece);
    }
}

#endif

// The part of a group of four warps of the product: every TILE_GROUPS-th piece.
__device__ __forceinline__ void compute_part(float (&sums)[8][4], const Ring& ring, u32 group) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    pin(sums);
    add_pieces(sums, ring, group);
    group_wait_but<0>();
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
#if ACTIVATION_BYTES == 4 && !RIGHT_TRANSPOSED
    // Every thread has read what it was left, and nobody reads pieces any more.
    named_barrier(2, 128);
    turn_sums(sums, ring.left((PIECES - 1) % STAGES));
#endif
    return true;
}
